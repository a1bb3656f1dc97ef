"""Public reports R01 to R04: what broke other tools that read a stream, from the bytes to the verdict.

The expected numbers are those of the reports' own inputs; R07 and R08 are with the counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_server import (
    CLOSE,
    DONE,
    Script,
    event,
    finish,
    head,
    reply,
    streamed,
    timed,
    token,
    usage,
)
from field_reports import BEATS, ERRORS, KINDS, WRAPPED, broken_by, heartbeats, role_first
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_path import judged, only, said

from gates.slo import Metric
from gates.verdict import LimitedBy, Outcome, ProbeVerdict
from traffic.answer import AnswerReader
from traffic.records import End, Flight, Request

SAMPLES = Path(__file__).parents[1] / "vllm_samples"
DATA = Path(os.environ.get("SLO_BENCH_DATA", Path(__file__).parents[3] / "shared" / "data")) / "vllm_samples"
STREAMS = ["chat_stream", "completions_stream", "completions_stream_interval4", "stream_error_on_shutdown_tail"]
CUT_S = 1e-6
"""Between two pieces, so that each is read alone."""


def pieces(*data: bytes) -> Script:
    """A stream whose bytes arrive in exactly these pieces, the last of which ends the answer."""
    return [(0.0, head("text/event-stream", "Connection: close")), *((CUT_S, each) for each in data), CLOSE]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


def read(stream: Iterable[bytes]) -> Flight:
    """What the reader makes of these pieces, all of them at one moment."""
    flight = Flight(sent_s=0.0, answer=[])
    reader = AnswerReader(Request(0, 0.0, "chat", 10, 8), flight)
    for piece in stream:
        reader.feed(piece, 1.0)
    reader.close(1.0)
    return flight


def value(verdict: ProbeVerdict, metric: Metric) -> float | None:
    result = verdict.result(metric)
    assert result is not None
    return result.value_s


class TestR01:
    @pytest.mark.parametrize("role", [{"content": None}, {"content": ""}, {}])
    def test_the_first_token_is_not_the_role_chunk_nor_the_last_the_finish_chunk(self, role: dict[str, Any]) -> None:
        verdict = judged(role_first(**role))
        assert value(verdict, Metric.TTFT) == pytest.approx(0.214)
        assert value(verdict, Metric.TPOT) == pytest.approx(0.050)
        assert value(verdict, Metric.ITL) == pytest.approx(0.050), "no gap comes from a chunk without a token"
        assert (only(verdict).output_tokens, verdict.summary.mean_output_tokens) == (2, 2)
        assert verdict.is_valid


class TestR02:
    TEXT = '{"choices":[{"index":0,"delta":{"content":"中"},"finish_reason":null}]}'

    @pytest.mark.parametrize("size", [50, 51])
    def test_a_read_that_ends_inside_a_character_fails_nothing(self, size: int) -> None:
        data = event(self.TEXT)
        assert (len(data), data[49:52]) == (80, "中".encode())
        end = event(finish()) + event(usage(1)) + event(DONE)
        verdict = judged(pieces(data[:size], data[size:], end), tokens=1)
        assert (verdict.summary.failed, only(verdict).output_tokens) == (0, 1)

    def test_a_whole_stream_one_byte_a_read_is_the_same_stream(self) -> None:
        stream = b"".join(map(event, [self.TEXT, finish(), DONE])).replace(b"\n", b"\r\n")
        bytewise = judged(pieces(*(bytes([each]) for each in stream)), tokens=1)
        assert said(only(bytewise)) == (End.FINISHED, "", 1, True, None, None, 0)

    def test_a_line_end_that_is_cut_between_cr_and_lf_is_one_line_end(self) -> None:
        stream = b"".join(map(event, [token("a"), token("b"), finish(), usage(2), DONE])).replace(b"\n", b"\r\n")
        places = [place + 1 for place, byte in enumerate(stream) if byte == ord("\r")]
        assert said(only(judged(pieces(*cut(stream, places))))) == (End.FINISHED, "", 2, False, 7, 0, 0)

    @pytest.mark.parametrize("name", STREAMS)
    def test_a_recorded_stream_gives_one_record_however_its_bytes_are_cut(self, name: str) -> None:
        stream = (SAMPLES / f"{name}.sse").read_bytes()
        whole = only(judged(pieces(stream), tokens=8))
        assert said(only(judged(pieces(*cut(stream, range(0, len(stream), 61))), tokens=8))) == said(whole)
        assert (whole.end is End.FINISHED) == (name != "stream_error_on_shutdown_tail")
        assert whole.output_tokens > 0

    @pytest.mark.parametrize("name", STREAMS)
    @settings(max_examples=25)
    @given(data=st.data())
    def test_any_cut_of_a_recorded_stream_gives_one_record(self, name: str, data: st.DataObject) -> None:
        stream = (SAMPLES / f"{name}.sse").read_bytes()
        if data.draw(st.booleans()):
            stream = stream.replace(b"\n", b"\r\n")
        places = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
        assert read(cut(stream, places)) == read([stream])

    def test_the_streams_are_those_that_a_real_server_sent(self) -> None:
        if not DATA.is_dir():
            pytest.skip(f"{DATA} is absent; SLO_BENCH_DATA names the folder that has it")
        for path in sorted(DATA.glob("*.sse")):
            assert path.read_bytes() == (SAMPLES / path.name).read_bytes()


class TestR03:
    @pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
    def test_heartbeats_are_no_tokens_and_a_rewrapped_one_is_counted_as_malformed(self, newline: bytes) -> None:
        verdict = judged(heartbeats(newline))
        assert value(verdict, Metric.TTFT) == pytest.approx(1.5)
        assert verdict.outcome is Outcome.PASS
        assert said(only(verdict)) == (End.FINISHED, "", 2, False, 7, 0, 1)

    def test_a_stream_of_nothing_but_heartbeats_is_no_answer(self) -> None:
        record = only(judged(timed((0.9, BEATS), (1.0, WRAPPED), (1.1, DONE))))
        assert (record.end, record.ttft_s, record.malformed_frames) == (End.TRUNCATED, None, 1)


class TestR04:
    def is_a_failure(self, verdict: ProbeVerdict, error: str, tokens: int = 0) -> None:
        record = only(verdict)
        assert (record.end, record.error, record.output_tokens) == (End.FAILED, error, tokens)
        assert (verdict.summary.failed, verdict.misses, verdict.goodput_rps) == (2, 2, 0.0)
        assert (verdict.summary.mean_ttft_s, verdict.summary.mean_tpot_s, record.e2e_s) == (None, None, None)
        assert verdict.summary.output_tokens_per_s == 0.0, "what a broken answer had is no throughput"
        assert [result.value_s for result in verdict.results] == [None] * 3
        assert [result.over for result in verdict.results] == [2] * 3
        assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, LimitedBy.FAILURES)

    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("tokens", [0, 3])
    def test_an_error_after_the_200_is_a_failure_whatever_its_shape(self, error: object, tokens: int) -> None:
        verdict = judged(broken_by(error, tokens), tokens=256)
        self.is_a_failure(verdict, "server error in the stream: engine failed", tokens)

    @pytest.mark.parametrize("error", ERRORS)
    def test_an_error_as_the_whole_body_of_a_200_is_a_failure(self, error: object) -> None:
        self.is_a_failure(judged(reply(200, error), tokens=256), "server error: engine failed")

    @pytest.mark.parametrize("status", [400, 429, 503])
    def test_a_refusal_is_a_failure_with_the_servers_words(self, status: int) -> None:
        self.is_a_failure(judged(reply(status, ERRORS[0])), f"HTTP {status}: engine failed")

    def test_a_server_that_ignores_the_wish_for_a_stream_is_told_from_one_that_answers(self) -> None:
        body = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}
        self.is_a_failure(
            judged(reply(200, body)), "the server does not stream: it answered in one body without events"
        )

    def test_a_server_that_dies_in_the_middle_fails_what_it_was_answering(self) -> None:
        record = only(judged(KINDS["R04, reset"]))
        assert (record.end, record.error, record.output_tokens) == (
            End.FAILED,
            "the connection broke: connection reset by peer",
            1,
        )

    def test_a_line_of_600_kb_is_one_event(self) -> None:
        long = "x" * 600_000
        script = streamed(
            [(0.1, event(token(long))), (0.05, event(token("y"))), (0.0, event(finish())), (0.0, event(DONE))]
        )
        record = only(judged(script))
        assert (record.end, record.output_tokens, record.tpot_s) == (End.FINISHED, 2, pytest.approx(0.05))

    def test_a_connection_that_is_closed_after_each_answer_is_no_failure(self) -> None:
        body = b"".join(map(event, [token("a", usage=1), token("b", usage=2), finish(), DONE]))
        script = [(0.0, head("text/event-stream", f"Content-Length: {len(body)}", "Connection: close") + body), CLOSE]
        assert only(judged(script)).end is End.FINISHED
