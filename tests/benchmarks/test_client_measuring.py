"""What benchmarks/client measures of a run: CPU and memory of a tree, the arrivals' law, lags, and the table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import fields, replace

import numpy as np
import pytest
from client_benchmark import FOLDER, load, measuring, pinned, runs, server, table

ASKED = load.Load(rate_rps=100, seconds=10, tokens=64, words=32, first_s=0.05, itl_s=0.01, repeat=0)


def poisson_s(n: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(3).exponential(1 / ASKED.rate_rps, n))


def test_poisson_arrivals_have_the_law_of_poisson_arrivals() -> None:
    found = measuring.law(poisson_s(20_000))
    assert found is not None
    assert found.cv == pytest.approx(1, abs=0.03)
    assert found.ks < found.ks_critical == pytest.approx(1.358 / np.sqrt(19_999))
    assert found.dispersion == pytest.approx(1, abs=0.2)


def test_gaps_that_come_again_and_again_show_in_the_counts_alone() -> None:
    draw = np.random.default_rng(3).exponential(1 / ASKED.rate_rps, 2_000)
    found = measuring.law(np.cumsum(np.repeat(draw, 10)))
    assert found is not None
    assert found.cv == pytest.approx(1, abs=0.1)
    assert found.dispersion > 4


def test_steady_and_bursty_arrivals_have_another_law() -> None:
    steady, bursty = (measuring.law(each) for each in (np.arange(2_000) / 100, np.repeat(poisson_s(200), 10)))
    assert steady is not None
    assert bursty is not None
    assert steady.cv < 0.01
    assert bursty.cv > 2
    assert steady.ks > steady.ks_critical
    assert steady.dispersion < 0.1
    assert bursty.dispersion > 5


@pytest.mark.parametrize("arrived_s", [[], [1.0], [1.0, 1.0, 1.0]])
def test_too_few_arrivals_have_no_law(arrived_s: list[float]) -> None:
    assert measuring.law(arrived_s) is None


def test_a_cost_is_read_between_the_samples() -> None:
    def sample(at_s: float, cpu_s: float, rss: int, busy_s: float) -> object:
        return measuring.Sample(at_s=at_s, cpu_s=cpu_s, rss_bytes=rss, busy_s=busy_s, steal_s=at_s / 10)

    samples = [sample(0, 5, 900, 100), sample(1, 6, 10, 102), sample(2, 6.5, 30, 103), sample(3, 9, 500, 110)]
    found = measuring.cost(samples, 0.5, 2.0)
    assert (found.seconds, found.cpu_s, found.peak_rss_bytes) == (1.5, 1.0, 30)
    assert (found.other_s, found.steal_s) == (1.0, pytest.approx(0.15))


BUSY = """
import os, subprocess, sys
over, alive = os.pipe()
os.set_inheritable(alive, True)
code = "import time; x = bytearray(60_000_000)\\nwhile time.process_time() < 0.5: pass"
start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}], close_fds=False)"
if len(sys.argv) > 1:
    exec(start)
else:
    subprocess.run([sys.executable, "-c", start], close_fds=False)
