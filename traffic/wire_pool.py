"""The connections of the measured path: as many as there are requests, and the idle one that served last goes first."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

import httpx2 as httpx

from traffic.connect import Connect
from traffic.http_pool import KEEP_ALIVE_S
from traffic.wire import HttpWire, Limits, Sink

_DROPPED = (httpx.RemoteProtocolError, httpx.ReadError)


class DroppedError(Exception):
    """A connection that had been idle was given up under a request, before a byte of the response came (R11)."""


class WirePool:
    """Connections to one server. No limit on their number: waiting for one would make the load a closed loop (R10).

    keep_alive false: each request has a connection of its own. Taking one and giving it back costs the same however
    many there are.
    """

    def __init__(self, connect: Connect, *, tls: ssl.SSLContext, keep_alive: bool, connect_s: float) -> None:
        self._connect = connect
        tls.set_alpn_protocols(["http/1.1"])
        self._tls = tls
        self._keep_alive = keep_alive
        self._connect_s = connect_s
        self._idle: deque[HttpWire] = deque()
        self._busy: set[HttpWire] = set()

    async def exchange(self, url: httpx.URL, request: bytes, sink: Sink, limits: Limits) -> float:
        """Send a request to the server of `url`; see `HttpWire.exchange`.

        Raises DroppedError when it can go out once more, ConnectTimeout and ConnectError as well.
        """
        wire = self._take()
        is_fresh = wire is None
        if wire is None:
            wire = await self._fresh(url, limits)
        self._busy.add(wire)
        try:
            return await wire.exchange(request, sink, limits)
        except _DROPPED as error:
            if is_fresh or wire.has_heard:
                raise
            raise DroppedError from error
        finally:
            self._busy.discard(wire)
            self._give_back(wire)

    def close(self) -> None:
        """Close every connection, and whatever is still being connected once it has served."""
        self._keep_alive = False
        for wire in (*self._idle, *self._busy):
            wire.close()
        self._idle.clear()

    def _take(self) -> HttpWire | None:
        """The connection that has been idle for the shortest time; None where none can serve."""
        loop = asyncio.get_running_loop()
        while self._idle:
            wire = self._idle.pop()
            if wire.is_free and loop.time() <= wire.idle_since_s + KEEP_ALIVE_S:
                return wire
            wire.close()
        return None

    def _give_back(self, wire: HttpWire) -> None:
        if not self._keep_alive:
            wire.close()
        if wire.is_free:
            self._idle.append(wire)
        while self._idle and wire.idle_since_s > self._idle[0].idle_since_s + KEEP_ALIVE_S:
            self._idle.popleft().close()

    async def _fresh(self, url: httpx.URL, limits: Limits) -> HttpWire:
        """A new connection. Raises ConnectTimeout, ConnectError; TimeoutError at the limit of the whole response."""
        loop = asyncio.get_running_loop()
        by_s = loop.time() + self._connect_s
        made: list[HttpWire] = []

        def make() -> HttpWire:
            made.append(HttpWire())
            return made[-1]

        try:
            async with asyncio.timeout_at(min(by_s, limits.end_by_s)):
                is_tls = url.scheme == "https"
                host = url.raw_host.decode("ascii")
                _, wire = await self._connect(make, host, url.port or (443 if is_tls else 80))
                if is_tls:
                    await wire.start_tls(self._tls, host)
        except BaseException as error:
            for wire in made:
                wire.close()
            if not isinstance(error, OSError):
                raise
            if not isinstance(error, TimeoutError) or error.errno is not None:
                raise httpx.ConnectError(str(error)) from error
            if limits.end_by_s <= by_s:
                raise
            raise httpx.ConnectTimeout(str(error)) from error
        return wire
