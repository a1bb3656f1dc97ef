"""One probe: open-loop load at one rate, and the facts of its cohort."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from traffic.clock import next_tick, running_clock
from traffic.clock_offset import WorkerClock
from traffic.engine import Engine
from traffic.records import End, RequestRecord
from traffic.schedule import Schedule, Window
from traffic.sender import LEAD_S, Dispatch, Local, Sender

TICK_S = 0.25
"""How often the probe looks up: referee, engine health, live view, stall of the event loop."""


class Stop(StrEnum):
    """Why a probe's load ended."""

    COMPLETE = "every request of the cohort ended"
    DRAIN_LIMIT = "drain limit"
    LOST = "an objective was lost"
    GROWTH = "requests in flight grew without bound"
    PROVEN = "its outcome was proven"
    ERRORS = "too many errors"
    CLIENT = "the client broke down"

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

    def look(self, now_s: float, in_flight: int, sent: int) -> Stop | None:
        """Called each second: a reason to end now, or None. now_s: after the start. sent: requests so far."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """What happened; nothing here has been judged.

    started_utc: LEAD_S before the start, from which all times of the records count. load_s: seconds from the start to
    the end of the load. saved_s: what the early end spared of the time up to the window's end. window.scheduled:
    requests due in the window, as far as the load went where later turns depend on earlier ones. abandoned_turns: turns
    of conversations that were never sent, because the turn before failed or the load ended.

    Of the client itself: stall_max_s: the longest that the event loop was late for its own tick. clock_step_s: the
    largest change of UTC minus monotonic time. cpu_share: CPU time / time, None under virtual time. workers: processes
    that sent; of several the worst numbers stand. client_fault: why it could not go on, None where it did.
    worker_clocks: of the processes on other machines, whose times count from the start by their own clocks.
    """

    window: Window
    records: tuple[RequestRecord, ...]
    stop: Stop
    started_utc: datetime
    load_s: float
    saved_s: float
    stall_max_s: float
    clock_step_s: float
    cpu_share: float | None = None
    workers: int = 1
    client_fault: str | None = None
    abandoned_turns: int = 0
    worker_clocks: tuple[WorkerClock, ...] = ()


async def run_probe(
    engine: Engine,
    schedule: Schedule,
    referee: Referee | None = None,
    *,
    workers: Dispatch | None = None,
    check: Callable[[], None] = lambda: None,
    observe: Callable[[Progress], None] = lambda _: None,
) -> ProbeFacts:
    """Send the schedule and return the facts, by the schedule's own deadline at the latest.

    workers: who sends in place of this process, to the server that `engine` stands for. check: raises EngineError when
    the engine is known to be dead. observe: called every quarter second. Whatever is in flight at the end is cancelled,
    on an exception too.
    """

    def on_record(record: RequestRecord) -> None:
        if record.in_cohort and referee is not None:
            referee.resolved(record)

    dispatch = Local(engine) if workers is None else workers
    sender = await dispatch.begin(schedule, on_record)
    probe = _Running(sender, schedule, referee)
    try:
        stop = await probe.until_stop(check, observe)
        return await probe.settle(stop)
    finally:
        await sender.abandon()


class _Running:
    """A probe under way."""

    def __init__(self, sender: Sender, schedule: Schedule, referee: Referee | None) -> None:
        self.sender = sender
        self.schedule = schedule
        self.window = schedule.window
        self.referee = referee
        self.clock = running_clock()
        since_start_s = self.clock.now_s() - (sender.origin_s - LEAD_S)
        self.started_utc = datetime.fromtimestamp(self.clock.utc_s() - since_start_s, tz=UTC)

    def now_s(self) -> float:
        """Seconds after the probe's start."""
        return self.clock.now_s() - self.sender.origin_s

    async def until_stop(self, check: Callable[[], None], observe: Callable[[Progress], None]) -> Stop:
        """Wait, looking up every tick, for a reason to stop."""
        sender, tick, looked_s = self.sender, 0, 0
        now_s = 0.0
        while True:
            tick = next_tick(tick, now_s, TICK_S)
            moment_s = sender.origin_s + tick * TICK_S
            with suppress(TimeoutError):
                async with asyncio.timeout_at(moment_s):
                    await sender.over.wait()
            now_s = self.now_s()
            if sender.is_over():
                return Stop.COMPLETE
            sender.look(moment_s)
            check()
            if sender.fault is not None:
                return Stop.CLIENT
            if now_s >= self.window.drain_end_s:
                return Stop.DRAIN_LIMIT
            observe(Progress(now_s, sender.in_flight, sender.sent, sender.resolved, self.window))
            if self.referee is not None and int(tick * TICK_S) > looked_s:
                looked_s = int(tick * TICK_S)
                stop = self.referee.look(now_s, sender.in_flight, sender.sent)
                if stop is not None:
                    return stop

    async def settle(self, stop: Stop) -> ProbeFacts:
        """End the load and collect the facts."""
        load_s = self.now_s()
        sent = await self.sender.stop(load_s, End.UNFINISHED if stop is Stop.DRAIN_LIMIT else End.UNRESOLVED)
        known = {record.index for record in sent.records}
        still_to_come = sum(
            request.in_cohort and request.after is None and request.index not in known
            for request in self.schedule.requests
        )
        return ProbeFacts(
            window=replace(self.window, scheduled=sum(each.in_cohort for each in sent.records) + still_to_come),
            records=sent.records,
            stop=stop,
            started_utc=self.started_utc,
            load_s=load_s,
            saved_s=max(0.0, self.window.window_end_s - load_s) if stop.is_early else 0.0,
            stall_max_s=sent.stall_max_s,
            clock_step_s=sent.clock_step_s,
            cpu_share=sent.cpu_share,
            workers=self.sender.workers,
            client_fault=self.sender.fault,
            abandoned_turns=sent.abandoned_turns,
            worker_clocks=sent.clocks,
        )
