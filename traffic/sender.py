"""Who sends a schedule: the port, and the sender that lives in this process.

`traffic.workers` has the other one, which lets several processes send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from traffic.clock import running_clock, sleep_until
from traffic.clock_offset import WorkerClock
from traffic.engine import Engine
from traffic.in_flight import InFlight
from traffic.later_turns import LaterTurns
from traffic.records import End, Flight, Request, RequestRecord, freeze
from traffic.schedule import Schedule
from traffic.vitals import Vitals

LEAD_S = 0.05
"""Between the call and the start of the load, so that the first request is not late by the set-up."""

OnRecord = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a schedule.

    records: one of every request that was due before the load's end, in order. abandoned_turns: later turns never sent,
    because the turn before failed or the load ended. stall_max_s, clock_step_s, cpu_share: see `traffic.vitals`; of
    several processes the worst. clocks: of the workers on other machines.
    """

    records: tuple[RequestRecord, ...]
    abandoned_turns: int
    stall_max_s: float
    clock_step_s: float
    cpu_share: float | None
    clocks: tuple[WorkerClock, ...] = ()


class Sender(Protocol):
    """A load under way; it ends by `stop` or `abandon`.

    over: set when the last request of the cohort ends after the window's end. workers: how many processes send.
    """

    origin_s: float
    over: asyncio.Event
    workers: int

    @property
    def sent(self) -> int:
        """Requests sent so far."""
        ...

    @property
    def resolved(self) -> int:
        """Requests that have ended."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        ...

    @property
    def fault(self) -> str | None:
        """Why this client cannot go on; what it measured is no result then."""
        ...

    def is_over(self) -> bool:
        """Whether every request of the cohort has ended and none can join it: never before the window's end."""
        ...

    def look(self, moment_s: float) -> None:
        """A tick that was meant for that loop time; raises what the engine raised, a fault of the program."""
        ...

    async def stop(self, load_s: float, cohort_end: End) -> Sent:
        """End the load, and cancel what is under way.

        load_s: the load's end, after its start. cohort_end: the end of requests of the cohort that had none; all others
        are UNRESOLVED.
        """
        ...

    async def abandon(self) -> None:
        """Leave nothing behind; nothing to do after `stop`."""
        ...


class Dispatch(Protocol):
    """Something that starts a sender."""

    async def begin(self, schedule: Schedule, on_record: OnRecord) -> Sender:
        """Start sending, a moment from now. on_record: called with each request that ends."""
        ...


class Local:
    """Sends from this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def begin(self, schedule: Schedule, on_record: OnRecord) -> LocalSender:
        """Start at once."""
        return LocalSender(self._engine, schedule, on_record, origin_s=running_clock().now_s() + LEAD_S)


class LocalSender:
    """Sends a schedule from the running loop. origin_s: loop time of the load's start."""

    def __init__(self, engine: Engine, schedule: Schedule, on_record: OnRecord, *, origin_s: float) -> None:
        self.origin_s = origin_s
        self.over = asyncio.Event()
        self.workers = 1
        self.sent = 0
        self.fault: str | None = None
        self._clock = running_clock()
        self._vitals = Vitals(self._clock)
        self._window = schedule.window
        self._on_record = on_record
        self._later = LaterTurns(schedule.requests, schedule.window)
        self._first = [request for request in schedule.requests if request.after is None]
        self._open = sum(request.in_cohort for request in self._first)
        self._answers: dict[int, tuple[Request, list[str]]] = {}
        self._due: dict[int, tuple[Request, asyncio.Task[None]]] = {}
        self._air = InFlight(engine, origin_s, self._ended)
        self._sent_first = 0
        self._is_stopping = False
        self._task = asyncio.create_task(self._send(), name="sender")

    @property
    def resolved(self) -> int:
        """Requests that have ended."""
        return len(self._air.records)

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._air)

    def is_over(self) -> bool:
        """Whether every request of the cohort has ended, after the window's end."""
        return not self._open and self._clock.now_s() - self.origin_s >= self._window.window_end_s

    def look(self, moment_s: float) -> None:
        """A tick that was meant for that loop time."""
        self._vitals.look(moment_s)
        self._air.check()
        if self._task.done():
            self._task.result()

    async def _send(self) -> None:
        for request in self._first:
            await sleep_until(self.origin_s + request.due_s)
            self._sent_first += 1
            self._launch(request)

    async def _send_later(self, request: Request) -> None:
        await sleep_until(self.origin_s + request.due_s)
        del self._due[request.index]
        self._launch(request)

    def _launch(self, request: Request) -> None:
        flight = Flight()
        if self._later.follows(request.index):
            flight.answer = []
            self._answers[request.index] = (request, flight.answer)
        self.sent += 1
        self._air.send(request, flight)

    def _ended(self, record: RequestRecord) -> None:
        self._open -= record.in_cohort
        self._on_record(record)
        request, answer = self._answers.pop(record.index, (None, []))
        if request is not None and not self._is_stopping:
            self._follow(self._later.next_turn(request, record, answer))
        if self.is_over():
            self.over.set()

    def _follow(self, later: Request | None) -> None:
        if later is not None:
            self._open += later.in_cohort
            task = asyncio.create_task(self._send_later(later), name=f"turn-{later.index}")
            self._due[later.index] = (later, task)

    async def stop(self, load_s: float, cohort_end: End) -> Sent:
        """End the load; see `Sender`. Raises EngineError when a request cannot be cancelled."""

        def end(request: Request) -> End:
            return cohort_end if request.in_cohort else End.UNRESOLVED

        self._is_stopping = True
        self._task.cancel()
        due = [*self._first[self._sent_first :], *(request for request, _ in self._due.values())]
        for _, task in self._due.values():
            task.cancel()
        self._vitals.look(self._clock.now_s())
        cpu_share = self._vitals.cpu_share
        await self._air.stop_all(end)
        unsent = [
            freeze(request, Flight(), self.origin_s, end=end(request)) for request in due if request.due_s < load_s
        ]
        records = sorted([*self._air.records, *unsent], key=lambda record: record.index)
        return Sent(
            records=tuple(records),
            abandoned_turns=self._later.abandoned({record.index for record in records}),
            stall_max_s=self._vitals.stall_max_s,
            clock_step_s=self._vitals.clock_step_s,
            cpu_share=cpu_share,
        )

    async def abandon(self) -> None:
        """Leave nothing behind."""
        if not self._is_stopping:
            await self.stop(0.0, End.UNRESOLVED)
