"""One probe: open-loop load at one rate, and the facts of its cohort."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from traffic.clock import Clock, running_clock, sleep_until
from traffic.engine import Engine
from traffic.in_flight import InFlight
from traffic.records import End, Flight, Request, RequestRecord, freeze
from traffic.schedule import Schedule, Window

TICK_S = 0.25
"""How often the probe looks up: referee, engine health, live view, stall of the event loop."""

LEAD_S = 0.05
"""Between the call and the probe's start, so that the first request is not late by the set-up."""


class Stop(StrEnum):
    """Why a probe's load ended."""

    COMPLETE = "every request of the cohort ended"
    DRAIN_LIMIT = "drain limit"
    LOST = "an objective was lost"
    GROWTH = "requests in flight grew without bound"
    ERRORS = "too many errors"

    @property
    def is_early(self) -> bool:
        """Whether requests of the cohort may be unresolved."""
        return self not in (Stop.COMPLETE, Stop.DRAIN_LIMIT)


@dataclass(frozen=True, slots=True)
class Progress:
    """A look at a running probe; times in seconds after its start."""

    now_s: float
    in_flight: int
    sent: int
    resolved: int
    window: Window


class Referee(Protocol):
    """Somebody who knows when going on can change nothing. The probe itself knows no limits."""

    def resolved(self, record: RequestRecord) -> None:
        """A request of the cohort ended."""
        ...

    def look(self, now_s: float, in_flight: int) -> Stop | None:
        """Called each second: a reason to end now, or None. now_s: after the start."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """What happened; nothing here has been judged.

    load_s: seconds from the first send to the end of the load. saved_s: what the early end spared of the time up to the
    window's end. stall_max_s: the longest that the event loop was late for its own tick. clock_step_s: UTC minus
    monotonic over the probe.
    """

    window: Window
    records: tuple[RequestRecord, ...]
    stop: Stop
    started_utc: datetime
    load_s: float
    saved_s: float
    stall_max_s: float
    clock_step_s: float


async def run_probe(
    engine: Engine,
    schedule: Schedule,
    referee: Referee | None = None,
    *,
    check: Callable[[], None] = lambda: None,
    observe: Callable[[Progress], None] = lambda _: None,
) -> ProbeFacts:
    """Send the schedule and return the facts, by the schedule's own deadline at the latest.

    check: raises EngineError when the engine is known to be dead. observe: called every quarter second.
    Whatever is in flight at the end is cancelled, on an exception too.
    """
    clock = running_clock()
    probe = _Running(engine, schedule, referee, clock)
    try:
        stop = await probe.until_stop(check, observe)
        return await probe.settle(stop)
    finally:
        await probe.abandon()


class _Running:
    """A probe under way."""

    def __init__(self, engine: Engine, schedule: Schedule, referee: Referee | None, clock: Clock) -> None:
        self.schedule = schedule
        self.window = schedule.window
        self.referee = referee
        self.clock = clock
        self.origin_s = clock.now_s() + LEAD_S
        self.started_utc = clock.utc()
        self.clock_offset_s = clock.utc_s() - clock.now_s()
        self.air = InFlight(engine, self.origin_s, self._on_record)
        self.unresolved = schedule.window.scheduled
        self.sent = 0
        self.stall_max_s = 0.0
        self.complete = asyncio.Event()
        if not self.unresolved:
            self.complete.set()
        self.sender = asyncio.create_task(self._send(), name="sender")

    async def _send(self) -> None:
        for request in self.schedule.requests:
            await sleep_until(self.origin_s + request.due_s)
            self.air.send(request)
            self.sent += 1

    def _on_record(self, record: RequestRecord) -> None:
        if record.in_cohort:
            self.unresolved -= 1
            if self.referee is not None:
                self.referee.resolved(record)
            if not self.unresolved:
                self.complete.set()

    def now_s(self) -> float:
        """Seconds after the probe's start."""
        return self.clock.now_s() - self.origin_s

    async def until_stop(self, check: Callable[[], None], observe: Callable[[Progress], None]) -> Stop:
        """Wait, looking up every tick, for a reason to stop."""
        tick = 0
        waiter = asyncio.create_task(self.complete.wait(), name="cohort")
        try:
            while True:
                tick += 1
                moment_s = self.origin_s + tick * TICK_S
                await asyncio.wait((waiter,), timeout=max(0.0, moment_s - self.clock.now_s()))
                now_s = self.now_s()
                if waiter.done() and now_s >= self.window.window_end_s:
                    return Stop.COMPLETE
                self.stall_max_s = max(self.stall_max_s, self.clock.now_s() - moment_s)
                self.air.check()
                check()
                if self.sender.done():
                    self.sender.result()
                if now_s >= self.window.drain_end_s:
                    return Stop.DRAIN_LIMIT
                observe(Progress(now_s, len(self.air), self.sent, len(self.air.records), self.window))
                if self.referee is not None and tick % round(1 / TICK_S) == 0:
                    stop = self.referee.look(now_s, len(self.air))
                    if stop is not None:
                        return stop
                if waiter.done():  # an empty or finished cohort before the window's end: only the tick is awaited
                    await sleep_until(self.origin_s + (tick + 1) * TICK_S)
        finally:
            waiter.cancel()

    async def settle(self, stop: Stop) -> ProbeFacts:
        """End the load and freeze the facts."""
        load_s = self.now_s()
        self.sender.cancel()

        def end(request: Request) -> End:
            return End.UNFINISHED if stop is Stop.DRAIN_LIMIT and request.in_cohort else End.UNRESOLVED

        await self.air.stop_all(end)
        unsent = [
            freeze(request, Flight(), self.origin_s, end=end(request))
            for request in self.schedule.requests[self.sent :]
            if request.due_s < load_s
        ]
        return ProbeFacts(
            window=self.window,
            records=tuple(sorted([*self.air.records, *unsent], key=lambda record: record.index)),
            stop=stop,
            started_utc=self.started_utc,
            load_s=load_s,
            saved_s=max(0.0, self.window.window_end_s - load_s) if stop.is_early else 0.0,
            stall_max_s=self.stall_max_s,
            clock_step_s=self.clock.utc_s() - self.clock.now_s() - self.clock_offset_s,
        )

    async def abandon(self) -> None:
        """Leave nothing behind."""
        self.sender.cancel()
        if len(self.air):
            await self.air.stop_all(lambda _: End.UNRESOLVED)
