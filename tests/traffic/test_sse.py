import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_server import event
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.answer import NOT_STREAMED, AnswerReader
from traffic.records import End, Flight, Request
from traffic.sse import Chunk, SseParser, error_message, interpret, one_line

SAMPLES = Path(__file__).parents[1] / "vllm_samples"
TEXT = '{"choices":[{"index":0,"delta":{"content":"中"},"finish_reason":null}]}'
KEYS = st.sampled_from(
    ["choices", "delta", "usage", "error", "content", "text", "finish_reason", "prompt_tokens_details", "message"]
)

Timed = tuple[float, object]


def delta(content: object = None, *, reason: str | None = None, usage: object = None, **more: object) -> dict[str, Any]:
    fields = more if content is None else {"content": content, **more}
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}], "usage": usage}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens}}


def counted(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 12, "completion_tokens": tokens}


def read(events: Iterable[Timed], *, asked: int = 256, forced: bool = True, ends: bool = True) -> Flight:
    """What a stream becomes; strings are payloads, bytes are sent as they are."""
    request = Request(index=0, due_s=0.0, kind="", input_tokens=12, output_tokens=asked, force_length=forced)
    flight = Flight(sent_s=0.0)
    reader = AnswerReader(request, flight)
    now_s = 0.0
    for now_s, payload in events:
        reader.feed(payload if isinstance(payload, bytes) else event(payload), now_s)
    if ends:
        reader.close(now_s)
    return flight


def payloads(pieces: Iterable[bytes]) -> list[bytes]:
    parser = SseParser()
    return [payload for piece in pieces for payload in parser.feed(piece)] + parser.close()


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


class TestParser:
    @pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
    @settings(max_examples=50)
    @given(data=st.data())
    def test_any_cut_of_any_stream_gives_the_same_payloads(self, newline: str, data: st.DataObject) -> None:
        values = data.draw(
            st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), max_size=5)
        )
        noise = data.draw(st.sampled_from(["", ": ping\n\n", "event: x\n", "id: 7\nretry: 1\n\n", "data:\n\n"]))
        stream = "".join(f"{noise}data: {value}\n\n" for value in values).replace("\n", newline).encode()
        places = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
        assert payloads(cut(stream, places)) == [value.encode() for value in values]

    def test_r02_a_cut_between_cr_and_lf_makes_no_empty_event(self) -> None:
        assert payloads([b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n"]) == [b"a", b"b"]
        assert payloads([b"data: a\r", b"", b"\ndata: b\r\n\r\n"]) == [b"a\nb"]

    def test_r03_comments_empty_data_and_unknown_fields_give_nothing(self) -> None:
        noise = b": ping\n\n:\n\nevent: ping\ndata:\n\nid: 7\nretry: 1000\n\ndata\n\nwhatever\n\n"
        assert payloads([noise]) == payloads([b"data: \n\n"]) == []
        assert payloads([noise + b"data:[DONE]\n\n" + noise]) == [b"[DONE]"]

    def test_lines_of_one_event_are_joined_and_one_space_after_the_colon_is_dropped(self) -> None:
        assert payloads([b"data: a\ndata:  b\ndata:c\n\n"]) == [b"a\n b\nc"]
        assert payloads([b"data: a\rdata: b\n\n"]) == [b"a\nb"]

    def test_a_byte_order_mark_is_no_part_of_the_first_line(self) -> None:
        assert payloads([b"\xef", b"\xbb\xbfdata: a\n\ndata: b\n\n"]) == [b"a", b"b"]

    def test_the_end_of_the_body_completes_an_event_without_its_blank_line(self) -> None:
        assert payloads([b"data: a\n\ndata: [DONE]"]) == [b"a", b"[DONE]"]


class TestInterpret:
    def test_the_recorded_chat_stream_bears_eight_tokens_two_by_two_in_halves_of_a_character(self) -> None:
        chunks = [interpret(payload) for payload in payloads([(SAMPLES / "chat_stream.sse").read_bytes()])]
        assert [chunk.completion_tokens for chunk in chunks[:-1]] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
        assert [chunk.has_tokens for chunk in chunks[:3]] == [False, True, False]
        assert chunks[-3].finish_reason == "length"
        assert chunks[-2] == Chunk(prompt_tokens=15, completion_tokens=8, cached_tokens=0)
        assert chunks[-1].is_done

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"error": {"message": "engine failed", "type": "InternalServerError", "code": 500}}, "engine failed"),
            ({"error": "engine failed"}, "engine failed"),
            ({"object": "error", "message": "engine\nfailed", "code": 400}, "engine failed"),
            ({"error": {"code": 500}}, '{"code": 500}'),
            ({"detail": "Not Found"}, "Not Found"),
            ({"error": None, "choices": []}, None),
            ({"choices": [], "detail": "low"}, None),
            ([], None),
        ],
    )
    def test_r04_an_error_object_is_known_in_every_shape(self, value: object, message: str | None) -> None:
        assert error_message(value) == message

    @pytest.mark.parametrize("payload", [b": PROCESSING", b"[]", b"5", b'"x"', b"\xff", b"{", b"[" * 100_000])
    def test_r03_what_is_no_object_is_a_malformed_frame(self, payload: bytes) -> None:
        assert interpret(payload).is_malformed

    @settings(max_examples=50)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
            max_leaves=8,
        )
    )
    def test_no_object_of_any_shape_raises(self, value: object) -> None:
        interpret(json.dumps(value).encode())

    @pytest.mark.parametrize(
        "field", [{"reasoning": "x"}, {"reasoning_content": "x"}, {"tool_calls": [{"index": 0}]}, {"refusal": "no"}]
    )
    def test_reasoning_and_tool_calls_are_tokens(self, field: dict[str, Any]) -> None:
        assert interpret(json.dumps(delta("", **field)).encode()).has_tokens

    def test_a_long_error_becomes_one_short_line(self) -> None:
        assert len(one_line("word \n" * 1000)) == 300


