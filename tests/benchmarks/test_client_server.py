"""The server in C of benchmarks/client: what it sends, and that its record is what a client on the socket sees."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from client_benchmark import load, server

from traffic.errors import UsageError

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, server.COMPILERS)), reason="no C compiler: the server of benchmarks/client is C"
)

LIMIT_S = 10.0
FIRST_S, ITL_S = 0.03, 0.01
SLACK_S = 0.5
"""A busy machine makes everything late, and nothing early."""

Serving = Callable[..., AbstractContextManager[Any]]


@dataclass(frozen=True)
class Reply:
    """One response: its chunks (a page is one), and when its first and last bytes were here."""

    head: str
    chunks: list[bytes]
    first_s: float
    last_s: float

    def events(self) -> list[Any]:
        payloads = [chunk.removeprefix(b"data: ").removesuffix(b"\n\n") for chunk in self.chunks]
        return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]


class Wire:
    """A connection, by hand."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.sock.close()

    def post(self, body: dict[str, Any], path: str = "/v1/chat/completions", header: str = "") -> Reply:
        self.sock.sendall(post_bytes(body, path, header))
        return self.reply()

    def reply(self) -> Reply:
        head = self.file.readline()
        first_s = time.monotonic()
        while not head.endswith(b"\r\n\r\n"):
            line = self.file.readline()
            assert line, "the server closed the connection"
            head += line
        text = head.decode().lower()
        if "content-length: " in text:
            size = int(text.split("content-length: ")[1].split("\r\n")[0])
            return Reply(text, [self.file.read(size)], first_s, time.monotonic())
        chunks = []
        while size := int(self.file.readline(), 16):
            chunks.append(self.file.read(size))
            self.file.readline()
        self.file.readline()
        return Reply(text, chunks, first_s, time.monotonic())


def post_bytes(body: dict[str, Any], path: str = "/v1/chat/completions", header: str = "") -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{header}content-LENGTH: {len(data)}\r\n\r\n".encode() + data


def chat(words: str = "7 word word", **fields: Any) -> dict[str, Any]:
    return {"model": "mock", "messages": [{"role": "user", "content": words}], "stream": True} | fields


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return server.built(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def serving(program: Path, tmp_path: Path) -> Serving:
    @contextmanager
    def start(first_s: float = FIRST_S, **options: Any) -> Iterator[Any]:
        asked = load.Load(rate_rps=1, seconds=1, tokens=3, words=3, first_s=first_s, itl_s=ITL_S, repeat=0)
        with server.running(program, asked, tmp_path / "truth.json", **({"cores": ()} | options)) as running:
            yield running

    return start


def test_a_stream_is_one_chunk_per_token_and_the_record_says_when_each_end_of_it_left(serving: Serving) -> None:
    with serving() as running, Wire(running.url) as wire:
        before_s = time.monotonic()
        reply = wire.post(chat(max_tokens=5, stream_options={"include_usage": True}))
    *tokens, usage = reply.events()
    assert [each["choices"][0]["delta"]["content"] for each in tokens] == [" token"] * 5
    assert [each["choices"][0]["finish_reason"] for each in tokens] == [None] * 4 + ["length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"], usage["usage"]["prompt_tokens"]) == ([], 5, 3)
    assert reply.chunks[-1] == b"data: [DONE]\n\n"
    truth = running.truth()
    (one,) = truth.requests
    assert (one.name, one.asked, one.sends, one.is_chat, one.is_whole) == ("7", 5, 5, True, True)
    assert before_s <= one.arrived_s <= one.complete_ns / 1e9
    assert one.ttft_s >= FIRST_S
    assert one.first_send_ns / 1e9 <= reply.first_s <= one.first_send_ns / 1e9 + SLACK_S
    assert one.last_send_ns / 1e9 <= reply.last_s <= one.last_send_ns / 1e9 + SLACK_S
    due_ns = one.complete_ns + FIRST_S * 1e9 + 4 * ITL_S * 1e9
    assert due_ns <= one.last_send_ns <= due_ns + one.worst_late_ns + 1
    assert truth.sends == 5
    assert 0 < truth.late_max_ns == one.worst_late_ns < SLACK_S * 1e9
    assert truth.late_p50_ns <= truth.late_p99_ns


def test_without_the_option_there_is_no_usage_and_with_the_continuous_one_every_chunk_counts(serving: Serving) -> None:
    every = {"include_usage": True, "continuous_usage_stats": True}
    with serving() as running, Wire(running.url) as wire:
        bare = wire.post(chat(max_tokens=2)).events()
        counted = wire.post(chat(max_tokens=2, stream_options=every)).events()
    assert [each.get("usage") for each in bare] == [None, None]
    assert [each["usage"]["completion_tokens"] for each in counted] == [1, 2, 2]
    with serving(every_usage=False) as running, Wire(running.url) as wire:
        ignored = wire.post(chat(max_tokens=2, stream_options=every)).events()
    assert ["usage" in each for each in ignored] == [False, False, True]


def test_completions_take_either_word_for_the_length_and_are_named_by_their_header(serving: Serving) -> None:
    with serving() as running, Wire(running.url) as wire:
        body = {"model": "mock", "prompt": "a b", "stream": True, "max_completion_tokens": 3}
        reply = wire.post(body, "/v1/completions", 'X-Request-Id: id-"1\r\n')
        assert [each["choices"][0]["text"] for each in reply.events()] == [" token"] * 3
        whole = wire.post({"model": "mock", "prompt": [5, 6], "max_tokens": 2}, "/v1/completions")
        assert json.loads(whole.chunks[0])["choices"][0]["text"] == " token token"
    streamed, unstreamed = running.truth().requests
    assert (streamed.name, streamed.is_chat, streamed.asked) == ("id-?1", False, 3)
    assert (unstreamed.is_stream, unstreamed.sends, unstreamed.is_whole) == (False, 1, True)


