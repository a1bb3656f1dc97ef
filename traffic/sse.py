"""Server-Sent Events read from bytes, and what one answer's events mean. Pure: no clock, no socket.

`SseParser` turns bytes, however they were cut, into payloads; `interpret` turns one payload into a `Chunk`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

_DECODER = json.JSONDecoder()
BOM = b"\xef\xbb\xbf"
_ERROR_CHARS = 300
_CALLS = ("tool_calls", "function_call", "refusal")


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

    @property
    def is_between_events(self) -> bool:
        """Whether nothing of an event is kept."""
        return not (self._parts or self._data or self._skip_lf)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes completed."""
        if data.startswith(b"data: ") and self.is_between_events:
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
            line = line.removeprefix(BOM)
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
