"""The null server's bytes and stamps; over a real socket in test_null_engine.py."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from slo_bench.doctor.null_server import Answer, Connection, NullServer
from traffic.answer import AnswerReader
from traffic.records import End, Flight, Message, Request
from traffic.sse import SseParser


def body(tokens: int = 3, content: str = "17 word word") -> bytes:
    fields: dict[str, Any] = {"model": "null", "messages": [{"role": "user", "content": content}], "max_tokens": tokens}
    return json.dumps(fields).encode()


def whole(answer: Answer) -> bytes:
    return b"".join(answer.next_bytes() for _ in range(answer.tokens))


def unchunked(data: bytes) -> list[bytes]:
    """The chunks of a chunked response, each as long as it says."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Transfer-Encoding: chunked" in head
    chunks: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        chunk, end, rest = rest[: int(size, 16)], rest[int(size, 16) : int(size, 16) + 2], rest[int(size, 16) + 2 :]
        assert end == b"\r\n"
        if not chunk:
            assert rest == b""
            return chunks
        chunks.append(chunk)


@pytest.mark.parametrize("tokens", [1, 2, 64])
def test_an_answer_is_a_stream_that_our_reader_takes_whole(tokens: int) -> None:
    request = Request(17, 0.0, "null", 3, tokens, messages=(Message("user", "17 word word"),))
    flight = Flight()
    reader = AnswerReader(request, flight)
    for number, chunk in enumerate(unchunked(whole(Answer(body(tokens), 0.0, 0.0)))):
        reader.feed(chunk, float(number))
    assert flight.end is End.FINISHED
    assert (flight.output_tokens, flight.output_tokens_estimated) == (tokens, False)
    assert flight.prompt_tokens is not None
    assert (flight.first_token_s, flight.last_token_s) == (1.0, float(tokens))
    assert flight.malformed_frames == 0


def test_each_token_is_one_event_in_a_chunk_of_its_own_with_the_counts_so_far() -> None:
    chunks = unchunked(whole(Answer(body(3), 0.0, 0.0)))
    assert [len(SseParser().feed(chunk)) for chunk in chunks] == [1] * 6
    events = [json.loads(chunk[6:]) for chunk in chunks[:-1]]
    assert [event["usage"]["completion_tokens"] for event in events[1:]] == [1, 2, 3, 3]
    assert [bool(event["choices"]) for event in events] == [True] * 4 + [False]
    assert events[3]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["total_tokens"] == events[-1]["usage"]["prompt_tokens"] + 3


def test_the_first_word_of_a_prompt_names_its_answer_and_more_words_are_more_tokens() -> None:
    assert Answer(body(content="17 word"), 0.0, 0.0).name == "17"
    assert Answer(body(content="alone"), 0.0, 0.0).name == "alone"
    assert Answer(b"{}", 0.0, 0.0).name == ""
    short, long = (
        Answer(body(content="17" + " word" * 10), 0.0, 0.0),
        Answer(body(content="17" + " word" * 30), 0.0, 0.0),
    )
    assert long.prompt_tokens - short.prompt_tokens == 20


def test_a_request_is_taken_when_head_and_body_are_there_however_they_were_cut() -> None:
    left, right = socket.socketpair()
    with left, right:
        connection = Connection(left)
        data = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\ncontent-length: 5\r\n\r\nabcde"
            b"GET /health HTTP/1.1\r\n\r\n"
        )
        for end in range(len(data) - 24):
            connection.inbox[:] = data[:end]
            assert connection.take_request() is None
        connection.inbox[:] = data
        assert connection.take_request() == (b"POST /v1/chat/completions HTTP/1.1", b"abcde")
        assert connection.take_request() == (b"GET /health HTTP/1.1", b"")
        assert connection.take_request() is None


def test_without_a_sent_token_there_is_no_lateness() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert NullServer(listener, ttft_s=0.05, itl_s=0.01).truth() == {
            "answers": [],
            "late_p50_s": None,
            "late_p99_s": None,
        }
