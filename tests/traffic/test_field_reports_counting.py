"""Public reports R05 to R09: counting tokens and timing them, from the bytes to the verdict."""

from __future__ import annotations

from typing import Any

import pytest
from fake_server import CLOSE, DONE, event, finish, head, token, usage
from field_reports import CHUNKS, CUTS, MERGED, NO_TEXT, STOPPED, ending, reasoning
from whole_path import judged, only

from gates.slo import Metric
from gates.verdict import LimitedBy, Outcome, ProbeVerdict
from traffic.records import End


def value(verdict: ProbeVerdict, metric: Metric) -> float | None:
    result = verdict.result(metric)
    assert result is not None
    return result.value_s


class TestR05:
    """256 tokens are asked for and 10 come, every 20 ms."""

    def test_a_forced_answer_that_stopped_short_counts_as_it_is_and_spoils_the_probe(self) -> None:
        verdict = judged(STOPPED, tokens=256)
        record = only(verdict)
        assert (record.end, record.output_tokens, record.requested_output_tokens) == (End.FINISHED, 10, 256)
        assert value(verdict, Metric.TPOT) == pytest.approx(0.020), "180 ms over 9 tokens, not over 255"
        assert verdict.summary.output_tokens_per_s == pytest.approx(2 * 10 / 1.0)
        assert (verdict.summary.short_answers, verdict.outcome) == (2, None)
        assert verdict.invalid_reasons == (
            "2 of 2 answers are shorter than forced: the server does not honour min_tokens and ignore_eos",
        )

    def test_an_answer_that_may_stop_by_itself_is_an_ordinary_success(self) -> None:
        verdict = judged(STOPPED, tokens=256, force_length=False)
        assert (verdict.outcome, only(verdict).output_tokens) == (Outcome.PASS, 10)

    @pytest.mark.parametrize("force_length", [True, False])
    @pytest.mark.parametrize("name", CUTS)
    def test_an_answer_that_was_cut_is_a_failure(self, name: str, force_length: bool) -> None:
        script, error = CUTS[name]
        verdict = judged(script, tokens=256, force_length=force_length)
        assert (only(verdict).end, only(verdict).error, only(verdict).output_tokens) == (End.TRUNCATED, error, 10)
        assert (verdict.summary.failed, verdict.summary.mean_tpot_s, verdict.misses) == (2, None, 2)
        assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, LimitedBy.FAILURES)
        assert verdict.summary.output_tokens_per_s == 0.0

    def test_a_body_that_ends_with_its_connection_is_cut_as_well(self) -> None:
        start = [(0.0, head("text/event-stream", "Connection: close"))]
        assert only(judged([*start, (0.1, event(token("x"))), CLOSE], tokens=256)).end is End.TRUNCATED


class TestR06:
    """Streams with nothing to time."""

    def test_the_last_chunk_has_no_choices(self) -> None:
        last = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}}
        words = [(0.1 * index, token("x")) for index in (1, 2, 3)]
        record = only(judged(ending(words, finish(), last, DONE), tokens=3))
        assert (record.end, record.output_tokens, record.prompt_tokens) == (End.FINISHED, 3, 12)
        assert record.tpot_s == pytest.approx(0.1)

    @pytest.mark.parametrize("end", [[], [usage(0)]])
    def test_a_count_that_is_missing_or_zero_is_estimated_and_marked(self, end: list[object]) -> None:
        record = only(judged(ending([(0.1, token("x")), (0.2, token("y"))], finish(), *end, DONE)))
        assert (record.end, record.output_tokens, record.output_tokens_estimated) == (End.FINISHED, 2, True)

    def test_one_token_without_text_came_with_the_finishing_chunk(self) -> None:
        verdict = judged(NO_TEXT)
        record = only(verdict)
        assert (record.end, record.output_tokens, record.tpot_s) == (End.FINISHED, 1, None)
        assert value(verdict, Metric.TTFT) == pytest.approx(0.3)

    def test_one_token_leaves_the_sample_of_times_per_token_and_stays_in_the_count(self) -> None:
        verdict = judged(ending([(0.1, token("x"))], finish(), usage(1), DONE), tokens=1)
        assert (verdict.summary.n, verdict.summary.failed, verdict.misses) == (2, 0, 0)
        assert [(result.n, result.value_s) for result in verdict.results][1:] == [(0, None), (0, None)]
        assert (only(verdict).tpot_s, only(verdict).chunk_gap_max_s) == (None, None)

    def test_an_answer_without_a_token_is_a_failure_and_no_missing_sample(self) -> None:
        verdict = judged(ending([(0.1, token(""))], finish(), usage(0), DONE), tokens=1)
        assert (only(verdict).end, only(verdict).error) == (End.FAILED, "no token in the answer (finish reason stop)")
        assert [result.over for result in verdict.results] == [2, 2, 2]


class TestR07:
    def test_several_tokens_in_a_chunk_are_counted_by_the_server(self) -> None:
        verdict = judged(MERGED, tokens=37)
        assert value(verdict, Metric.TPOT) == pytest.approx(0.0125)
        assert value(verdict, Metric.ITL) == pytest.approx(0.05), "what a reader waits for is the gap between chunks"
        assert verdict.outcome is Outcome.PASS


class TestR08:
    @pytest.mark.parametrize(
        ("field", "beside"), [("reasoning", {}), ("reasoning_content", {}), ("reasoning_content", {"content": ""})]
    )
    def test_reasoning_starts_the_clock_and_60_ms_a_token_fail(self, field: str, beside: dict[str, str]) -> None:
        verdict = judged(reasoning(field, **beside), tokens=120)
        assert value(verdict, Metric.TTFT) == pytest.approx(0.30)
        assert value(verdict, Metric.TPOT) == pytest.approx(0.060)
        assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, LimitedBy.TPOT)

    def test_a_tool_call_starts_it_too(self) -> None:
        call: Any = [{"index": 0, "function": {"arguments": "{"}}]
        words = [(0.3, token(None, tool_calls=call)), (0.34, token(None, tool_calls=call))]
        verdict = judged(ending(words, finish("tool_calls"), usage(2), DONE))
        assert (value(verdict, Metric.TTFT), value(verdict, Metric.TPOT)) == pytest.approx((0.3, 0.04))


class TestR09:
    @pytest.mark.parametrize(("counts", "is_estimated"), [([usage(64)], False), ([], True)])
    def test_64_chunks_of_one_token_are_64_tokens(self, counts: list[object], is_estimated: bool) -> None:
        record = only(judged(ending(CHUNKS, finish("length"), *counts, DONE), tokens=64))
        assert (record.output_tokens, record.output_tokens_estimated) == (64, is_estimated)
        assert record.tpot_s == pytest.approx(0.02)

    def test_a_count_above_what_was_asked_for_is_no_count(self) -> None:
        verdict = judged(ending(CHUNKS, finish("length"), usage(127), DONE), tokens=64)
        assert verdict.outcome is None
        assert verdict.invalid_reasons == (
            "2 answers count more tokens than were asked for: the server's usage cannot be used",
        )
