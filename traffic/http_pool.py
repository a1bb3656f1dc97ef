"""httpx2's connections over a `Connect` of ours, for the calls beside the load: one future per wait, no limit.

httpcore2 asks its network for a stream with read and write. Its own one makes a cancel scope and two system calls for
every piece that arrives, and cannot be joined to a server in memory. What is measured goes through `wire_pool`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, cast

import httpcore2 as httpcore
import httpx2 as httpx

from traffic.connect import Connect

KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn closes its end (R11)."""

_NAMES = "ConnectTimeout ReadTimeout WriteTimeout PoolTimeout ConnectError ReadError WriteError".split()
_NAMES += "LocalProtocolError RemoteProtocolError UnsupportedProtocol".split()
_TRANSLATED: dict[type[Exception], type[httpx.TransportError]] = {
    getattr(httpcore, name): getattr(httpx, name) for name in _NAMES
}
_FAULTS = tuple(_TRANSLATED)


class Stream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One connection with one reader."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._pieces: list[bytes] = []
        self._has_ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._idle_since_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._pieces.append(data)
        self._wake()

    def eof_received(self) -> None:
        """No more bytes will come; the transport closes itself."""
        self._has_ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over, by an error or without one."""
        self._has_ended = True
        self._error = error
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        """The other side takes no more for now."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """It does again, or there is nobody left to wait for."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's signature
        """What has arrived; b"" at the end. Raises ReadTimeout when nothing came for that many seconds, ReadError."""
        if not self._pieces and not self._has_ended:
            self._reader = self._loop.create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._reader
            except TimeoutError as error:
                raise httpcore.ReadTimeout from error
            finally:
                self._reader = None
        if not self._pieces:
            if self._error is not None:
                raise httpcore.ReadError(str(self._error)) from self._error
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if len(data) > max_bytes:
            self._pieces.append(data[max_bytes:])
        self._idle_since_s = self._loop.time()
        return data[:max_bytes]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Hand over bytes; wait while the other side takes none. Raises WriteTimeout, WriteError."""
        if self._has_ended or self._transport.is_closing():
            raise httpcore.WriteError("the connection is closed") from self._error
        self._transport.write(buffer)
        if self._room is not None:
            try:
                async with asyncio.timeout(timeout):
                    await self._room
            except TimeoutError as error:
                raise httpcore.WriteTimeout from error

    async def aclose(self) -> None:
        """Close at once: what was not sent by now will not be missed."""
        self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Stream:
        """Go on in TLS. Raises ConnectTimeout, ConnectError."""
        try:
            async with asyncio.timeout(timeout):
                secured = await self._loop.start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except OSError as error:
            self._transport.abort()
            raise _no_connection(error) from error
        assert secured is not None  # noqa: S101 - the type is for loops without TLS
        self._transport = secured
        return self

    def get_extra_info(self, info: str) -> Any:
        """is_readable, asked of an idle connection: whether it must not be used again. Nothing else is known."""
        if info != "is_readable":
            return None
        return self._has_ended or bool(self._pieces) or self._loop.time() > self._idle_since_s + KEEP_ALIVE_S

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Network(httpcore.AsyncNetworkBackend):
    """httpcore2's door to the network."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> Stream:
        """A new connection. Raises ConnectTimeout, ConnectError."""
        try:
            async with asyncio.timeout(timeout):
                _, stream = await self._connect(Stream, host, port)
        except OSError as error:
            raise _no_connection(error) from error
        return stream


def _no_connection(error: OSError) -> httpcore.ConnectTimeout | httpcore.ConnectError:
    """A timeout of ours has no errno; the operating system's own is an error like any other."""
    is_ours = isinstance(error, TimeoutError) and error.errno is None
    return httpcore.ConnectTimeout(str(error)) if is_ours else httpcore.ConnectError(str(error))


class PoolTransport(httpx.AsyncBaseTransport):
    """httpx2's transport over httpcore2's pool, without limits; keep_alive false: one connection for each request."""

    def __init__(self, connect: Connect, *, tls: ssl.SSLContext, keep_alive: bool) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=None,
            max_keepalive_connections=None if keep_alive else 0,
            network_backend=_Network(connect),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its response, unread."""
        url = request.url
        core = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            response = await self._pool.handle_async_request(core)
        except _FAULTS as error:
            raise _TRANSLATED[type(error)](str(error)) from error
        assert isinstance(response.stream, AsyncIterable)  # noqa: S101 - the pool's other half is synchronous
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response.stream),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    """A response's body, with httpx2's errors."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._stream:
                yield piece
        except _FAULTS as error:
            raise _TRANSLATED[type(error)](str(error)) from error

    async def aclose(self) -> None:
        """Give the connection back, or close it."""
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()
