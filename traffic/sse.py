"""Server-Sent Events read from bytes, and what one answer's events mean. Pure: no clock, no socket.

`SseParser` turns bytes, however they were cut, into payloads; `interpret` turns one payload into a `Chunk`;
`AnswerReader` turns the chunks of one answer into the facts of its `Flight`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from traffic.records import End, Flight, Request

NOT_STREAMED = "the server does not stream"
"""How the error of an answer begins that came as one body instead of events."""

_DECODER = json.JSONDecoder()
_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 65_536
_ERROR_CHARS = 300
_CALLS = ("tool_calls", "function_call", "refusal")
_FIELDS = (b":", b"data:", b"event:", b"id:", b"retry:")


class SseParser:
    """An incremental parser of an event stream.

    A payload is complete at the blank line that ends its event, so a multi-byte character is never decoded in halves
    and a CR|LF that was cut in two ends one line, not two. Comments, events without data and unknown fields give
    nothing.
    """

    __slots__ = ("_data", "_is_first_line", "_parts", "_skip_lf")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._data: list[bytes] = []
        self._skip_lf = False
        self._is_first_line = True

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes completed."""
        if data.startswith(b"data: ") and not (self._parts or self._data or self._skip_lf):
            # What servers send almost always: whole events of one line each, read without a look at every line.
            payloads = data[6:-2].split(b"\n\ndata: ")
            is_plain = data.endswith(b"\n\n") and data.count(b"\n") == 2 * len(payloads) and b"\r" not in data
            if is_plain and b"" not in payloads:
                self._is_first_line = False
                return payloads
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if b"\n" not in data and b"\r" not in data:
            if data:
                self._parts.append(data)
            return []
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
        lines = data.splitlines()
        if data.endswith(b"\r"):
            self._skip_lf = True
        elif not data.endswith(b"\n"):
            self._parts.append(lines.pop())
        payloads = []
        for line in lines:
            self._take_line(line, payloads)
        return payloads

    def close(self) -> list[bytes]:
        """The payload that the end of the body left without its blank line, if any."""
        payloads: list[bytes] = []
        if self._parts:
            line = b"".join(self._parts)
            self._parts.clear()
            self._take_line(line, payloads)
        self._take_line(b"", payloads)
        return payloads

    def _take_line(self, line: bytes, payloads: list[bytes]) -> None:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BOM)
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line and self._data:
            payload = b"\n".join(self._data)
            self._data.clear()
            if payload:
                payloads.append(payload)


class Chunk(NamedTuple):
    """What one payload says. A named tuple: one is made per token, and a frozen dataclass costs six times as much.

    has_choices: it speaks of the answer (a usage chunk does not). has_tokens: it carries visible text, reasoning or a
    tool call; a role-only, empty, usage or finish chunk does not. Token counts are the server's and, on every chunk
    but the last, cumulative; None where it says nothing. error: the server's own words.
    """

    text: str = ""
    reasoning: str = ""
    has_choices: bool = False
    has_tokens: bool = False
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    is_done: bool = False
    is_malformed: bool = False


_DONE = Chunk(is_done=True)
_MALFORMED = Chunk(is_malformed=True)


def interpret(payload: bytes) -> Chunk:
    """The meaning of one payload of a chat or completion stream. Never raises: what is no object is malformed."""
    if payload.strip() == b"[DONE]":
        return _DONE
    try:
        value = _parsed(payload.decode())
    except (ValueError, RecursionError):
        return _MALFORMED
    if not isinstance(value, dict):
        return _MALFORMED
    choices = value.get("choices")
    if choices is None or "error" in value or value.get("object") == "error":
        error = error_message(value)
        if error is not None:
            return Chunk(error=error)
    text, reasoning, has_tokens, finish_reason = "", "", False, None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(choice, dict):
        text, reasoning, has_tokens = _content(choice)
        reason = choice.get("finish_reason")
        finish_reason = reason if isinstance(reason, str) and reason else None
    return Chunk(text, reasoning, choice is not None, has_tokens, finish_reason, *_usage(value.get("usage")))


def _parsed(text: str) -> object:
    """What `json.loads` gives, which looks for white space at both ends first: there hardly ever is any."""
    try:
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def error_message(value: object) -> str | None:
    """The message of an error object in any of the shapes that servers use, as one short line; None where it is none.

    Shapes: {"error": {"message": ...}}, {"error": "..."}, {"object": "error", "message": ...}, and FastAPI's
    {"detail": ...} where there are no choices beside it.
    """
    if not isinstance(value, dict):
        return None
    inner: object = value.get("error")
    if not inner and value.get("object") == "error":
        inner = value
    if not inner and "choices" not in value:
        inner = value.get("detail")
    if not inner:
        return None
    if isinstance(inner, dict):
        message = inner.get("message") or inner.get("detail") or inner.get("type")
        inner = message if isinstance(message, str) else json.dumps(inner)
    return one_line(inner if isinstance(inner, str) else json.dumps(inner))


def one_line(text: str) -> str:
    """`text` as one line of at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _ERROR_CHARS else line[: _ERROR_CHARS - 1] + "…"


def _content(choice: dict[str, object]) -> tuple[str, str, bool]:
    """Text, reasoning, and whether there are tokens, of a chat delta or a completion's text."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return (text, "", True) if isinstance(text, str) and text else ("", "", False)
    text = delta.get("content")
    reasoning = delta.get("reasoning") or delta.get("reasoning_content")
    has_tokens = bool(text or reasoning or any(delta.get(key) for key in _CALLS))
    return text if isinstance(text, str) else "", reasoning if isinstance(reasoning, str) else "", has_tokens


def _usage(usage: object) -> tuple[int | None, int | None, int | None]:
    """Prompt, completion and cached tokens."""
    if not isinstance(usage, dict):
        return None, None, None
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), cached


