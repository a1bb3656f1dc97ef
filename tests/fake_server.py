"""A server that sends exactly the bytes it is told to send, when it is told to, over a real loopback socket.

    async with FakeServer(in_turn(answer(token("Hi"), finish(), DONE))) as server:
        ...
        assert server.received[0].json["max_tokens"] == 2

A handler gets each request and returns its script: (seconds to wait, bytes) in order; None for bytes closes the
connection. A script without that end leaves the connection open for the next request, as keep-alive does. Moments add
up from the arrival of the request, so a slow machine moves one and not all that follow. `memory_server` plays the same
scripts without a socket.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self


class Cut(Enum):
    """How a connection ends without a last word."""

    RESET = "the connection is reset, and what was under way is lost"


Step = tuple[float, bytes | Cut | None]
Script = Sequence[Step]
DONE = "[DONE]"
CLOSE: Step = (0.0, None)
HOLD: Step = (3600.0, b"")
END_OF_CHUNKS: Step = (0.0, b"0\r\n\r\n")


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came; connection: the how-manieth connection it came on."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Handler = Callable[[Received], Script]


def in_turn(*scripts: Script) -> Handler:
    """The scripts one after the other, whatever is asked; the last one again and again."""
    left = list(scripts)

    def handle(_: Received) -> Script:
        return left.pop(0) if len(left) > 1 else left[0]

    return handle


def by_path(pages: Mapping[str, Script | Handler]) -> Handler:
    """A script, or a handler of its own, for each path; 404 elsewhere."""

    def handle(request: Received) -> Script:
        page = pages.get(request.path)
        if page is None:
            return reply(404, {"detail": "Not Found"})
        return page(request) if callable(page) else page

    return handle


def head(content_type: str = "text/event-stream", *more: str, status: int = 200) -> bytes:
    """The head of a response."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {content_type}", *more, "", ""]
    return "\r\n".join(lines).encode()


def chunk(data: bytes) -> bytes:
    """Bytes as one chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(payload: object) -> bytes:
    """A payload, or text as it is, as one event."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def streamed(pieces: Iterable[Step]) -> list[Step]:
    """A chunked event stream, sent piece by piece and properly ended."""
    steps: list[Step] = [(0.0, head("text/event-stream", "Transfer-Encoding: chunked"))]
    steps += [(delay_s, chunk(data) if isinstance(data, bytes) and data else data) for delay_s, data in pieces]
    return [*steps, END_OF_CHUNKS]


def timed(*moments: tuple[float, object], ends: bool = True) -> list[Step]:
    """A chunked event stream of payloads, or of bytes as they are, each so many seconds after the request arrived."""
    steps: list[Step] = [(0.0, head("text/event-stream", "Transfer-Encoding: chunked"))]
    before_s = 0.0
    for at_s, payload in moments:
        steps.append((at_s - before_s, chunk(payload if isinstance(payload, bytes) else event(payload))))
        before_s = at_s
    return [*steps, END_OF_CHUNKS] if ends else steps


def scaled(script: Script, factor: float) -> list[Step]:
    """The same script at another speed."""
    return [(delay_s * factor, data) for delay_s, data in script]


def answer(*payloads: object, gap_s: float = 0.0) -> list[Step]:
    """A chunked event stream of these payloads, gap_s before each."""
    return streamed([(gap_s, event(payload)) for payload in payloads])


def reply(status: int, value: object) -> list[Step]:
    """One JSON body."""
    body = json.dumps(value).encode()
    return [(0.0, head("application/json", f"Content-Length: {len(body)}", status=status) + body)]


def token(text: str | None = "x", *, usage: int | None = None, **delta: object) -> dict[str, object]:
    """A chat chunk; usage: the cumulative count of completion tokens."""
    content = {} if text is None else {"content": text}
    return chat_chunk(content | delta, usage=usage)


def finish(reason: str = "stop", *, usage: int | None = None) -> dict[str, object]:
    """The finishing chunk."""
    return chat_chunk({}, finish_reason=reason, usage=usage)


def chat_chunk(delta: object, *, finish_reason: str | None = None, usage: int | None = None) -> dict[str, object]:
    """Any chat chunk."""
    counts = None if usage is None else {"prompt_tokens": 7, "completion_tokens": usage, "total_tokens": 7 + usage}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], "usage": counts}


def usage(count: int, *, cached: int = 0) -> dict[str, object]:
    """The usage chunk at the end."""
    details = {"cached_tokens": cached}
    return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count, "prompt_tokens_details": details}}


def whole_answer(count: int, *, reason: str = "length", pause_s: float = 0.0) -> list[Step]:
    """`count` tokens, counted as vLLM does; pause_s after the first one, the rest at once."""
    tokens = [token("x", usage=index + 1) for index in range(count)]
    payloads = [token("", usage=0, role="assistant"), *tokens, finish(reason, usage=count), usage(count), DONE]
    return streamed([(pause_s if index == 2 else 0.0, event(payload)) for index, payload in enumerate(payloads)])


class ScriptedServer:
    """Plays scripts on connections, whatever these are.

    together: nobody is answered before so many have asked. idle_s: a connection without a request is closed after that.
    """

    def __init__(self, handler: Handler, *, together: int = 1, idle_s: float | None = None) -> None:
        self._handler = handler
        self._together = together
        self._idle_s = idle_s
        self._all_here = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.received: list[Received] = []
        self.connections = 0
        self.closed_by_client = 0
        self.busy = 0
        """Requests that are being answered."""
        self.most_busy = 0

    async def stop(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection came about."""
        self.connections += 1
        task = asyncio.create_task(self._connection(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            while (request := await self._read(reader, number)) is not None:
                self.received.append(request)
                self.busy += 1
                self.most_busy = max(self.most_busy, self.busy)
                try:
                    if len(self.received) >= self._together:
                        self._all_here.set()
                    await self._all_here.wait()
                    if not await self._play(self._handler(request), reader, writer):
                        break
                finally:
                    self.busy -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, number: int) -> Received | None:
        try:
            async with asyncio.timeout(self._idle_s):
                raw = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, TimeoutError):
            return None
        first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Received(method, path, headers, body, number)

    async def _play(self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open; a client that leaves ends the script."""
        loop = asyncio.get_running_loop()
        gone = asyncio.ensure_future(reader.read(1))  # nothing but the end: no client of ours pipelines
        moment_s = loop.time()
        try:
            for delay_s, data in script:
                moment_s += delay_s
                if delay_s and await _happens_within(gone, moment_s - loop.time()):
                    self.closed_by_client += 1
                    return False
                if isinstance(data, Cut):
                    _reset(writer)
                    return False
                if data is None:
                    return False
                writer.write(data)
                await writer.drain()
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        return True


class FakeServer(ScriptedServer):
    """See the module. host, port: where to listen."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        together: int = 1,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(handler, together=together)
        self._host = host
        self._port = port
        self._tls = tls

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self.serve, self._host, self._port, backlog=1024, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self.stop()
        await self._server.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Drop a connection so that the other side is told; over a socket that takes a linger time of zero."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def eventually(condition: Callable[[], object], limit_s: float = 5.0) -> None:
    """Return as soon as the condition holds; TimeoutError after limit_s."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event to offer
            await asyncio.sleep(0.002)


async def _happens_within(event: asyncio.Future[bytes], limit_s: float) -> bool:
    done, _ = await asyncio.wait({event}, timeout=max(0.0, limit_s))
    return bool(done)