class TestRecordedStreams:
    @pytest.mark.parametrize(
        ("name", "tokens", "first_token_s"),
        [("chat_stream", 8, 2), ("completions_stream", 8, 1), ("completions_stream_interval4", 10, 1)],
    )
    def test_a_recorded_answer_has_the_servers_count(self, name: str, tokens: int, first_token_s: float) -> None:
        sent = payloads([(SAMPLES / f"{name}.sse").read_bytes()])
        flight = read(((index + 1.0, payload.decode()) for index, payload in enumerate(sent)), asked=tokens)
        assert (flight.end, flight.output_tokens, flight.output_tokens_estimated) == (End.FINISHED, tokens, False)
        assert flight.first_token_s == first_token_s
        assert flight.cached_tokens == 0
        assert flight.ended_s == len(sent)

    def test_halves_of_characters_are_tokens_where_the_server_counts_on_the_way(self) -> None:
        sent = payloads([(SAMPLES / "chat_stream.sse").read_bytes()])
        flight = read(((float(index), payload.decode()) for index, payload in enumerate(sent)), asked=8)
        assert (flight.first_token_s, flight.last_token_s, flight.chunk_gap_max_s) == (1.0, 8.0, 1.0)

    def test_a_server_that_is_shut_down_fails_the_request_that_it_cuts(self) -> None:
        flight = read([(1.0, (SAMPLES / "stream_error_on_shutdown_tail.sse").read_bytes())])
        assert flight.end is End.FAILED
        assert "EngineCore encountered an issue" in flight.error
        assert (flight.output_tokens, flight.output_tokens_estimated) == (5, True)

    def test_a_whole_answer_in_one_body_is_not_a_stream(self) -> None:
        flight = read([(1.0, (SAMPLES / "chat_nonstream.json").read_bytes())])
        assert flight.end is End.FAILED
        assert flight.error.startswith(NOT_STREAMED)


