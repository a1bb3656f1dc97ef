"""Load workers: several processes of this machine that send one schedule.

    async with LoadWorkers(recipe, 4) as workers:
        facts = await run_probe(engine, schedule, workers=workers)

The schedule is made once, here, and dealt; each worker sends its part from a loop and connections of its own, by the
clock that all of them share. What is measured does not depend on their number, except where one alone would be late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from traffic.channel import Begin, Halt, Last, Prepare, Report
from traffic.clock import running_clock
from traffic.dealing import deal, merged, of_the_lost
from traffic.in_flight import CANCEL_LIMIT_S
from traffic.recipe import EngineRecipe
from traffic.records import End, RequestRecord
from traffic.schedule import Schedule
from traffic.sender import LEAD_S, OnRecord, Sent
from traffic.worker_process import WorkerProcess

STOP_LIMIT_S = CANCEL_LIMIT_S + 5.0
"""From the end of the load to a worker's last word."""


class LoadWorkers:
    """`count` processes that are the engine of `recipe`. They start once; one that died is replaced at the next load.

    start: how to start one. Entering and `begin` raise InvalidMeasurement when a worker does not start, and what goes
    wrong in it.
    """

    def __init__(
        self,
        recipe: EngineRecipe,
        count: int,
        start: Callable[[], Awaitable[WorkerProcess]] = WorkerProcess.start,
    ) -> None:
        self._recipe = recipe
        self._count = count
        self._start = start
        self._workers: list[WorkerProcess] = []

    async def __aenter__(self) -> Self:
        await self._fill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drop(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    async def begin(self, schedule: Schedule, on_record: OnRecord) -> RemoteSender:
        """Deal the schedule, and start it once every worker has its part: a slow transfer must make nobody late."""
        await self._fill()
        hands = [_Hand(*pair) for pair in zip(self._workers, deal(schedule, self._count), strict=True)]
        try:
            await asyncio.gather(*(hand.worker.obey(Prepare(hand.part)) for hand in hands))
            origin_s = running_clock().now_s() + LEAD_S
            for hand in hands:
                await hand.worker.send(Begin(origin_s))
        except BaseException:
            await self._drop(self._workers)
            raise
        return RemoteSender(hands, on_record, origin_s=origin_s)

    async def _fill(self) -> None:
        """Start what is missing."""
        dead = [worker for worker in self._workers if not worker.is_alive]
        await self._drop(dead)
        self._workers = [worker for worker in self._workers if worker.is_alive]
        fresh: list[WorkerProcess] = []
        try:
            while len(self._workers) + len(fresh) < self._count:
                fresh.append(await self._start())
            await asyncio.gather(*(worker.obey(self._recipe) for worker in fresh))
        except BaseException:
            await self._drop(fresh)
            raise
        self._workers += fresh

    async def _drop(self, workers: Sequence[WorkerProcess]) -> None:
        await asyncio.gather(*(worker.end() for worker in workers))


class _Hand:
    """A worker, its part of the schedule, and what it has told of it."""

    def __init__(self, worker: WorkerProcess, part: Schedule) -> None:
        self.worker = worker
        self.part = part
        self.records: list[RequestRecord] = []
        self.sent = 0
        self.in_flight = 0
        self.is_over = False
        self.last: Sent | None = None
        self.fault: str | None = None

    def take(self, report: Report) -> None:
        """What the worker reports."""
        self.records += report.records
        self.sent, self.in_flight, self.is_over = report.sent, report.in_flight, report.is_over


class RemoteSender:
    """A load that workers send; see `traffic.sender.Sender`. It lags behind them by one report, a tenth of a second."""

    def __init__(self, hands: Sequence[_Hand], on_record: OnRecord, *, origin_s: float) -> None:
        self.origin_s = origin_s
        self.over = asyncio.Event()
        self.workers = len(hands)
        self._hands = hands
        self._on_record = on_record
        self._is_stopping = False
        self._listeners = [asyncio.create_task(self._listen(hand), name=f"worker-{hand.worker.pid}") for hand in hands]

    @property
    def sent(self) -> int:
        """Requests sent so far."""
        return sum(hand.sent for hand in self._hands)

    @property
    def resolved(self) -> int:
        """Requests that have ended."""
        return sum(len(hand.records) for hand in self._hands)

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return sum(hand.in_flight for hand in self._hands)

    @property
    def fault(self) -> str | None:
        """How the first worker that died did."""
        return next((hand.fault for hand in self._hands if hand.fault is not None), None)

    def is_over(self) -> bool:
        """Whether every request of the cohort has ended, after the window's end."""
        return all(hand.is_over for hand in self._hands)

    def look(self, moment_s: float) -> None:  # noqa: ARG002 - the workers watch themselves: they send
        """Raise what went wrong in a worker."""
        for listener in self._listeners:
            if listener.done():
                listener.result()

    async def _listen(self, hand: _Hand) -> None:
        """Take a worker's messages until its last."""
        while isinstance(message := await hand.worker.receive(), Report):
            hand.take(message)
            if not self._is_stopping:
                for record in message.records:
                    self._on_record(record)
            if self.is_over():
                self.over.set()
        if isinstance(message, Last):
            hand.last = message.sent
        else:
            hand.fault = await hand.worker.death()

    async def stop(self, load_s: float, cohort_end: End) -> Sent:
        """End the load. A worker that does not answer within STOP_LIMIT_S is killed, and its part lost."""
        self._is_stopping = True
        for hand in self._hands:
            await hand.worker.send(Halt(load_s, cohort_end))
        _, silent = await asyncio.wait(self._listeners, timeout=STOP_LIMIT_S)
        for hand, listener in zip(self._hands, self._listeners, strict=True):
            if listener in silent:
                listener.cancel()
                hand.fault = f"a load worker did not answer within {STOP_LIMIT_S:g} s"
                await hand.worker.end(limit_s=0.0)
            elif listener.exception() is not None:
                listener.result()
        return merged(hand.last or of_the_lost(hand.part, hand.records, load_s) for hand in self._hands)

    async def abandon(self) -> None:
        """Leave nothing behind."""
        if not self._is_stopping:
            await self.stop(0.0, End.UNRESOLVED)
