"""What the plain token events of one server look like, so that most of them need not be parsed as JSON.

Within a stream, and between streams of one server, such events differ in their text, an id, a date and counts alone. A
shape is a regular expression made from one event that was parsed: what matches it would be parsed to the same thing.
"""

from __future__ import annotations

import re
from collections import deque

from traffic.sse import Chunk, interpret

_TEXT = rb"[ !#-\[\]-~]+"
"""Of a string: plain ASCII without escapes, and some of it. Everything else is parsed."""

_COUNT = rb" *(?:0|[1-9][0-9]*)"
_TOTAL = rb" *([1-9][0-9]*)"
"""Servers may pad counts to one width."""

_TEXTS = frozenset((b"content", b"text", b"reasoning", b"reasoning_content"))
_HOLES = {b"id": b'"' + _TEXT + b'"', b"created": _COUNT, b"prompt_tokens": _COUNT, b"total_tokens": _COUNT}
_PIECE = re.compile(rb'"(?:[^"\\]|\\.)*"|[0-9]+|[^"0-9]+')
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"(?=[ \t]*:)')
_OTHER_TEXT, _OTHER_COUNT = "q", 7_777_777
_OTHER = (b"7777777", b'"q"')


_KNOWN: deque[re.Pattern[bytes]] = deque(maxlen=8)
"""Shapes that were made last: answers of one server share them. To make one costs as much as to parse thirty events."""


def event_shape(payload: bytes) -> re.Pattern[bytes] | None:
    """What matches one or more events like this one, whole; group 1 is the last one's completion tokens, if it has any.

    payload: of an event of one line. None where it is no plain token event, or where a change of what may differ would
    change more of its meaning.
    """
    event = b"data: " + payload + b"\n\n"
    for known in _KNOWN:
        if known.fullmatch(event):
            return known
    made = _made(payload, interpret(payload))
    if made is not None:
        _KNOWN.appendleft(made)
    return made


def _made(payload: bytes, chunk: Chunk) -> re.Pattern[bytes] | None:
    if not chunk.has_tokens or chunk.finish_reason is not None or not (chunk.text or chunk.reasoning):
        return None
    pattern: list[bytes] = []
    other: list[bytes] = []
    key, has_total = b"", False
    for found in _PIECE.finditer(payload):
        piece = found[0]
        if _KEY.match(payload, found.start()):
            key, is_value = piece[1:-1], False
        else:
            is_value = piece[0] in b'"0123456789'
        hole = _hole(key, piece) if is_value else None
        if hole is _TOTAL:
            hole, has_total = (None if has_total else hole), True
        if hole is not None and piece[:1] != b'"':
            pattern[-1] = re.escape(other[-1].rstrip(b" "))
        pattern.append(re.escape(piece) if hole is None else hole)
        other.append(piece if hole is None else _OTHER[piece[:1] == b'"'])
        if is_value:
            key = b""
    if interpret(b"".join(other)) != _meaning(chunk):
        return None
    return re.compile(b"(?:data: " + b"".join(pattern) + b"\n\n)+")


def _hole(key: bytes, value: bytes) -> bytes | None:
    """What may stand in a value's place; None where it has to stay."""
    if value[:1] == b'"':
        if key in _TEXTS and len(value) > 2:  # noqa: PLR2004 - two quotes
            return b'"' + _TEXT + b'"'
        return _HOLES[key] if key == b"id" and re.fullmatch(_HOLES[key], value) else None
    return _TOTAL if key == b"completion_tokens" and value != b"0" else _HOLES.get(key) if key != b"id" else None


def _meaning(chunk: Chunk) -> Chunk:
    """Of the event with other values in its holes."""
    return chunk._replace(
        text=_OTHER_TEXT if chunk.text else "",
        reasoning=_OTHER_TEXT if chunk.reasoning else "",
        prompt_tokens=None if chunk.prompt_tokens is None else _OTHER_COUNT,
        completion_tokens=_OTHER_COUNT if chunk.completion_tokens else chunk.completion_tokens,
    )