os.close(alive)
os.read(over, 1)  # nothing comes, until the last of them has gone
"""


@pytest.mark.parametrize("argv", [["direct"], []], ids=["a child", "a child whose parent has gone"])
def test_a_tree_counts_the_cpu_time_and_memory_of_whoever_it_started(argv: list[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY, *argv], start_new_session=True) as process:
        tree = measuring.Tree(process.pid, (0,))
        while process.poll() is None:
            tree.look()
            time.sleep(0.02)
    assert tree.samples[-1].cpu_s == pytest.approx(0.55, abs=0.2)
    assert max(each.rss_bytes for each in tree.samples) > 60_000_000
    assert all(a.cpu_s <= b.cpu_s for a, b in zip(tree.samples, tree.samples[1:], strict=False))


def test_a_pinned_program_and_its_children_have_one_core() -> None:
    core = max(os.sched_getaffinity(0))
    words = "import os, subprocess, sys; print(os.sched_getaffinity(0), flush=True)"
    code = f"{words}; subprocess.run([sys.executable, '-c', {words!r}])"
    argv = pinned.pinned([sys.executable, "-c", code], cores=(core,), priority=pinned.Priority.HIGH)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, start_new_session=True)
    assert done.stdout.split("\n")[:2] == [f"{{{core}}}"] * 2


def true(name: str, arrived_s: float, *, sends: int = 64, is_whole: bool = True) -> object:
    first_ns = int((arrived_s + 0.05) * 1e9)
    return server.TrueRequest(
        name=name,
        connection=0,
        is_chat=True,
        is_stream=True,
        is_whole=is_whole,
        asked=64,
        sends=sends,
        arrived_ns=int(arrived_s * 1e9),
        complete_ns=int(arrived_s * 1e9),
        first_send_ns=first_ns,
        last_send_ns=first_ns + (sends - 1) * 10_000_000,
        worst_late_ns=0,
    )


def record(requests: list[object], late_p99_ns: int = 100_000) -> object:
    return server.Truth(
        schema_version=1,
        sends=64 * len(requests),
        connections=1,
        cpu_s=1,
        late_p50_ns=0,
        late_p99_ns=late_p99_ns,
        late_max_ns=0,
        requests=tuple(requests),
    )


SAMPLES = [measuring.Sample(float(at), 0.1 * at, 50 * 2**20, 0.3 * at, 0.0) for at in range(30)]


def test_a_runs_figures_are_the_clients_word_beside_the_servers() -> None:
    arrived_s = [1 + each for each in poisson_s(400)]
    truth = record([true("warm-up", 0.5), *(true(str(index), each) for index, each in enumerate(arrived_s))])
    said = load.Said(
        asked=400,
        finished=398,
        ttft_s=[0.053] * 398,
        tpot_s=[0.0101] * 398,
        due_s=[each - 0.002 for each in reversed(arrived_s)],
    )
    run = runs.figures("a client", ASKED, said, truth, SAMPLES, 0.5)
    assert (run.ttft_p99_ms, run.true_ttft_p99_ms) == (pytest.approx(53), pytest.approx(50, abs=0.01))
    assert (run.tpot_p50_ms, run.true_tpot_p50_ms) == (pytest.approx(10.1), pytest.approx(10, abs=0.01))
    assert (run.lag_p50_ms, run.lag_p99_ms) == (pytest.approx(2, abs=0.01), pytest.approx(2, abs=0.01))
    assert (run.achieved, run.finished_share) == (pytest.approx(1), 0.995)
    assert run.core_share == pytest.approx(0.1)
    assert run.other_share == pytest.approx(0.2)
    seconds = arrived_s[-1] + 0.05 + 0.63 - 0.5
    assert run.cpu_s_per_1k == pytest.approx(1000 * 0.1 * seconds / (401 * 64))
    assert (run.rss_mib, run.is_disturbed) == (50, False)


def test_due_times_in_utc_are_brought_to_the_servers_clock_and_foreign_ones_give_no_lag() -> None:
    said = load.Said(asked=2, finished=2, ttft_s=[], tpot_s=[], due_utc_s=[1002.0, 1001.0])
    assert runs.due_s(said, utc_offset_s=1000.0) == [1.0, 2.0]
    assert runs.lags_s([1.0, 2.0], [1.5, 2.25]) == [0.5, 0.25]
    assert runs.lags_s([1.0, 2.0], [1.5, 2.25, 3.0]) == []


def test_the_achieved_share_is_of_the_due_times_where_they_were_fixed_before_else_of_the_rate() -> None:
    said, late = load.Said(asked=4, finished=4, ttft_s=[], tpot_s=[]), [0.0, 1.0, 2.0, 5.0]
    fixed, told = replace(said, due_s=[0.0, 1.0, 2.0, 4.0]), replace(said, due_utc_s=[0.0, 1.0, 2.0, 4.0])
    assert runs.achieved(ASKED, fixed, late) == 0.8
    assert [runs.achieved(ASKED, each, late) for each in (said, told)] == [pytest.approx(3 / 5 / ASKED.rate_rps)] * 2
    assert runs.achieved(ASKED, said, [1.0]) == 0


def test_requests_that_have_names_are_found_by_them() -> None:
    truth = record([true("a", 1), true("b", 2), true("c", 3)])
    said = load.Said(asked=2, finished=2, ttft_s=[1], tpot_s=[1])
    assert [each.name for each in runs.meant_requests(said, truth)] == ["b", "c"]
    assert [each.name for each in runs.meant_requests(replace(said, names=frozenset("a")), truth)] == ["a"]


def test_a_late_server_disturbs_and_a_client_without_an_answer_cannot_run() -> None:
    said = load.Said(asked=3, finished=3, ttft_s=[0.05], tpot_s=[0.01])
    three = [true(str(index), each) for index, each in enumerate((1.0, 1.1, 1.3))]
    assert runs.figures("a client", ASKED, said, record(three, 10_000_001), SAMPLES, 0.0).is_disturbed
    with pytest.raises(load.CannotRunError, match=r"no request was answered \(1 came"):
        runs.figures("a client", ASKED, said, record([true("0", 1.0, is_whole=False)]), SAMPLES, 0.0)


def run_of(
    client: str, rate_rps: float, cpu_s: float, *, is_disturbed: bool = False, lag: float | None = 1.0
) -> object:
    numbers = {each.name: 10.0 for each in fields(runs.Run)}
    numbers |= {"ttft_p99_ms": 53.25, "true_ttft_p99_ms": 50.0, "cpu_s_per_1k": cpu_s, "lag_p99_ms": lag}
    return runs.Run(**numbers | {"client": client, "rate_rps": rate_rps, "is_disturbed": is_disturbed})


def cells(text: str) -> list[dict[str, str]]:
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert all(len(line) == len(head) for line in lines)
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_the_table_has_medians_of_quiet_runs_and_the_ratio_to_vllm_at_the_same_rate() -> None:
    ours = [run_of("slo-bench", 400, each) for each in (0.02, 0.03, 0.01)]
    loud = run_of("slo-bench", 400, 9.0, is_disturbed=True)
    theirs = [run_of("vllm bench serve", 400, 0.04, lag=None), run_of("vllm bench serve", 200, 0.08)]
    first, second, third, alone = cells(table.table([*ours, loud, *theirs, run_of("slo-bench", 800, 0.02)], []))
    ratio = "ratio to vllm bench serve"
    assert (first["client"], first["req/s"], first["runs"], first[ratio]) == ("slo-bench", "400", "3", "0.50")
    assert (first["CPU s per 1k tokens"], first["TTFT error p50 / p99 ms"]) == ("0.0200", "0.00 / 3.25")
    assert (second[ratio], second["lag p50 / p99 ms"]) == ("1.00", "10.00 / n/a")
    assert (third["req/s"], third[ratio], alone[ratio]) == ("200", "1.00", "n/a")


def test_runs_that_were_never_quiet_are_marked_and_what_failed_says_why() -> None:
    loud = [run_of("slo-bench", 400, each, is_disturbed=True) for each in (0.02, 0.04)]
    failed = [runs.Failed("aiperf", 400.0, "not installed: a | b")]
    disturbed, absent = cells(table.table(loud, failed))
    assert (disturbed["runs"], disturbed["CPU s per 1k tokens"]) == ("2*", "0.0300")
    assert (absent["client"], absent["req/s"], absent["runs"], absent["achieved"]) == (
        "aiperf",
        "400",
        "0",
        "not installed: a / b",
    )


@pytest.mark.process
def test_the_program_measures_slo_bench_and_says_why_another_is_not_measured() -> None:
    argv = [sys.executable, str(FOLDER), "--clients", "slo-bench", "vllm", "aiperf"]
    argv += ["--rates", "20", "--runs", "1", "--seconds", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    ours, vllm, aiperf = cells("\n".join(lines))
    assert (ours["client"], ours["runs"].rstrip("*"), ours["finished"]) == ("slo-bench", "1", "1.0000")
    assert "--vllm-python" in vllm["achieved"]
    assert "--environments" in aiperf["achieved"]


def test_a_client_gets_as_many_cores_as_it_may_have_and_never_the_servers() -> None:
    assert load.client_cores(range(16), 1) == (0,)
    assert load.client_cores(range(16), 2) == (0, 2)
    assert load.client_cores((0, 1), 2) == (0,)
    assert load.client_cores((1,), 2) == (1,)


def test_a_server_of_several_cores_has_the_last_ones_and_clients_none_of_them() -> None:
    assert load.server_cores(range(16), 1) == (1,)
    assert load.server_cores(range(16), 3) == (1, 15, 14)
    assert load.client_cores((0, 1, 2, 3), 2, load.server_cores((0, 1, 2, 3), 2)) == (0, 2)
    assert load.server_cores((0,), 1) == ()
