"""The facts of one request: which clock each metric starts on, and what is absent."""

from __future__ import annotations

import pytest
from engines import record
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.records import End, Flight, Request, freeze

REQUEST = Request(index=7, due_s=2.0, kind="plain", input_tokens=100, output_tokens=50)
BAD_ENDS = [End.FAILED, End.TRUNCATED, End.TIMED_OUT, End.UNFINISHED]


def flown(*moments_s: float, count: int = 1) -> Flight:
    flight = Flight()
    for moment_s in moments_s:
        flight.token(moment_s, count)
    return flight


def test_the_time_to_the_first_token_counts_from_the_due_time_and_the_send_lag_stands_beside_it() -> None:
    late = record(due_s=1.0, sent_s=1.3, first_token_s=1.5)
    assert late.ttft_s == pytest.approx(0.5)
    assert late.send_lag_s == pytest.approx(0.3)


def test_time_per_token_is_the_span_after_the_first_token_over_the_tokens_after_it() -> None:
    assert record(first_token_s=0.2, last_token_s=0.7, output_tokens=11).tpot_s == pytest.approx(0.05)


def test_tokens_that_come_several_in_a_chunk_are_all_counted() -> None:
    flight = flown(2.20)
    for step in range(9):
        flight.token(2.25 + 0.05 * step, 4)
    assert freeze(REQUEST, flight, 0.0, end=End.FINISHED).tpot_s == pytest.approx(0.0125)  # R07, not 50 ms a chunk


@pytest.mark.parametrize("tokens", [0, 1])
def test_one_token_or_none_has_no_time_per_token_rather_than_zero(tokens: int) -> None:
    assert record(output_tokens=tokens, last_token_s=0.9).tpot_s is None  # R06


def test_tokens_that_all_came_at_once_have_no_time_per_token() -> None:
    assert record(output_tokens=11, first_token_s=0.2, last_token_s=0.2).tpot_s is None


def test_an_answer_without_a_token_has_no_time_to_it() -> None:
    empty = record(ttft_s=None)
    assert (empty.ttft_s, empty.tpot_s) == (None, None)


def test_end_to_end_exists_only_for_a_finished_request() -> None:
    assert record(due_s=1.0, ended_s=3.5).e2e_s == pytest.approx(2.5)
    assert all(record(end=end).e2e_s is None for end in [*BAD_ENDS, End.UNRESOLVED])


@pytest.mark.parametrize("end", BAD_ENDS)
def test_whatever_did_not_finish_has_failed(end: End) -> None:
    assert record(end=end).has_failed
    assert record(end=end).is_resolved


def test_a_request_that_nobody_waited_for_is_neither_a_success_nor_a_failure() -> None:
    unresolved = record(end=End.UNRESOLVED)
    assert not unresolved.has_failed
    assert not unresolved.is_resolved


def test_a_flight_keeps_the_first_token_the_last_one_and_the_largest_gap() -> None:
    flight = flown(1.0, 1.1, 1.5, 1.6, count=2)
    assert (flight.first_token_s, flight.last_token_s, flight.output_tokens) == (1.0, 1.6, 8)
    assert flight.chunk_gap_max_s == pytest.approx(0.4)


def test_one_chunk_has_no_gap() -> None:
    assert flown(1.0).chunk_gap_max_s is None


def test_the_first_word_on_how_a_request_ended_counts() -> None:
    flight = Flight()
    flight.finish(1.0, End.FAILED, "HTTP 500")
    flight.finish(2.0, End.FINISHED)
    assert (flight.end, flight.ended_s, flight.error) == (End.FAILED, 1.0, "HTTP 500")


def test_the_engines_own_end_is_kept_and_the_callers_used_only_where_there_is_none() -> None:
    done = flown(102.5, 102.6)
    done.finish(102.7, End.FINISHED)
    assert freeze(REQUEST, done, 100.0, end=End.UNRESOLVED).end is End.FINISHED
    cancelled = freeze(REQUEST, flown(102.5, 102.6), 100.0, end=End.UNFINISHED)
    assert (cancelled.end, cancelled.ended_s, cancelled.output_tokens) == (End.UNFINISHED, None, 2)


@settings(deadline=None)
@given(
    origin_s=st.floats(0, 1e6),
    steps_s=st.lists(st.floats(0, 100), min_size=4, max_size=4),
)
def test_a_frozen_record_tells_times_after_the_probes_start(origin_s: float, steps_s: list[float]) -> None:
    sent_s, first_s, last_s, ended_s = (sum(steps_s[: n + 1]) for n in range(4))
    flight = Flight(sent_s=origin_s + sent_s, prompt_tokens=104, cached_tokens=3, malformed_frames=1)
    flight.token(origin_s + first_s)
    flight.token(origin_s + last_s, 4)
    flight.finish(origin_s + ended_s, End.FINISHED)
    frozen = freeze(REQUEST, flight, origin_s, end=End.FAILED)
    told = [frozen.sent_s, frozen.first_token_s, frozen.last_token_s, frozen.ended_s]
    assert told == pytest.approx([sent_s, first_s, last_s, ended_s], abs=1e-8)
    assert (frozen.index, frozen.due_s, frozen.input_tokens, frozen.requested_output_tokens) == (7, 2.0, 100, 50)
    assert (frozen.prompt_tokens, frozen.cached_tokens, frozen.malformed_frames, frozen.output_tokens) == (104, 3, 1, 5)


def test_what_never_happened_stays_absent() -> None:
    unsent = freeze(REQUEST, Flight(), 100.0, end=End.UNRESOLVED)
    moments = [unsent.sent_s, unsent.first_token_s, unsent.last_token_s, unsent.ended_s, unsent.send_lag_s]
    assert moments == [None] * 5
    assert (unsent.prompt_tokens, unsent.cached_tokens, unsent.chunk_gap_max_s) == (None, None, None)
