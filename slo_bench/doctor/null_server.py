"""A server that generates nothing and knows the truth: it sends tokens by the clock and logs when it really did.

    python -m slo_bench.doctor.null_server --port 0 --ttft-ms 50 --itl-ms 10

A client that is measured against it can blame nobody. Each request's first word names it; GET /truth gives what
happened since the last look, and how late the server itself was. All times are CLOCK_MONOTONIC, which every process of
a machine shares. The standard library only, and one epoll loop in place of asyncio: an event loop may put a write off
to the end of its turn, and here each stamp stands directly before its system call.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import re
import select
import socket
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import suppress

MODEL_ID = "null"
_BACKLOG = 4096
_PIECE_BYTES = 262_144
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
_FIRST_WORD = re.compile(rb'"content":\s*"([^"\\\s]*)')

_ABOUT = b'{"id":"chatcmpl-0000000000000000","object":"chat.completion.chunk","created":1767225600,"model":"null",'
_CHOICE = b'"choices":[{"index":0,"delta":{%s},"logprobs":null,"finish_reason":%s,"token_ids":null}]'
_USAGE = b',"usage":{"prompt_tokens":%6d,"total_tokens":%6d,"completion_tokens":%6d,"completion_tokens_details":null}'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def _event(payload: bytes) -> bytes:
    """A template of one event in a chunk of its own; every number has a fixed width, so its length is known."""
    event = b"data: %s\n\n" % payload
    numbers = (0,) * event.count(b"%6d")
    return b"%x\r\n%s\r\n" % (len(event % numbers if numbers else event), event)


def _token_event(finish_reason: bytes) -> bytes:
    return _event(_ABOUT + _CHOICE % (b'"content":" token"', finish_reason) + _USAGE + b"}")


_ROLE = _event(_ABOUT + _CHOICE % (b'"role":"assistant","content":""', b"null") + b"}")
_TOKEN, _LAST_TOKEN = _token_event(b"null"), _token_event(b'"length"')
_END = _event(_ABOUT + b'"choices":[]' + _USAGE + b"}") + _event(b"[DONE]") + b"0\r\n\r\n"


class Answer:
    """One request under way; times in CLOCK_MONOTONIC seconds. name: the first word of its prompt."""

    __slots__ = ("arrived_s", "due_s", "first_s", "last_s", "name", "prompt_tokens", "sent", "tokens")

    def __init__(self, body: bytes, arrived_s: float, due_s: float) -> None:
        word, tokens = _FIRST_WORD.search(body), _MAX_TOKENS.search(body)
        self.name = word[1].decode(errors="replace") if word else ""
        self.tokens = max(1, int(tokens[1])) if tokens else 1
        self.prompt_tokens = body.count(b" ", body.find(b'"messages"'), body.find(b"]"))
        self.arrived_s = arrived_s
        self.due_s = due_s
        self.sent = 0
        self.first_s = self.last_s = 0.0

    def next_bytes(self) -> bytes:
        """The next token as it goes over the wire, with the head before the first and the end after the last."""
        self.sent += 1
        counts = (self.prompt_tokens, self.prompt_tokens + self.sent, self.sent)
        is_last = self.sent == self.tokens
        data = (_LAST_TOKEN if is_last else _TOKEN) % counts
        if self.sent == 1:
            data = _HEAD + _ROLE + data
        return data + _END % counts if is_last else data


class Connection:
    """One client's connection."""

    __slots__ = ("answer", "arrived_s", "inbox", "outbox", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.arrived_s = 0.0
        self.answer: Answer | None = None

    def take_request(self) -> tuple[bytes, bytes] | None:
        """(request line, body) of a request that is complete, taken out of the inbox."""
        end = self.inbox.find(_HEAD_END)
        if end < 0:
            return None
        head = bytes(self.inbox[:end])
        length = _LENGTH.search(head)
        size = end + len(_HEAD_END) + (int(length[1]) if length else 0)
        if len(self.inbox) < size:
            return None
        body = bytes(self.inbox[end + len(_HEAD_END) : size])
        del self.inbox[:size]
        return head.partition(b"\r\n")[0], body


class NullServer:
    """The loop. in_step: all tokens leave on one common grid, as from an engine that decodes its batch in steps."""

    def __init__(self, listener: socket.socket, *, ttft_s: float, itl_s: float, in_step: bool = False) -> None:
        self._ttft_s, self._itl_s, self._in_step = ttft_s, itl_s, in_step
        self._listener = listener
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[float, int, Connection, Answer]] = []
        self._numbers = itertools.count()
        self._late_s = array("d")
        self._told: list[tuple[str, float, float, float, int]] = []
        listener.setblocking(False)
        self._poll.register(listener, select.EPOLLIN)

    def serve(self, *, until_closed: int | None = None) -> None:
        """Serve until interrupted, or until that file descriptor is closed at its other end."""
        if until_closed is not None:
            self._poll.register(until_closed, select.EPOLLIN)
        while True:
            for fd, event in self._poll.poll(self._idle_s()):
                if fd == until_closed:
                    return
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._connections:
                    self._serve(self._connections[fd], event)
            self._send_due()

    def _idle_s(self) -> float | None:
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections[sock.fileno()] = Connection(sock)
                self._poll.register(sock, select.EPOLLIN)

    def _serve(self, connection: Connection, event: int) -> None:
        if event & select.EPOLLOUT:
            self._write(connection, b"")
        if not event & ~select.EPOLLOUT:
            return
        now_s = time.monotonic()
        try:
            data = connection.sock.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        if not connection.inbox:
            connection.arrived_s = now_s
        connection.inbox += data
        if connection.answer is None and (request := connection.take_request()) is not None:
            self._handle(connection, *request)

    def _handle(self, connection: Connection, line: bytes, body: bytes) -> None:
        method, path = [*line.split(b" "), b"", b""][:2]
        if (method, path) == (b"POST", b"/v1/chat/completions"):
            due_s = self._step(connection.arrived_s + self._ttft_s)
            connection.answer = Answer(body, connection.arrived_s, due_s)
            self._schedule(connection, connection.answer)
            return
        pages: dict[tuple[bytes, bytes], Callable[[], object]] = {
            (b"GET", b"/health"): dict,
            (b"GET", b"/v1/models"): lambda: {"object": "list", "data": [{"id": MODEL_ID, "object": "model"}]},
            (b"GET", b"/truth"): self.truth,
        }
        page = pages.get((method, path))
        content = json.dumps({"detail": "Not Found"} if page is None else page()).encode()
        status = b"404 Not Found" if page is None else b"200 OK"
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._write(connection, head % (status, len(content)) + content)

    def _step(self, moment_s: float) -> float:
        return math.ceil(moment_s / self._itl_s) * self._itl_s if self._in_step else moment_s

    def _schedule(self, connection: Connection, answer: Answer) -> None:
        heapq.heappush(self._due, (answer.due_s, next(self._numbers), connection, answer))

    def _send_due(self) -> None:
        due = self._due
        while due and due[0][0] <= time.monotonic():
            _, _, connection, answer = heapq.heappop(due)
            if connection.answer is not answer:  # its client has gone
                continue
            data = answer.next_bytes()
            now_s = time.monotonic()
            self._late_s.append(now_s - answer.due_s)
            if answer.sent == 1:
                answer.first_s = now_s
            answer.last_s = now_s
            self._write(connection, data)
            if answer.sent < answer.tokens:
                answer.due_s += self._itl_s
                self._schedule(connection, answer)
            else:
                self._told.append((answer.name, answer.arrived_s, answer.first_s, answer.last_s, answer.tokens))
                connection.answer = None

    def _write(self, connection: Connection, data: bytes) -> None:
        """Hand bytes to the kernel; what it does not take now goes out when the client has read."""
        had_backlog = bool(connection.outbox)
        if had_backlog:
            connection.outbox += data
            data = bytes(connection.outbox)
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        if had_backlog or sent < len(data):
            connection.outbox[:] = data[sent:]
            wanted = select.EPOLLIN | (select.EPOLLOUT if connection.outbox else 0)
            self._poll.modify(connection.sock, wanted)

    def _drop(self, connection: Connection) -> None:
        connection.answer = None
        if connection.sock.fileno() >= 0:
            del self._connections[connection.sock.fileno()]
            connection.sock.close()

    def truth(self) -> object:
        """What happened since the last look: [name, first byte, first token, last token, tokens] of each answer.

        late_p50_s, late_p99_s: how late its tokens left, null where none did.
        """
        late_s = sorted(self._late_s)
        told, self._told, self._late_s = self._told, [], array("d")

        def quantile(share: float) -> float | None:
            return late_s[math.ceil(share * len(late_s)) - 1] if late_s else None

        return {"answers": told, "late_p50_s": quantile(0.5), "late_p99_s": quantile(0.99)}


def main() -> None:
    """Serve; print the base URL once connections are accepted."""
    parser = argparse.ArgumentParser(description="A server that sends tokens by the clock and logs when it did.")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--ttft-ms", type=float, default=50.0, help="from a request's first byte to its first token")
    parser.add_argument("--itl-ms", type=float, default=10.0, help="from token to token")
    parser.add_argument("--in-step", action="store_true", help="all tokens leave on one grid of --itl-ms")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when standard input is closed")
    options = parser.parse_args()
    if options.ttft_ms < 0 or options.itl_ms <= 0:
        parser.error("--ttft-ms must not be negative, --itl-ms must be above 0")
    with socket.create_server(("127.0.0.1", options.port), backlog=_BACKLOG) as listener:
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        server = NullServer(
            listener, ttft_s=options.ttft_ms / 1000, itl_s=options.itl_ms / 1000, in_step=options.in_step
        )
        with suppress(KeyboardInterrupt):
            server.serve(until_closed=sys.stdin.fileno() if options.end_with_stdin else None)


if __name__ == "__main__":
    main()
