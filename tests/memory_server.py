"""The scripted server of `fake_server` over connections in memory: no sockets, so a minute of virtual time is quick.

async with MemoryServer(in_turn(whole_answer(4))) as server:
    async with Endpoint(server.url, client=server.client) as endpoint:
        ...
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from fake_server import Handler, ScriptedServer

from traffic.connect import Connect, Wire
from traffic.http_client import Bounds, Client, build_client

URL = "http://10.0.0.1:8000"
"""An address, not a name: nothing has to be resolved."""


class MemoryTransport(asyncio.Transport):
    """One end of a connection. What is written arrives in the next turn of the loop, one piece for each write."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._is_closing = False
        self._is_lost = False
        self.other = self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._is_closing:
            self._loop.call_soon(self.other.take, bytes(data))

    def take(self, data: bytes) -> None:
        if not self._is_lost:
            self._protocol.data_received(data)

    def end(self) -> None:
        """The other side closed."""
        if not self._is_lost and not self._protocol.eof_received():
            self.close()

    def lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_closing = self._is_lost = True
            self._protocol.connection_lost(error)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.other.end)
            self._loop.call_soon(self.lose, None)

    def abort(self) -> None:
        """Close, and the other side is told that the connection was reset."""
        if not self._is_lost:
            self._is_closing = True
            self._loop.call_soon(self.other.lose, ConnectionResetError(errno.ECONNRESET, "reset"))
            self._loop.call_soon(self.lose, None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever left unsent."""

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - nothing is known
        return default


def joined(client: asyncio.Protocol, server: asyncio.Protocol) -> MemoryTransport:
    """A connection between two protocols; the client's end of it."""
    near, far = MemoryTransport(client), MemoryTransport(server)
    near.other, far.other = far, near
    client.connection_made(near)
    server.connection_made(far)
    return near


class MemoryServer(ScriptedServer):
    """See the module.

    refuse: the errno with which a connection fails, asked for each with the number that were tried before it; None lets
    it come about. connect_s: how long that takes. idle_s: see `ScriptedServer`.
    """

    url = URL

    def __init__(
        self,
        handler: Handler,
        *,
        refuse: Callable[[int], int | None] = lambda _: None,
        connect_s: float = 0.0,
        idle_s: float | None = None,
    ) -> None:
        super().__init__(handler, idle_s=idle_s)
        self._refuse = refuse
        self._connect_s = connect_s
        self.tried = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def connect(
        self,
        make: Callable[[], Wire],
        host: str,  # noqa: ARG002 - there is one server only
        port: int,  # noqa: ARG002
    ) -> tuple[asyncio.Transport, Wire]:
        """A `Connect`."""
        number = self._refuse(self.tried)
        self.tried += 1
        if self._connect_s:
            await asyncio.sleep(self._connect_s)
        if number is not None:
            raise OSError(number, os.strerror(number))
        wire = make()
        far = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self.serve)
        return joined(wire, far), wire

    def client(
        self,
        *,
        headers: Mapping[str, str],
        bounds: Bounds,
        tls: ssl.SSLContext,
        keep_alive: bool,
        connect: Connect,  # noqa: ARG002 - the network stays out of it
    ) -> Client:
        """A `BuildClient` over these connections."""
        return build_client(headers=headers, bounds=bounds, tls=tls, keep_alive=keep_alive, connect=self.connect)
