"""Real load workers over real sockets: the same load however many send it, and no process left of any end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import FakeServer, Received, Script, whole_answer

from slo_bench.hosts.vllm_process import is_free
from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.probe import ProbeFacts, Progress, Stop, run_probe
from traffic.prompts import TokenRatio
from traffic.real_time import RealLoop
from traffic.records import End
from traffic.schedule import Draw, Schedule, open_loop
from traffic.summary import lag_quantile
from traffic.workers import LoadWorkers
from traffic.workload import fixed_lengths

pytestmark = pytest.mark.process

CHECKOUT = Path(__file__).resolve().parents[2]
KEY = "sk-very-secret-key"

PARENT = """\
import asyncio, sys
from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.probe import run_probe
from traffic.prompts import TokenRatio
from traffic.real_time import RealLoop
from traffic.schedule import Draw, open_loop
from traffic.workers import LoadWorkers
from traffic.workload import fixed_lengths

plan = open_loop(
    Draw(fixed_lengths(30, 8), 0, 0), rate_rps=50.0, ramp_s=0.0, duration_s=60.0, drain_limit_s=lambda _: 5.0,
    text=TokenRatio(1.0, 0.0),
)

async def main():
    async with Endpoint(sys.argv[1]) as endpoint:
        engine = HttpEngine(endpoint, "m")
        async with LoadWorkers(engine.recipe(), 2) as workers:
            print(*workers.pids, flush=True)
            await run_probe(engine, plan, workers=workers)

with asyncio.Runner(loop_factory=RealLoop) as runner:
    runner.run(main())
