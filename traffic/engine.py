"""The port between the load and whatever answers it."""

from __future__ import annotations

from typing import Protocol

from traffic.records import Flight, Request


class Engine(Protocol):
    """Something that answers requests."""

    async def generate(self, request: Request, flight: Flight) -> None:
        """Send the request and write its facts into `flight` until it is over.

        A failed request is written into the flight (`flight.finish`), never raised. On cancellation the request is
        aborted at the engine, the flight keeps what has happened so far, and CancelledError goes on to the caller.
        """
        ...
