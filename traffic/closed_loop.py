"""A closed loop: N requests kept in flight. Named so everywhere; it measures no capacity.

A closed loop slows down with its server, so a slow server is asked less: latencies count from the send, and no rate can
be claimed from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from traffic.clock import next_tick, running_clock, sleep_until
from traffic.engine import Engine
from traffic.in_flight import InFlight
from traffic.probe import TICK_S, ProbeFacts, Progress, Stop
from traffic.records import End, Request, RequestRecord
from traffic.schedule import Window
from traffic.sender import LEAD_S
from traffic.vitals import Vitals

PAUSE_AFTER_FAILURE_S = 0.1
"""A server that refuses at once must not be asked as fast as this machine can."""

LEAST_GAP_S = 0.0001
"""Between an answer and the next request: whoever thinks no time at all would stop the clock under virtual time."""


async def run_closed(
    engine: Engine,
    make: Callable[[int], Request],
    window: Window,
    *,
    check: Callable[[], None] = lambda: None,
    observe: Callable[[Progress], None] = lambda _: None,
) -> ProbeFacts:
    """Keep window.concurrency requests in flight until the cohort has ended, at the latest until drain_end_s.

    make: the request with that index; its due time and cohort are set here, at the send. The cohort is every request
    sent inside the window.
    """
    loop = _Loop(engine, make, window)
    try:
        return await loop.run(check, observe)
    finally:
        await loop.abandon()


class _Loop:
    """A closed loop under way."""

    def __init__(self, engine: Engine, make: Callable[[int], Request], window: Window) -> None:
        self.clock = running_clock()
        self.origin_s = self.clock.now_s() + LEAD_S
        self.make = make
        self.window = window
        self.sent = 0
        self.open_cohort = 0
        self.cohort = 0
        self.air = InFlight(engine, self.origin_s, self._ended)
        self.failed: set[int] = set()
        self.workers: list[asyncio.Task[None]] = []

    def _ended(self, record: RequestRecord) -> None:
        self.open_cohort -= record.in_cohort
        if record.has_failed:
            self.failed.add(record.index)

    def now_s(self) -> float:
        return self.clock.now_s() - self.origin_s

    async def _work(self) -> None:
        while True:
            now_s = self.now_s()
            in_cohort = self.window.window_start_s <= now_s < self.window.window_end_s
            request = replace(self.make(self.sent), due_s=now_s, in_cohort=in_cohort)
            self.sent += 1
            self.cohort += in_cohort
            self.open_cohort += in_cohort
            await asyncio.wait((self.air.send(request),))
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S if request.index in self.failed else LEAST_GAP_S)

    async def run(self, check: Callable[[], None], observe: Callable[[Progress], None]) -> ProbeFacts:
        started_utc, vitals = self.clock.utc(), Vitals(self.clock)
        await sleep_until(self.origin_s)
        self.workers = [asyncio.create_task(self._work()) for _ in range(self.window.concurrency or 1)]
        stop, tick, now_s = None, 0, 0.0
        while stop is None:
            tick = next_tick(tick, now_s, TICK_S)
            moment_s = self.origin_s + tick * TICK_S
            await sleep_until(moment_s)
            now_s = self.now_s()
            vitals.look(moment_s)
            self.air.check()
            check()
            for worker in self.workers:
                if worker.done():
                    worker.result()
            observe(Progress(now_s, len(self.air), self.sent, len(self.air.records), self.window))
            if now_s >= self.window.drain_end_s:
                stop = Stop.DRAIN_LIMIT
            elif now_s >= self.window.window_end_s and not self.open_cohort:
                stop = Stop.COMPLETE
        load_s, cpu_share = self.now_s(), vitals.cpu_share
        await self._stop(End.UNFINISHED)
        return ProbeFacts(
            window=replace(self.window, scheduled=self.cohort),
            records=tuple(sorted(self.air.records, key=lambda record: record.index)),
            stop=stop,
            started_utc=started_utc,
            load_s=load_s,
            saved_s=0.0,
            stall_max_s=vitals.stall_max_s,
            clock_step_s=vitals.clock_step_s,
            cpu_share=cpu_share,
        )

    async def _stop(self, cohort_end: End) -> None:
        for worker in self.workers:
            worker.cancel()
        await self.air.stop_all(lambda request: cohort_end if request.in_cohort else End.UNRESOLVED)

    async def abandon(self) -> None:
        """Leave nothing behind."""
        if len(self.air) or not all(worker.done() for worker in self.workers):
            await self._stop(End.UNRESOLVED)
