"""What the servers of the public reports R01 to R09 sent, and when: seconds after the request arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fake_server import (
    CLOSE,
    DONE,
    Cut,
    Script,
    Step,
    chat_chunk,
    event,
    finish,
    reply,
    timed,
    token,
    usage,
)

Words = list[tuple[float, object]]


def ending(words: Sequence[tuple[float, object]], *end: object) -> list[Step]:
    """Words at their moments, and an end right after the last."""
    return timed(*words, *((words[-1][0], each) for each in end))


def every(gap_s: float, count: int, payload: object, *, first_s: float = 0.1) -> Words:
    """One payload again and again."""
    return [(first_s + gap_s * index, payload) for index in range(count)]


def role_first(**role: object) -> Script:
    """R01: a chunk that only has the role comes long before the first token."""
    return timed(
        (0.005, chat_chunk({"role": "assistant", **role})),
        (0.214, token("Hi")),
        (0.264, token(" there")),
        (0.300, finish()),
        (0.310, usage(2)),
        (0.311, DONE),
    )


BEATS = b": ping\n\n:\n\nevent: ping\ndata:\n\nid: 7\nretry: 1000\n\n"
WRAPPED = b"data: : PROCESSING\n\n"


def heartbeats(newline: bytes = b"\n") -> Script:
    """R03: heartbeats of every kind, then an answer without the space after the colon."""
    first, *rest = (
        event(payload).replace(b"data: ", b"data:") for payload in (token("Hi"), token("!"), finish(), usage(2), DONE)
    )
    moments = [(0.9, BEATS), (1.0, WRAPPED), (1.5, first), (1.54, b"".join(rest))]
    return timed(*((at_s, data.replace(b"\n", newline)) for at_s, data in moments))


ERRORS = (
    {"error": {"message": "engine failed", "type": "InternalServerError", "param": None, "code": 500}},
    {"error": "engine failed"},
    {"object": "error", "message": "engine failed", "code": 400},
)


def broken_by(error: object, tokens: int = 3) -> Script:
    """R04: an error in the stream after so many tokens, and [DONE] as if all were well."""
    words = [(0.10 + 0.05 * index, token("x", usage=index + 1)) for index in range(tokens)]
    return timed(*words, (0.25, error), (0.25, DONE))


SHORT = every(0.02, 10, token("x"))
"""R05: the ten tokens that came."""

STOPPED = ending(SHORT, finish("stop"), usage(10), DONE)
CUTS: dict[str, tuple[Script, str]] = {
    "close": (
        [*timed(*SHORT, ends=False), CLOSE],
        "truncated: the connection closed in the middle of the answer",
    ),
    "end of body": (timed(*SHORT), "truncated: the stream ended without a finish reason"),
    "done": (ending(SHORT, DONE), "truncated: the stream ended without a finish reason"),
    "usage, done": (ending(SHORT, usage(10), DONE), "truncated: the stream ended without a finish reason"),
    "abort": (ending(SHORT, finish("abort"), DONE), "truncated: the server aborted the request"),
}

NO_TEXT = timed((0.3, chat_chunk({"content": ""}, finish_reason="stop")), (0.4, usage(1)), (0.4, DONE))
"""R06: one token, and it has no text."""

MERGED = timed(
    (0.0, token("", role="assistant")),
    (0.20, token("a")),
    *every(0.05, 9, token("abcd"), first_s=0.25),
    (0.65, finish()),
    (0.65, usage(37)),
    (0.65, DONE),
)
"""R07: one token, then nine chunks of four."""


def reasoning(field: str, **beside: str) -> Script:
    """R08: 100 tokens of reasoning and 20 of answer, one every 60 ms."""
    thought: dict[str, Any] = {field: "x", **beside}
    thoughts = every(0.06, 100, token(None, **thought), first_s=0.30)
    return ending([*thoughts, *every(0.06, 20, token("y"), first_s=6.30)], finish("length"), usage(120), DONE)


CHUNKS = every(0.02, 64, token("ab"))
"""R09: 64 chunks of one token each."""

KINDS: dict[str, Script] = {
    "R01": role_first(content=None),
    "R03": heartbeats(),
    "R03, CRLF": heartbeats(b"\r\n"),
    "R04": broken_by(ERRORS[0]),
    "R04, no token": broken_by(ERRORS[1], tokens=0),
    "R04, in the body": reply(200, ERRORS[2]),
    "R04, reset": [*timed((0.1, token("x")), ends=False), (0.1, Cut.RESET)],
    "R05": STOPPED,
    **{f"R05, {name}": script for name, (script, _) in CUTS.items()},
    "R06": NO_TEXT,
    "R06, no count": ending(every(0.1, 2, token("x")), finish(), DONE),
    "R07": MERGED,
    "R08": reasoning("reasoning_content"),
    "R09": ending(CHUNKS, finish("length"), usage(64), DONE),
}
"""One stream of each kind."""
