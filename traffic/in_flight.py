"""The requests that are under way, and their end: nobody is lost, everybody has a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from traffic.engine import Engine
from traffic.errors import EngineError
from traffic.records import End, Flight, Request, RequestRecord, freeze

CANCEL_LIMIT_S = 10.0
"""An engine that does not let go of a cancelled request for this long is broken."""


class InFlight:
    """Starts requests and keeps the records of those that ended."""

    def __init__(self, engine: Engine, origin_s: float, on_record: Callable[[RequestRecord], None]) -> None:
        self._engine = engine
        self._origin_s = origin_s
        self._on_record = on_record
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._flights: dict[int, tuple[Request, Flight]] = {}
        self._fault: BaseException | None = None
        self.records: list[RequestRecord] = []

    def __len__(self) -> int:
        return len(self._flights)

    def send(self, request: Request, flight: Flight | None = None) -> asyncio.Task[None]:
        """Start a request now. flight: where its facts go, for a caller that wants to see them too."""
        flight = flight or Flight()
        task = asyncio.create_task(self._engine.generate(request, flight), name=f"request-{request.index}")
        self._tasks[request.index] = task
        self._flights[request.index] = (request, flight)
        task.add_done_callback(lambda done: self._ended(request.index, done))
        return task

    def _ended(self, index: int, task: asyncio.Task[None]) -> None:
        del self._tasks[index]
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault
        if index not in self._flights:  # stop_all writes the record
            return
        request, flight = self._flights.pop(index)
        self._keep(freeze(request, flight, self._origin_s, end=End.FAILED))

    def _keep(self, record: RequestRecord) -> None:
        self.records.append(record)
        self._on_record(record)

    def check(self) -> None:
        """Raise what an engine raised: it writes failed requests into flights, so this is a fault of the program."""
        if self._fault is not None:
            raise self._fault

    async def stop_all(self, end: Callable[[Request], End]) -> None:
        """Cancel what is under way; each request gets its record with the end that `end` names.

        Raises EngineError when a request does not end within CANCEL_LIMIT_S.
        """
        tasks = list(self._tasks.values())
        flights, self._flights = self._flights, {}
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=CANCEL_LIMIT_S)
            if stuck:
                raise EngineError(f"{len(stuck)} cancelled requests did not end within {CANCEL_LIMIT_S:.0f} s")
        for request, flight in flights.values():
            self._keep(freeze(request, flight, self._origin_s, end=end(request)))
        self.check()
