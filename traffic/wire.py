"""One HTTP/1.1 connection of the measured path: a body reaches its reader in the turn of the loop that received it.

No task wakes and nothing is queued for a piece of an answer. Whoever asked is woken once, at the end. Errors are
httpx2's, so that `http_client.describe` has the words for them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import httptools
import httpx2 as httpx

DRAIN_S = 1.0
"""How long the end of a body may lag behind the end of its answer before the connection is given up."""

_HEAD_BYTES = 102_400
_SWITCHING, _OK = 101, 200

Feed = Callable[[bytes, float], bool]
"""Takes a piece of a body and the loop time of its arrival; returns whether it wants more."""


class Sink(Protocol):
    """What reads one response. What it raises, its request raises."""

    def open(self, status: int) -> Feed:
        """The head came, with that status: who reads the body."""
        ...

    @property
    def is_complete(self) -> bool:
        """Asked once nothing more is wanted: whether the rest may come, so that the connection can serve again."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """stall_s: seconds until the next byte. end_by_s: the loop time by which the response must be over."""

    stall_s: float
    end_by_s: float


class HttpWire(asyncio.Protocol):
    """A connection with one exchange at a time; each has one timer, which looks at the limits when it is due."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # dangers for who relays a response; h11 let all of these pass
            lenient_headers=True,
            lenient_chunked_length=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._is_paused = False
        self._is_closed = False
        self._error: Exception | None = None
        self._done: asyncio.Future[float] | None = None
        self._timer: asyncio.TimerHandle
        self._limits: Limits
        self._sink: Sink
        self._feed: Feed | None = None
        self._head_bytes = 0
        self._has_length = False
        self._is_whole = False
        self._is_kept = False
        self._is_draining = False
        self.has_heard = False
        """Whether a byte of the last response came."""
        self.idle_since_s = self._heard_s = self._loop.time()

    @property
    def is_free(self) -> bool:
        """Whether it can serve a request."""
        return not self._is_closed and self._done is None

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Go on in TLS with a server that proves to be `host`. Raises OSError."""
        assert self._transport is not None  # noqa: S101 - it has just been made
        secured = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        if secured is not None:
            self.connection_made(secured)

    async def exchange(self, request: bytes, sink: Sink, limits: Limits) -> float:
        """Send a request and let `sink` read the response; the loop time at which that was over.

        Raises httpx2's ReadTimeout, ReadError and RemoteProtocolError, and TimeoutError at `end_by_s`. Whatever ends it
        before the response is whole, cancellation included, closes the connection.
        """
        assert self._transport is not None  # noqa: S101 - the pool hands out what is connected
        self._sink, self._limits = sink, limits
        self._has_length = self.has_heard = self._is_whole = self._is_kept = self._is_draining = False
        self._head_bytes = 0
        self._heard_s = self._loop.time()
        done: asyncio.Future[float] = self._loop.create_future()
        self._done = done
        self._set_timer()
        try:
            if self._is_closed:
                self._over(self._error)  # before anything could be asked
            else:
                self._transport.write(request)
            return await done
        finally:
            if done.done() and not done.cancelled():
                done.exception()  # asyncio complains of one that a cancellation overtook
            self._timer.cancel()
            self._done = None
            self._feed = None
            self.idle_since_s = self._loop.time()
            if not (self._is_whole and self._is_kept) or self._is_paused:
                self.close()

    def close(self) -> None:
        """Close at once: what was not sent by now will not be missed."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there. It says so whenever bytes are left unsent."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport.set_write_buffer_limits(high=1)  # at 0 asyncio's TLS would call an empty buffer full
        if self._is_closed:
            self._transport.abort()

    def pause_writing(self) -> None:
        """A part of the request waits for the other side."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """All of the request is sent."""
        self._is_paused = False
        self._heard_s = self._loop.time()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._heard_s = self._loop.time()
        if self._parser is None or self._done is None or self._done.done():
            self.close()  # nobody asked
            return
        self.has_heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # nobody asked for another protocol
            self._is_kept = False
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(str(error)))
        if self._feed is None:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self._fail(httpx.RemoteProtocolError("the head of the response does not end"))

    def eof_received(self) -> None:
        """No more bytes will come; the transport closes itself."""
        self._over(None)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over, by an error or without one."""
        self._error = error
        self._over(error)
        self._parser = None  # it knows us as we know it

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A response begins; after one that was whole it is one too many."""
        if self._is_whole:
            self._is_kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer."""
        name = name.lower()
        if name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower()):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """The head is whole; one of an interim response says nothing."""
        assert self._parser is not None  # noqa: S101 - it is the one that calls
        status = self._parser.get_status_code()
        if self._is_whole or (status < _OK and status != _SWITCHING):
            return
        self._is_kept = self._parser.should_keep_alive()
        self._feed = self._sink.open(status)

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._is_draining or self._is_whole or self._feed is None or self._feed(data, self._heard_s):
            return
        self._is_draining = True
        if self._sink.is_complete:
            self._timer.cancel()
            self._set_timer(self._heard_s + DRAIN_S)
        else:
            self._settle()

    def on_message_complete(self) -> None:
        """The response is whole, unless it was an interim one."""
        if self._feed is None:
            self._has_length = False
        elif not self._is_whole:
            self._is_whole = True
            self._settle()

    def _over(self, error: Exception | None) -> None:
        self._is_closed = True
        if error is not None:
            cause = httpx.ReadError(str(error))
            cause.__cause__ = error
            self._fail(cause)
        elif self._feed is None:
            self._fail(httpx.RemoteProtocolError("Server disconnected without sending a response."))
        elif self._has_length and not self._is_draining:
            self._fail(httpx.RemoteProtocolError("the connection closed in the middle of the body"))
        else:
            self._heard_s = self._loop.time()
            self._settle()

    def _settle(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._heard_s)

    def _fail(self, error: BaseException) -> None:
        """The exchange ends with this; where the answer was complete before, with that."""
        self._is_kept = False
        if self._is_draining:
            self._settle()
        elif self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def _set_timer(self, due_s: float | None = None) -> None:
        if due_s is None:
            due_s = min(self._heard_s + self._limits.stall_s, self._limits.end_by_s)
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        now_s = self._loop.time()
        if self._is_draining:
            self._settle()
        elif now_s >= self._limits.end_by_s:
            self._fail(TimeoutError())
        elif now_s >= self._heard_s + self._limits.stall_s:
            self._fail(httpx.ReadTimeout(""))
        else:
            self._set_timer()