class TestCounts:
    def test_a_final_count_beside_the_finish_reason_makes_it_no_token(self) -> None:
        flight = read([(1.0, delta("a")), (2.0, delta("b")), (9.0, delta("", reason="stop", usage=counted(2)))])
        assert (flight.last_token_s, flight.output_tokens) == (2.0, 2)

    def test_an_end_of_text_token_is_a_token_where_the_server_counts_on_the_way(self) -> None:
        flight = read([(1.0, delta("a", usage=counted(1))), (2.0, delta("", reason="stop", usage=counted(2)))])
        assert (flight.last_token_s, flight.output_tokens, flight.output_tokens_estimated) == (2.0, 2, False)

    def test_a_request_that_is_still_running_has_the_count_so_far(self) -> None:
        running = read([(1.0, delta("a", usage=counted(1))), (2.0, delta("b", usage=counted(4)))], ends=False)
        assert (running.end, running.output_tokens, running.output_tokens_estimated) == (None, 4, False)
        guessed = read([(1.0, delta("a")), (2.0, delta("b"))], ends=False)
        assert (guessed.output_tokens, guessed.output_tokens_estimated) == (2, True)


class TestEnds:
    TEN = tuple((float(index), delta("x")) for index in range(1, 11))

    def test_an_answer_that_the_server_cut_below_the_forced_length_is_truncated(self) -> None:
        end = [(11.0, delta(reason="length")), (11.0, usage(10)), (11.0, "[DONE]")]
        assert read([*self.TEN, *end]).end is End.TRUNCATED
        assert read([*self.TEN, *end], forced=False).end is End.FINISHED
        assert read([*self.TEN, *end[:1]]).end is End.FINISHED, "an estimated count proves nothing"

    @pytest.mark.parametrize("body", [b"", b": ping\n\n", b"event: ping\ndata:\n\n"])
    def test_a_stream_without_an_answer_is_truncated(self, body: bytes) -> None:
        assert read([(1.0, body)]).end is End.TRUNCATED

    def test_a_web_page_is_not_a_stream(self) -> None:
        assert read([(1.0, b"<html>data: nothing</html>")]).error.startswith(NOT_STREAMED)

    @pytest.mark.parametrize(("reason", "end"), [("stop", End.FINISHED), (None, End.TIMED_OUT)])
    def test_a_break_after_the_finish_reason_takes_nothing_from_the_answer(self, reason: str | None, end: End) -> None:
        request = Request(index=0, due_s=0.0, kind="", input_tokens=1, output_tokens=1)
        flight = Flight(sent_s=0.0)
        reader = AnswerReader(request, flight)
        reader.feed(event(delta("x", reason=reason)), 1.0)
        reader.break_off(9.0, End.TIMED_OUT, "stalled")
        assert (flight.end, flight.ended_s) == (end, 1.0 if end is End.FINISHED else 9.0)

    def test_the_visible_answer_is_kept_where_somebody_wants_it(self) -> None:
        flight = Flight(sent_s=0.0, answer=[])
        reader = AnswerReader(Request(0, 0.0, "", 1, 3), flight)
        for payload in (delta("", role="assistant"), delta(reasoning="hm"), delta("Hi "), delta("中", reason="stop")):
            reader.feed(event(payload), 1.0)
        assert flight.answer == ["Hi ", "中"]

    @pytest.mark.parametrize("reason", ["stop", "length", "abort"])
    def test_the_servers_own_finish_reason_is_kept_whatever_the_end(self, reason: str) -> None:
        assert read([(1.0, delta("x")), (2.0, delta(reason=reason)), (2.0, "[DONE]")]).finish_reason == reason
        assert read([(1.0, delta("x")), (2.0, "[DONE]")]).finish_reason is None

    def test_nothing_after_the_end_changes_the_flight(self) -> None:
        flight = read([(1.0, delta("x")), (2.0, delta(reason="stop")), (2.0, "[DONE]"), (3.0, delta("y"))])
        assert (flight.output_tokens, flight.ended_s) == (1, 2.0)
