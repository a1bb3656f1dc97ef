"""Load workers: several processes, of this machine or of others, that send one schedule.

    async with LoadWorkers(recipe, 4) as workers:
        facts = await run_probe(engine, schedule, workers=workers)

The schedule is made once, here, and dealt; each worker sends its part from a loop and connections of its own, by the
clock of its machine. All processes of one machine share it; the clock of another is measured before each load, and the
start told by it. What is measured does not depend on the workers' number, except where one alone would be late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from traffic.channel import Begin, Halt, Last, Prepare, Ready, Report
from traffic.clock import running_clock
from traffic.clock_offset import ClockOffset, WorkerClock
from traffic.dealing import deal, merged, of_the_lost
from traffic.errors import InvalidMeasurement
from traffic.in_flight import CANCEL_LIMIT_S
from traffic.recipe import EngineRecipe
from traffic.records import End, RequestRecord
from traffic.schedule import Schedule
from traffic.sender import LEAD_S, OnRecord, Sent
from traffic.worker_port import LoadWorker
from traffic.worker_process import READY_LIMIT_S, WorkerProcess

STOP_LIMIT_S = CANCEL_LIMIT_S + 5.0
"""From the end of the load to a worker's last word."""

FAR_LEAD_S = 0.25
"""Between the call and the start of the load where the word to begin must reach other machines first."""


class LoadWorkers:
    """`count` workers that are the engine of `recipe`. They start once; one that died is replaced at the next load.

    start: how to start one. Entering and `begin` raise InvalidMeasurement when a worker does not start, and what goes
    wrong in it.
    """

    def __init__(
        self,
        recipe: EngineRecipe,
        count: int,
        start: Callable[[], Awaitable[LoadWorker]] = WorkerProcess.start,
    ) -> None:
        self._recipe = recipe
        self._count = count
        self._start = start
        self._workers: list[LoadWorker] = []

    async def __aenter__(self) -> Self:
        await self._fill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drop(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, each on its machine."""
        return [worker.pid for worker in self._workers]

    async def begin(self, schedule: Schedule, on_record: OnRecord) -> RemoteSender:
        """Deal the schedule, and start it once every worker has its part: a slow transfer must make nobody late."""
        await self._fill()
        hands = [_Hand(*pair) for pair in zip(self._workers, deal(schedule, self._count), strict=True)]
        try:
            await asyncio.gather(*(_obeyed(hand.worker, Prepare(hand.part)) for hand in hands))
            for hand in hands:  # one after the other: a round trip must not wait for another's
                hand.clock_before = await hand.worker.clock_offset()
            lead_s = LEAD_S if all(hand.clock_before is None for hand in hands) else FAR_LEAD_S
            origin_s = running_clock().now_s() + lead_s
            await asyncio.gather(*(hand.worker.send(hand.begin(origin_s)) for hand in hands))
        except BaseException:
            await self._drop(self._workers)
            raise
        return RemoteSender(hands, on_record, origin_s=origin_s)

    async def _fill(self) -> None:
        """Start what is missing."""
        dead = [worker for worker in self._workers if not worker.is_alive]
        await self._drop(dead)
        self._workers = [worker for worker in self._workers if worker.is_alive]
        fresh: list[LoadWorker] = []
        try:
            while len(self._workers) + len(fresh) < self._count:
                fresh.append(await self._start())
            await asyncio.gather(*(_obeyed(worker, self._recipe) for worker in fresh))
        except BaseException:
            await self._drop(fresh)
            raise
        self._workers += fresh

    async def _drop(self, workers: Sequence[LoadWorker]) -> None:
        await asyncio.gather(*(worker.end() for worker in workers))


async def _obeyed(worker: LoadWorker, order: object) -> None:
    """Give it an order and wait until it is ready. Raises InvalidMeasurement when it does not get so."""
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            await worker.send(order)
            message = await worker.receive()
    except TimeoutError:
        raise InvalidMeasurement(f"a load worker was not ready within {READY_LIMIT_S:g} s") from None
    if not isinstance(message, Ready):
        raise InvalidMeasurement(await worker.death())


class _Hand:
    """A worker, its part of the schedule, and what it has told of it.

    clock_before: its clock beside ours when the load was about to start; None where both are one.
    """

    def __init__(self, worker: LoadWorker, part: Schedule) -> None:
        self.worker = worker
        self.part = part
        self.clock_before: ClockOffset | None = None
        self.records: list[RequestRecord] = []
        self.sent = 0
        self.in_flight = 0
        self.is_over = False
        self.last: Sent | None = None
        self.fault: str | None = None

    def begin(self, origin_s: float) -> Begin:
        """The order to start at that moment of our clock, told by the worker's."""
        return Begin(origin_s if self.clock_before is None else self.clock_before.there(origin_s))

    async def clock(self) -> WorkerClock | None:
        """Its clock over the load that has ended; None where it is ours. A worker that does not say is lost."""
        if self.clock_before is None:
            return None
        after = None
        if self.fault is None:
            try:
                after = await self.worker.clock_offset()
            except InvalidMeasurement as error:
                self.fault = str(error)
        return WorkerClock(self.worker.place, self.clock_before, after)

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
        near, far = ([each for each in self._hands if (each.clock_before is None) is here] for here in (True, False))
        for hand in near:  # at once: what a worker sends before it hears of the end is sent after the end
            await hand.worker.send(Halt(load_s, cohort_end))
        await asyncio.gather(*(hand.worker.send(Halt(load_s, cohort_end)) for hand in far))
        _, silent = await asyncio.wait(self._listeners, timeout=STOP_LIMIT_S)
        for hand, listener in zip(self._hands, self._listeners, strict=True):
            if listener in silent:
                listener.cancel()
                hand.fault = f"a load worker did not answer within {STOP_LIMIT_S:g} s"
                await hand.worker.end(limit_s=0.0)
            elif listener.exception() is not None:
                listener.result()
        clocks = [await hand.clock() for hand in self._hands]  # one after the other, as before the load
        sent = merged(hand.last or of_the_lost(hand.part, hand.records, load_s) for hand in self._hands)
        return replace(sent, clocks=tuple(each for each in clocks if each is not None))

    async def abandon(self) -> None:
        """Leave nothing behind."""
        if not self._is_stopping:
            await self.stop(0.0, End.UNRESOLVED)
