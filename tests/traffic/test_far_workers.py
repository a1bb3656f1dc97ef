"""Workers on machines with clocks of their own: each is told the start by its clock, and the facts keep how well.

They live in this process and its virtual time; a word to begin is taken by their own clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from engines import Scripted, answer, loop_s, schedule, silent

from traffic.channel import Begin
from traffic.clock_offset import ClockOffset
from traffic.errors import InvalidMeasurement
from traffic.http_client import Bounds, build_client
from traffic.probe import ProbeFacts, Stop, run_probe
from traffic.recipe import EndpointRecipe, EngineRecipe
from traffic.virtual_time import run_virtual
from traffic.worker import attend
from traffic.workers import LoadWorkers

RECIPE = EngineRecipe(
    EndpointRecipe("http://10.0.0.9:8000", "", {}, None, Bounds(), build_client),
    "m",
    extra_body={},
    forces_length=True,
    continuous_usage=True,
)
BOUND_S = 0.0003
PLAN = schedule([0.1 + 0.5 * step for step in range(28)])


class FarWorker:
    """A worker whose clock is offset_s before ours and gains drift_s a second; its clock is readable `reads` times."""

    def __init__(self, number: int, offset_s: float, drift_s: float = 0.0, reads: int = 99) -> None:
        self.pid, self.place = number, f"node-{number}"
        self.is_alive = True
        self.asked_s: list[float] = []
        self._offset_s, self._drift_s, self._reads = offset_s, drift_s, reads
        self._to_worker: asyncio.Queue[object] = asyncio.Queue()
        self._to_bench: asyncio.Queue[object] = asyncio.Queue()
        self._task = asyncio.create_task(attend(cast("Any", _Way(self._to_bench, self._to_worker)), _engine))

    def _now_s(self) -> float:
        return loop_s() + self._offset_s + self._drift_s * loop_s()

    async def send(self, message: object) -> None:
        if isinstance(message, Begin):
            message = Begin(message.origin_s - self._now_s() + loop_s())
        self._to_worker.put_nowait(message)

    async def receive(self) -> object:
        return await self._to_bench.get()

    async def clock_offset(self) -> ClockOffset:
        self.asked_s.append(loop_s())
        if len(self.asked_s) > self._reads:
            raise InvalidMeasurement(f"the clock of {self.place} was not read within 5 s")
        return ClockOffset(self._now_s() - loop_s(), BOUND_S)

    async def death(self) -> str:
        return "a load worker died"

    async def end(self, limit_s: float = 5.0) -> None:  # noqa: ARG002 - it ends at once
        self._task.cancel()
        await asyncio.wait((self._task,))


class _Way:
    def __init__(self, out: asyncio.Queue[object], into: asyncio.Queue[object]) -> None:
        self._out, self._in = out, into

    async def send(self, message: object) -> None:
        self._out.put_nowait(message)

    async def receive(self) -> object:
        return await self._in.get()

    def close(self) -> None: ...


@asynccontextmanager
async def _engine(_: EngineRecipe) -> AsyncIterator[Scripted]:
    yield Scripted(answer(tokens=3))


def sent_by(*clocks: dict[str, float]) -> tuple[ProbeFacts, list[FarWorker]]:
    made: list[FarWorker] = []

    async def start() -> FarWorker:
        made.append(FarWorker(len(made), **clocks[len(made)]))  # type: ignore[arg-type]
        return made[-1]

    async def main() -> ProbeFacts:
        async with LoadWorkers(RECIPE, len(clocks), start) as pool:
            return await run_probe(Scripted(silent()), PLAN, workers=pool)

    return run_virtual(main()), made


def test_far_workers_send_the_load_that_one_process_sends_whatever_their_clocks_say() -> None:
    shared, _ = sent_by({"offset_s": 86_400.0}, {"offset_s": -3.5})
    alone = run_virtual(run_probe(Scripted(answer(tokens=3)), PLAN))
    assert (shared.stop, shared.workers, shared.client_fault) == (Stop.COMPLETE, 2, None)
    for far, near in zip(shared.records[:24], alone.records[:24], strict=True):
        assert (far.index, far.due_s, far.end) == (near.index, near.due_s, near.end)
        assert far.send_lag_s == pytest.approx(near.send_lag_s, abs=1e-6)
        assert far.ttft_s == pytest.approx(near.ttft_s, abs=1e-6)


def test_offset_bound_and_drift_of_each_clock_are_in_the_facts() -> None:
    facts, workers = sent_by({"offset_s": 86_400.0, "drift_s": 20e-6}, {"offset_s": -3.5})
    (fast, even), (one, two) = facts.worker_clocks, workers
    assert (fast.worker, even.worker) == ("node-0", "node-1")
    assert fast.before.offset_s == pytest.approx(86_400.0 + 20e-6 * one.asked_s[0])
    assert fast.before.bound_s == BOUND_S
    assert fast.drift_s == pytest.approx(20e-6 * (one.asked_s[1] - one.asked_s[0]), rel=1e-3)
    assert fast.error_s == pytest.approx(BOUND_S + (fast.drift_s or 0.0))
    assert even.drift_s == pytest.approx(0.0, abs=1e-9)
    assert [len(each.asked_s) for each in (one, two)] == [2, 2]


def test_the_clocks_are_asked_before_the_start_and_after_the_end() -> None:
    facts, (worker,) = sent_by({"offset_s": 5.0})
    before_s, after_s = worker.asked_s
    assert after_s - before_s >= facts.load_s


def test_a_node_whose_clock_cannot_be_read_before_a_load_sends_nothing() -> None:
    with pytest.raises(InvalidMeasurement, match=r"the clock of node-0 was not read within 5 s"):
        sent_by({"offset_s": 5.0, "reads": 0})


def test_a_node_whose_clock_cannot_be_read_after_a_load_is_a_fault_of_the_client() -> None:
    facts, _ = sent_by({"offset_s": 5.0, "reads": 1}, {"offset_s": 6.0})
    assert facts.client_fault == "the clock of node-0 was not read within 5 s"
    assert [each.error_s for each in facts.worker_clocks] == [None, pytest.approx(BOUND_S)]
