"""Messages between a bench and its load workers, through a socket pair: four bytes of length, then a pickle.

Pickles, since both ends are our own processes of one user and one version, joined by a socket without a name.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from dataclasses import dataclass
from typing import Self

from traffic.records import End, RequestRecord
from traffic.schedule import Schedule
from traffic.sender import Sent

_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Prepare:
    """To a worker: this is your part; say `Ready` when you could begin."""

    part: Schedule


@dataclass(frozen=True, slots=True)
class Begin:
    """To a worker: the load starts at this moment of its machine's CLOCK_MONOTONIC."""

    origin_s: float


@dataclass(frozen=True, slots=True)
class Halt:
    """To a worker: the load is over; see `Sender.stop`."""

    load_s: float
    cohort_end: End


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: what it was told to get ready for may come."""


@dataclass(frozen=True, slots=True)
class Report:
    """From a worker, several times a second: requests that ended since the last one, and its counts."""

    records: tuple[RequestRecord, ...]
    sent: int
    in_flight: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class Last:
    """From a worker, in answer to `Halt`: everything that it sent."""

    sent: Sent


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: what went wrong; it is of no use any more."""

    error: Exception


class Channel:
    """One end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """A channel over a connected socket, which it owns from now on."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def send(self, message: object) -> None:
        """Send a message. Raises ConnectionError when a side has hung up."""
        if self._writer.is_closing():
            raise ConnectionResetError
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._writer.write(len(body).to_bytes(_LENGTH_BYTES))
        self._writer.write(body)
        await self._writer.drain()

    async def receive(self) -> object:
        """The next message; None when the other side is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return pickle.loads(body)  # noqa: S301 - from a process of our own, through a socket that nobody else has

    def close(self) -> None:
        """Hang up; the other side receives None."""
        self._writer.close()