def test_a_connection_stays_open_and_its_next_request_may_come_early(serving: Serving) -> None:
    with serving() as running, Wire(running.url) as wire:
        wire.sock.sendall(post_bytes(chat("1 x", max_tokens=2)) + post_bytes(chat("2 x", max_tokens=2)))
        replies = [wire.reply(), wire.reply(), wire.post(chat("3 x", max_tokens=1))]
    assert [len(each.events()) for each in replies] == [2, 2, 1]
    truth = running.truth()
    assert [each.name for each in truth.requests] == ["1", "2", "3"]
    assert (truth.connections, {each.connection for each in truth.requests}) == (1, {0})
    first, second, _ = truth.requests
    assert first.arrived_ns <= second.arrived_ns < first.last_send_ns <= second.complete_ns


def test_a_request_arrives_with_its_first_byte_and_is_answered_from_its_last(serving: Serving) -> None:
    data = post_bytes(chat(max_tokens=1))
    for pause_s in (0.1, 1.0, 5.0):  # a server that had to wait for a core may find both pieces at once
        with serving() as running, Wire(running.url) as wire:
            wire.sock.sendall(data[:20])
            time.sleep(pause_s)
            between_s = time.monotonic()
            wire.sock.sendall(data[20:])
            wire.reply()
        (one,) = running.truth().requests
        if one.arrived_s < between_s:
            break
    assert one.arrived_s < between_s <= one.complete_ns / 1e9
    assert one.first_send_ns >= one.complete_ns + FIRST_S * 1e9


def test_an_answer_whose_client_left_is_not_whole_and_harms_no_other(serving: Serving) -> None:
    with serving() as running, Wire(running.url) as gone, Wire(running.url) as stays:
        gone.sock.sendall(post_bytes(chat("gone x", max_tokens=1000)))
        gone.file.readline()
        gone.__exit__()
        assert len(stays.post(chat("stays x", max_tokens=20)).events()) == 20
    found = {each.name: each for each in running.truth().requests}
    assert (found["gone"].is_whole, found["stays"].is_whole) == (False, True)
    assert 0 < found["gone"].sends < 1000


def test_many_streams_at_once_are_all_whole_and_each_in_its_own_time(serving: Serving) -> None:
    streams = 200
    with serving(first_s=0.2) as running:
        wires = [Wire(running.url) for _ in range(streams)]
        for index, wire in enumerate(wires):
            wire.sock.sendall(post_bytes(chat(f"{index} x", max_tokens=4)))
        assert [len(wire.reply().events()) for wire in wires] == [4] * streams
        for wire in wires:
            wire.__exit__()
    found = running.truth().requests
    assert sorted(int(each.name) for each in found) == list(range(streams))
    assert all(each.is_whole and each.ttft_s >= 0.2 and each.tpot_s * 3 <= 3 * ITL_S + SLACK_S for each in found)


def test_a_client_that_reads_late_gets_every_byte(serving: Serving) -> None:
    pages = 20_000  # some megabytes: more than the kernel keeps for a connection
    with serving() as running, Wire(running.url) as wire:
        wire.sock.sendall(b"GET /v1/models HTTP/1.1\r\n\r\n" * pages)
        time.sleep(0.2)
        answers = {wire.reply().chunks[0] for _ in range(pages)}
        wire.sock.sendall(b"GET /nowhere HTTP/1.1\r\n\r\n")
        assert "404" in wire.reply().head
    assert [json.loads(each)["data"][0]["id"] for each in answers] == ["mock"]


def test_the_record_can_be_had_before_the_end_too(serving: Serving) -> None:
    with serving() as running, Wire(running.url) as wire:
        wire.post(chat(max_tokens=1))
        wire.sock.sendall(b"GET /truth HTTP/1.1\r\n\r\n")
        early = server.Truth.model_validate_json(wire.reply().chunks[0])
    assert early.requests == running.truth().requests


def test_processes_on_one_port_share_its_connections_and_their_records_are_one(serving: Serving) -> None:
    asked = 24
    cores = sorted(os.sched_getaffinity(0))[-1:] * 2
    with serving(cores=cores) as running:
        for number in range(asked):
            with Wire(running.url) as wire:
                wire.post(chat(f"{number} word", max_tokens=2))
    truth = running.truth()
    assert (len(running.truth_paths), truth.connections, truth.sends) == (2, asked, 2 * asked)
    assert {each.name for each in truth.requests} == {str(number) for number in range(asked)}
    assert len({each.connection for each in truth.requests}) == asked
    alone = [server.Truth.model_validate_json(path.read_bytes()) for path in running.truth_paths]
    assert all(each.requests for each in alone), "the kernel deals by a hash: none of 24 is one chance in 8 million"
    assert truth.late_p99_ns == max(each.late_p99_ns for each in alone)


def test_a_source_that_was_compiled_is_not_compiled_again_and_no_compiler_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.built(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert server.built(tmp_path) == first
    with pytest.raises(UsageError, match=r"no compiler is here \(gcc, cc, clang\): install gcc$"):
        server.built(tmp_path / "other")
