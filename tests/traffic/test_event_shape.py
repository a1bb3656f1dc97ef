"""Events that are told by their shape become the same facts as those that are parsed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traffic.answer import AnswerReader
from traffic.event_shape import event_shape
from traffic.records import Flight, Request
from traffic.sse import interpret

PADDED = b'{"id":"a","choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"completion_tokens":   1}}'


def chat(text: object, tokens: int | None = None, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 12, "total_tokens": 12 + (tokens or 0), "completion_tokens": tokens}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
        **({} if tokens is None else {"usage": usage}),
        **more,
    }


def payload(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(value: object) -> bytes:
    return b"data: " + payload(value) + b"\n\n"


def facts(pieces: Sequence[bytes], *, is_parsed: bool) -> tuple[Flight, bool]:
    """is_parsed: byte by byte, so that no shape ever sees a whole event."""
    flight = Flight(sent_s=0.0)
    reader = AnswerReader(Request(0, 0.0, "", 12, 64), flight)
    goes_on = True
    for number, piece in enumerate(pieces):
        for part in [piece[at : at + 1] for at in range(len(piece))] if is_parsed else [piece]:
            goes_on = goes_on and reader.feed(part, float(number))
    reader.close(float(len(pieces)))
    return flight, goes_on


BROKEN_TEXT = event(chat("x", 3)).replace(b'"x"', b'"\xff"')

texts = st.one_of(
    st.sampled_from([" token", "x", "", "é", "中", 'a"b', "\\", "\n", "\x1f", "data: ", "[DONE]", "}"]),
    st.text(max_size=8),
)
values = st.one_of(
    st.builds(chat, texts, st.one_of(st.none(), st.integers(0, 2000))),
    st.builds(lambda text: chat(text, choices=[{"index": 0, "text": text, "finish_reason": None}]), texts),
    st.builds(lambda text: chat(text, choices=[{"index": 0, "delta": {"reasoning_content": text}}]), texts),
    st.builds(lambda text: chat("x", choices=[{"index": 0, "delta": {"role": text, "content": ""}}]), texts),
    st.builds(
        lambda why: chat("x", choices=[{"delta": {"content": "y"}, "finish_reason": why}]), st.sampled_from(["stop"])
    ),
    st.just({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 9}}),
    st.just({"error": {"message": "x"}}),
    st.just({"error": "y", "choices": [{"delta": {"content": "x"}}]}),
)
pieces = st.lists(
    st.one_of(
        st.lists(values.map(event), min_size=1, max_size=3).map(b"".join),
        values.map(lambda value: event(value).replace(b"\n", b"\r\n")),
        st.sampled_from(
            [
                b": ping\n\n",
                b"data: [DONE]\n\n",
                b"data: {\n\n",
                b"data:\xff\n\n",
                BROKEN_TEXT,
                event(chat("x"))[:-1],
                b"\n",
            ]
        ),
    ),
    max_size=12,
)


@given(pieces)
def test_whatever_comes_the_facts_are_those_of_parsing_everything(given_pieces: list[bytes]) -> None:
    assert facts(given_pieces, is_parsed=False) == facts(given_pieces, is_parsed=True)


def test_the_usual_events_of_a_stream_have_one_shape() -> None:
    shape = event_shape(payload(chat(" first", 1)))
    assert shape is not None
    for text, tokens, more in ((" b", 2, {}), ("}", 10, {"id": "chatcmpl-2"}), ("long text", 1999, {"created": 5})):
        found = shape.fullmatch(event(chat(text, tokens, **more)))
        assert found is not None
        assert int(found[1]) == tokens
    both = shape.fullmatch(event(chat("a", 7)) + event(chat("b", 8)))
    assert both is not None
    assert both[1] == b"8"


@pytest.mark.parametrize(
    "other",
    [
        chat("", 2),
        chat("é", 2),
        chat('"', 2),
        chat("x", 0),
        chat("x"),
        chat("x", 2, model="other"),
        chat("x", 2, error="broken"),
        chat("x", 2, choices=[{"index": 0, "delta": {"content": "x"}, "logprobs": None, "finish_reason": "stop"}]),
        chat("x", 2, choices=[{"index": 1, "delta": {"content": "x"}, "logprobs": None, "finish_reason": None}]),
    ],
)
def test_anything_else_is_parsed(other: dict[str, Any]) -> None:
    shape = event_shape(payload(chat(" first", 1)))
    assert shape is not None
    assert shape.fullmatch(event(other)) is None


@pytest.mark.parametrize(
    "value",
    [
        chat(""),
        chat(None),
        {"choices": [], "usage": {"completion_tokens": 5}},
        {"error": {"message": "x"}},
        chat("x", choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}]),
        chat("x", choices=[{"index": 0, "delta": {"tool_calls": [{"id": "a"}]}, "finish_reason": None}]),
        [1],
    ],
)
def test_what_is_no_plain_token_event_has_no_shape(value: object) -> None:
    assert event_shape(payload(value)) is None


def test_what_a_later_key_says_again_is_not_taken_from_the_first() -> None:
    twice = payload(chat("a"))[:-1] + b',"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":null}]}'
    assert interpret(twice).text == "b"
    shape = event_shape(twice)
    assert shape is None or shape.fullmatch(b"data: " + twice.replace(b'"b"', b'""') + b"\n\n") is None


def test_counts_may_be_padded() -> None:
    shape = event_shape(PADDED)
    assert shape is not None
    found = shape.fullmatch(b"data: " + PADDED.replace(b"   1", b" 128") + b"\n\n")
    assert found is not None
    assert found[1] == b"128"
