"""A machine's monotonic clock over a connection of its own: one byte asks, eight answer. It tells nothing else.

Calls that share a way with other messages take a millisecond; here a round trip is little more than the network's.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from traffic.clock_offset import ROUND_TRIPS, ClockOffset, measured_offset

_SECONDS = struct.Struct("!d")
_ASK = b"?"


async def tell_clock(host: str) -> tuple[asyncio.Server, int]:
    """Answer with CLOCK_MONOTONIC on a free port of this address, until the server is closed."""
    server = await asyncio.start_server(_tell, host, 0)
    return server, server.sockets[0].getsockname()[1]


async def _tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.read(1):
            writer.write(_SECONDS.pack(time.monotonic()))
    except ConnectionError:
        pass  # whoever asked is gone
    finally:
        writer.close()


async def offset_at(host: str, port: int, trips: int = ROUND_TRIPS) -> ClockOffset:
    """The clock that is told there beside this loop's. Raises OSError; it has no deadline of its own."""
    async with _line(host, port) as (reader, writer):

        async def ask() -> float:
            writer.write(_ASK)
            try:
                (there_s,) = _SECONDS.unpack(await reader.readexactly(_SECONDS.size))
            except asyncio.IncompleteReadError:
                raise ConnectionResetError from None
            return float(there_s)

        return await measured_offset(ask, asyncio.get_running_loop().time, trips)


@asynccontextmanager
async def _line(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()
