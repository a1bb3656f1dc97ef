"""Load workers on a real Ray cluster, two nodes of this machine: what they measure, and what is told of a lost one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import FAR_S, RayCluster, can_shift_time, ray_cluster

from gates.validity import MEASURED
from slo_bench.doctor.null_engine import NullEngine, Truth, null_engine, null_load, readings
from slo_bench.ray_workers import has_ray, ray_nodes
from traffic.errors import UsageError
from traffic.probe import ProbeFacts, Progress, Stop, run_probe
from traffic.real_time import RealLoop
from traffic.records import End
from traffic.schedule import Schedule
from traffic.workers import LoadWorkers

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not has_ray(), reason="Ray is not installed (slo-bench[ray])"),
    pytest.mark.xdist_group("ray"),
]

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[RayCluster, int]]:
    with ray_cluster() as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started[0].variables.items():
            patch.setenv(name, value)
        yield started


def plan(duration_s: float = 3.0) -> Schedule:
    return null_load(30.0, 16, duration_s=duration_s, answer_s=0.2, prompt_words=30, repeat=0)


def on_null_server(use: Callable[[NullEngine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(120.0), null_engine(ttft_s=0.05, itl_s=0.005) as null:
            return await use(null)

    with asyncio.Runner(loop_factory=RealLoop) as runner:
        return runner.run(main())


@asynccontextmanager
async def far_workers(null: NullEngine, address: str, count: int = 2) -> AsyncIterator[LoadWorkers]:
    async with (
        ray_nodes(address, count, server_url=null.url) as start,
        LoadWorkers(null.engine.recipe(), count, start) as pool,
    ):
        yield pool


def median_errors_s(facts: ProbeFacts, truth: Truth) -> tuple[float, float]:
    """What the clients read of TTFT and TPOT beside what the server did."""
    read = readings(facts.records, truth)
    assert len(read) == facts.window.scheduled
    tpots = [each.tpot_s - each.true_tpot_s for each in read if each.tpot_s and each.true_tpot_s]
    return statistics.median(each.ttft_s - each.true_ttft_s for each in read), statistics.median(tpots)


def test_two_nodes_measure_what_two_processes_of_this_machine_measure(cluster: tuple[RayCluster, int]) -> None:
    async def use(null: NullEngine) -> tuple[list[ProbeFacts], list[Truth]]:
        facts, truths = [], []
        async with LoadWorkers(null.engine.recipe(), 2) as pool:
            facts.append(await run_probe(null.engine, plan(), workers=pool))
        truths.append(await null.truth())
        async with far_workers(null, cluster[0].address) as pool:
            for _ in range(2):  # the same workers serve load after load
                facts.append(await run_probe(null.engine, plan(), workers=pool))
                truths.append(await null.truth())
        return facts, truths

    all_facts, truths = on_null_server(use)
    near = all_facts[0]
    for facts, truth in zip(all_facts, truths, strict=True):
        assert (facts.stop, facts.workers, facts.client_fault) == (Stop.COMPLETE, 2, None)
        inside, expected = ([each for each in some.records if each.in_cohort] for some in (facts, near))
        assert [(each.index, each.due_s, each.output_tokens) for each in inside] == [
            (each.index, each.due_s, each.output_tokens) for each in expected
        ]
        assert {each.end for each in inside} == {End.FINISHED}
        assert min(each.send_lag_s or 0.0 for each in inside) > -1e-5
        assert facts.cpu_share is not None
        ttft_s, tpot_s = median_errors_s(facts, truth)
        assert abs(ttft_s) < 0.005
        assert abs(tpot_s) < 0.0005


def test_each_node_has_one_worker_and_its_clock_is_known(cluster: tuple[RayCluster, int]) -> None:
    async def use(null: NullEngine) -> tuple[ProbeFacts, Truth]:
        async with far_workers(null, cluster[0].address) as pool:
            return await run_probe(null.engine, plan(), workers=pool), await null.truth()

    facts, truth = on_null_server(use)
    offsets_s = sorted(each.before.offset_s for each in facts.worker_clocks)
    assert offsets_s[0] == pytest.approx(0.0, abs=0.001)
    assert offsets_s[1] == pytest.approx(FAR_S if can_shift_time() else 0.0, abs=0.001)
    assert all(each.error_s is not None and each.error_s < MEASURED.worker_clock_s for each in facts.worker_clocks)
    # By the server's clock, which is this machine's, both parts of the load began together.
    late_s: list[list[float]] = [[], []]
    for each in facts.records:
        if each.index in truth.answers and each.in_cohort:
            late_s[each.index % 2].append(truth.answers[each.index].arrived_s - each.due_s)
    one_s, two_s = (statistics.median(each) for each in late_s)
    assert one_s == pytest.approx(two_s, abs=0.005)


def test_the_command_writes_the_clocks_of_its_workers(cluster: tuple[RayCluster, int]) -> None:
    async def use(null: NullEngine) -> subprocess.CompletedProcess[str]:
        words = ["probe", "--base-url", null.url, "--request-rate", "20", "--ramp", "1", "--duration", "5", "--json"]
        load = ["--workload", "fixed", "--input-tokens", "50", "--output-tokens", "16", "--slo", "ttft:p90:2000"]
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "slo_bench", *words, *load, "--load-workers=2", "--ray-address=auto"],
            cwd=CHECKOUT,
            env={**os.environ, "RAY_ADDRESS": cluster[0].address},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    ran = on_null_server(use)
    assert ran.returncode in (0, 3), ran.stderr  # 3: a crowded machine may be late
    row = json.loads(ran.stdout)
    assert row["load_workers"] == 2
    assert len({each["worker"] for each in row["worker_clocks"]}) == 2
    assert all(0 < each["bound_s"] <= each["error_s"] for each in row["worker_clocks"])
    assert "Traceback" not in ran.stderr


def test_more_workers_than_free_cores_are_refused(cluster: tuple[RayCluster, int]) -> None:
    async def use(null: NullEngine) -> None:
        async with far_workers(null, cluster[0].address, 3):
            pass

    with pytest.raises(UsageError, match="the Ray cluster has 2 free cores for 3 load workers: lower --load-workers"):
        on_null_server(use)


def test_a_wrong_token_is_refused_in_one_line(cluster: tuple[RayCluster, int]) -> None:
    async def use(null: NullEngine) -> subprocess.CompletedProcess[str]:
        words = ["probe", "--base-url", null.url, "--request-rate", "5", "--duration", "2", "--yes"]
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "slo_bench", *words, f"--ray-address={cluster[0].address}"],
            cwd=CHECKOUT,
            env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    ran = on_null_server(use)
    assert ran.returncode == 2, ran.stderr
    said = [line for line in ran.stderr.splitlines() if line.startswith("slo-bench: ")]
    assert len(said) == 1
    assert "Traceback" not in ran.stderr


def test_a_killed_worker_makes_the_load_invalid_and_is_replaced(cluster: tuple[RayCluster, int]) -> None:
    async def use(null: NullEngine) -> tuple[ProbeFacts, ProbeFacts]:
        async with far_workers(null, cluster[0].address) as pool:
            victim = pool.pids[1]

            def kill(progress: Progress) -> None:
                if progress.now_s > 1.2 and Path(f"/proc/{victim}").exists():
                    os.kill(victim, signal.SIGKILL)

            spoiled = await run_probe(null.engine, plan(), workers=pool, observe=kill)
            return spoiled, await run_probe(null.engine, plan(), workers=pool)

    spoiled, after = on_null_server(use)
    assert spoiled.stop is Stop.CLIENT
    assert spoiled.client_fault is not None
    assert spoiled.client_fault.startswith("a load worker died (exit -9) on ")
    assert (after.stop, after.client_fault) == (Stop.COMPLETE, None)


def test_a_node_that_is_lost_ends_the_load_in_time_with_one_line(cluster: tuple[RayCluster, int]) -> None:
    """The last test of this cluster: it has one node afterwards."""
    lost_s: list[float] = []

    async def use(null: NullEngine) -> ProbeFacts:
        async with far_workers(null, cluster[0].address) as pool:

            def lose(progress: Progress) -> None:
                if progress.now_s > 1.2 and not lost_s:
                    os.killpg(cluster[1], signal.SIGKILL)
                    lost_s.append(time.monotonic())

            facts = await run_probe(null.engine, plan(30.0), workers=pool, observe=lose)
            lost_s.append(time.monotonic())
            return facts

    facts = on_null_server(use)
    assert facts.stop is Stop.CLIENT
    assert facts.client_fault is not None
    assert facts.client_fault.endswith("was lost (its node or its actor is gone)")
    assert lost_s[1] - lost_s[0] < 30.0
    assert sorted(each.error_s is None for each in facts.worker_clocks) == [False, True]