"""


def until(condition: Callable[[], object], limit_s: float = 15.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to pass in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def plan(rate_rps: float = 60.0, duration_s: float = 2.0) -> Schedule:
    return open_loop(
        Draw(fixed_lengths(30, 8), 0, 0),
        rate_rps=rate_rps,
        ramp_s=0.5,
        duration_s=duration_s,
        drain_limit_s=lambda _: 30.0,
        text=TokenRatio(1.0, 0.0),
    )


def answers(request: Received) -> Script:
    return whole_answer(request.json["max_tokens"], pause_s=0.1)


def served(use: Callable[[FakeServer, HttpEngine], Awaitable[Any]]) -> Any:
    """Run `use` against a server in this process."""

    async def main() -> Any:
        async with FakeServer(answers) as server, Endpoint(f"{server.url}/v1", api_key=KEY) as endpoint:
            return await use(server, HttpEngine(endpoint, "m"))

    with asyncio.Runner(loop_factory=RealLoop) as runner:
        return runner.run(main())


def sent_by(workers: int, schedule: Schedule, **more: Any) -> tuple[ProbeFacts, list[int]]:
    """The facts of a load, and the process ids of those that sent it."""

    async def use(_: FakeServer, engine: HttpEngine) -> tuple[ProbeFacts, list[int]]:
        async with LoadWorkers(engine.recipe(), workers) as pool:
            return await run_probe(engine, schedule, workers=pool, **more), pool.pids

    facts, pids = served(use)
    return facts, pids


def dispersion(moments_s: list[float], end_s: float, step_s: float = 0.25) -> float:
    """Variance over mean of the counts in steps: 1 for a Poisson load, whoever sends it."""
    counts = np.histogram(moments_s, bins=np.arange(0.0, end_s, step_s))[0]
    return float(counts.var() / counts.mean())


def test_two_processes_send_the_load_that_one_sends() -> None:
    schedule = plan(rate_rps=100.0, duration_s=4.0)
    one, two = (sent_by(workers, schedule)[0] for workers in (1, 2))
    expected = {(each.index, each.due_s, each.input_tokens, each.output_tokens) for each in schedule.requests}
    for facts, workers in ((one, 1), (two, 2)):
        seen = {(each.index, each.due_s, each.input_tokens, each.requested_output_tokens) for each in facts.records}
        assert {each for each in expected if each[1] < facts.load_s - 0.5} <= seen <= expected
        assert len(seen) == len(facts.records)
        inside = [each for each in facts.records if each.in_cohort]
        assert len(inside) == schedule.window.scheduled
        assert {each.end for each in inside} == {End.FINISHED}
        assert {each.output_tokens for each in inside} == {8}
        assert min(each.send_lag_s or 0.0 for each in inside) > -1e-5
        assert (facts.stop, facts.workers, facts.client_fault) == (Stop.COMPLETE, workers, None)
        assert facts.cpu_share is not None
        assert 0 < facts.cpu_share < 1.5
    due_s = [each.due_s for each in schedule.requests if each.due_s < 4.5]
    for facts in (one, two):
        if (lag_quantile(facts.records, Decimal(99)) or 0.0) > 0.05:
            pytest.skip("this machine is too busy to send on time: counts in short steps say nothing")
        sent_s = [each.sent_s for each in facts.records if each.sent_s is not None]
        assert dispersion(sent_s, 4.5) == pytest.approx(dispersion(due_s, 4.5), abs=0.35)


def test_leaving_the_workers_ends_them_and_their_connections() -> None:
    async def use(server: FakeServer, engine: HttpEngine) -> tuple[list[int], FakeServer]:
        async with LoadWorkers(engine.recipe(), 2) as pool:
            await run_probe(engine, plan(duration_s=0.5), workers=pool)
            pids = pool.pids
            assert all(is_alive(pid) for pid in pids)
        return pids, server

    pids, server = served(use)
    assert not any(is_alive(pid) for pid in pids)
    assert len({request.headers["authorization"] for request in server.received}) == 1


def test_no_argument_of_a_worker_shows_a_secret() -> None:
    async def use(_: FakeServer, engine: HttpEngine) -> list[bytes]:
        async with LoadWorkers(engine.recipe(), 2) as pool:
            return [arguments(pid) for pid in pool.pids]

    lines = served(use)
    assert len(lines) == 2
    assert not any(KEY.encode() in line for line in lines)


def test_a_killed_worker_makes_the_load_invalid_and_is_replaced() -> None:
    async def use(_: FakeServer, engine: HttpEngine) -> tuple[ProbeFacts, ProbeFacts]:
        async with LoadWorkers(engine.recipe(), 2) as pool:
            victim = pool.pids[1]

            def kill(progress: Progress) -> None:
                if progress.now_s > 1.2 and is_alive(victim):
                    os.kill(victim, signal.SIGKILL)

            spoiled = await run_probe(engine, plan(), workers=pool, observe=kill)
            return spoiled, await run_probe(engine, plan(), workers=pool)

    spoiled, after = served(use)
    assert spoiled.stop is Stop.CLIENT
    assert spoiled.client_fault == "a load worker died (exit -9)"
    assert spoiled.load_s < 2.5
    seen = [each.index for each in spoiled.records]
    # A worker may send what falls due between the end of the load and the word of it.
    assert seen == list(range(len(seen)))
    assert len(seen) >= sum(each.due_s < spoiled.load_s for each in plan().requests)
    assert all(each.due_s < spoiled.load_s + 0.5 for each in plan().requests[: len(seen)])
    assert {each.end for each in spoiled.records} == {End.FINISHED, End.UNRESOLVED}
    assert (after.stop, after.client_fault) == (Stop.COMPLETE, None)


def test_workers_end_by_themselves_when_their_bench_is_killed_under_load() -> None:
    async def use(server: FakeServer, _: HttpEngine) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, server.url, stdout=asyncio.subprocess.PIPE, cwd=CHECKOUT
        )
        assert process.stdout is not None
        pids = [int(word) for word in (await process.stdout.readline()).split()]
        assert len(pids) == 2
        await asyncio.to_thread(until, lambda: len(server.received) >= 20)
        assert all(is_alive(pid) for pid in pids)
        process.kill()
        await process.wait()
        await asyncio.to_thread(until, lambda: not any(is_alive(pid) for pid in pids))

    served(use)


@contextmanager
def simulation() -> Iterator[str]:
    """`slo-bench simulate`, listening."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "slo_bench", "simulate", "--port", str(port)],
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: not is_free(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)


def command(url: str, *more: str) -> list[str]:
    base = [sys.executable, "-m", "slo_bench", "probe", "--base-url", url, "--request-rate", "20", "--ramp", "1"]
    return [*base, "--workload", "fixed", "--input-tokens", "50", "--output-tokens", "16", *more]


def children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def test_the_command_says_how_many_sent_and_how_they_fared() -> None:
    with simulation() as url:
        ran = subprocess.run(
            command(url, "--load-workers", "2", "--duration", "6", "--slo", "ttft:p90:2000", "--json"),
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode in (0, 3), ran.stderr  # 3: a crowded machine may be late
    row = json.loads(ran.stdout)
    assert row["load_workers"] == 2
    assert row["n"] > 80
    assert 0 < row["client_cpu_share"] < 1
    assert row["send_lag_p99_s"] is not None


def test_ctrl_c_at_a_terminal_leaves_no_worker() -> None:
    with simulation() as url:
        tool = subprocess.Popen(
            command(url, "--load-workers", "2", "--duration", "60"),
            cwd=CHECKOUT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        until(lambda: len(children(tool.pid)) == 2)
        workers = children(tool.pid)
        time.sleep(1.5)  # into the load
        os.killpg(tool.pid, signal.SIGINT)
        _, said = tool.communicate(timeout=20)
    assert tool.returncode == 130
    assert said.strip().splitlines()[-1] == "slo-bench: stopped by SIGINT; what was measured is kept"
    assert "Traceback" not in said
    assert not any(is_alive(pid) for pid in workers)