def _count(value: object) -> int | None:
    """A count of tokens, or None for anything else; JSON's true is no count."""
    return value if type(value) is int and value >= 0 else None


class AnswerReader:
    """Reads one answer's body into its flight; every moment is an argument, in the event loop's seconds.

    Tokens: the server's final count, else its cumulative one, else the number of token-bearing chunks, marked as an
    estimate. A chunk without text whose cumulative count rose bears a token (half of a UTF-8 character, an end-of-text
    token). Where the only sign of tokens is the final count, the finishing chunk is taken as their moment: late, so
    the server is never flattered. The answer ends at its last event, not when the connection does.
    """

    __slots__ = (
        "_body_head",
        "_finish_s",
        "_flight",
        "_has_payload",
        "_last_event_s",
        "_parser",
        "_request",
        "_token_chunks",
        "_usage_tokens",
    )

    def __init__(self, request: Request, flight: Flight) -> None:
        self._request = request
        self._flight = flight
        self._parser = SseParser()
        self._body_head = b""
        self._has_payload = False
        self._token_chunks = 0
        self._usage_tokens = 0
        self._finish_s: float | None = None
        self._last_event_s = 0.0

    def feed(self, data: bytes, now_s: float) -> bool:
        """Bytes of the body arrived; whether the answer goes on."""
        payloads = self._parser.feed(data)
        if not self._has_payload and len(self._body_head) < _HEAD_BYTES:
            self._body_head += data
        for payload in payloads:
            self._take(payload, now_s)
        return self._flight.end is None

    def close(self, now_s: float) -> None:
        """The body ended as HTTP wants it."""
        for payload in self._parser.close():
            self._take(payload, now_s)
        if not self._has_payload:
            self._flight.finish(now_s, *self._eventless())
        self._end(now_s)

    def break_off(self, now_s: float, end: End, error: str) -> None:
        """The body will not come to its end: `end` and `error` stand, unless the answer itself was complete."""
        if self._flight.finish_reason is None:
            self._settle()
            self._flight.finish(now_s, end, error)
        else:
            self._end(now_s)

    def _take(self, payload: bytes, now_s: float) -> None:
        flight = self._flight
        if flight.end is not None:
            return
        self._has_payload = True
        chunk = interpret(payload)
        if chunk.is_malformed:
            flight.malformed_frames += 1
            return
        self._last_event_s = now_s
        if chunk.is_done:
            self._end(now_s)
            return
        if chunk.error is not None:
            self._settle()
            flight.finish(now_s, End.FAILED, f"server error in the stream: {chunk.error}")
            return
        self._count(chunk, now_s)

    def _count(self, chunk: Chunk, now_s: float) -> None:
        flight = self._flight
        if chunk.prompt_tokens is not None:
            flight.prompt_tokens = chunk.prompt_tokens
        if chunk.cached_tokens is not None:
            flight.cached_tokens = chunk.cached_tokens
        usage_tokens = chunk.completion_tokens or 0
        rose = chunk.has_choices and usage_tokens > self._usage_tokens
        if chunk.finish_reason is not None and self._usage_tokens == 0:
            rose = False  # the one count of a server that counts at the end only: no sign of a token in this chunk
        if usage_tokens:
            self._usage_tokens = usage_tokens
        if flight.answer is not None and chunk.text:
            flight.answer.append(chunk.text)
        if chunk.has_tokens or rose:
            self._token_chunks += 1
            flight.token(now_s, 0)
            flight.output_tokens = self._usage_tokens or self._token_chunks
            flight.output_tokens_estimated = not self._usage_tokens
        if chunk.finish_reason is not None:
            flight.finish_reason = chunk.finish_reason
            self._finish_s = now_s

    def _settle(self) -> None:
        """The token count that holds, whatever the end."""
        flight = self._flight
        flight.output_tokens = self._usage_tokens or self._token_chunks
        flight.output_tokens_estimated = not self._usage_tokens and self._token_chunks > 0
        if flight.first_token_s is None and flight.output_tokens and self._finish_s is not None:
            flight.first_token_s = flight.last_token_s = self._finish_s

    def _end(self, now_s: float) -> None:
        if self._flight.end is not None:
            return
        self._settle()
        if self._flight.finish_reason is None:
            self._flight.finish(now_s, End.TRUNCATED, "truncated: the stream ended without a finish reason")
            return
        end, error = self._verdict(self._flight.finish_reason)
        self._flight.finish(self._last_event_s, end, error)

    def _verdict(self, finish_reason: str) -> tuple[End, str]:
        tokens, asked = self._flight.output_tokens, self._request.output_tokens
        if finish_reason == "abort":
            return End.TRUNCATED, "truncated: the server aborted the request"
        if finish_reason == "error":
            return End.FAILED, "server error: finish reason error"
        if tokens == 0:
            return End.FAILED, f"no token in the answer (finish reason {one_line(finish_reason)})"
        if finish_reason == "length" and self._request.force_length and 0 < self._usage_tokens < asked:
            return End.TRUNCATED, f"truncated: the server cut the answer at {tokens} of {asked} tokens"
        return End.FINISHED, ""

    def _eventless(self) -> tuple[End, str]:
        """What to say of a 200 without a single payload."""
        head = self._body_head.removeprefix(_BOM).lstrip()
        if not head or head.startswith(_FIELDS):
            return End.TRUNCATED, "truncated: the body ended without an answer"
        try:
            message = error_message(json.loads(head))
        except (ValueError, RecursionError):
            message = None
        if message is not None:
            return End.FAILED, f"server error: {message}"
        return End.FAILED, f"{NOT_STREAMED}: it answered in one body without events"
