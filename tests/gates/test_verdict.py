"""One probe's verdict: what it says, what limited it, and that failures never improve it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engines import failed, probe_facts, record
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.slo import DEFAULT_SLO, Metric, parse_objective
from gates.verdict import LimitedBy, Outcome, judge_probe
from traffic.probe import Stop
from traffic.records import End, RequestRecord

N = 200
P80 = tuple(parse_objective(text) for text in ("ttft:p80:2000", "tpot:p80:50"))
ENDS = [End.FAILED, End.TRUNCATED, End.TIMED_OUT, End.UNFINISHED]

answers = st.builds(
    lambda ttft_s, tpot_s, tokens, end: record(ttft_s=ttft_s, tpot_s=tpot_s, output_tokens=tokens, end=end),
    ttft_s=st.sampled_from([0.1, 2.0, 2.1]),
    tpot_s=st.sampled_from([0.01, 0.049, 0.051]),
    tokens=st.sampled_from([1, 50]),
    end=st.sampled_from([*[End.FINISHED] * 8, *ENDS, End.UNRESOLVED]),
)


def with_bad(count: int, **changes: Any) -> list[RequestRecord]:
    """200 good requests, of which the last `count` differ."""
    return [record(index, **(changes if index >= N - count else {})) for index in range(N)]


def test_a_probe_passes_with_exactly_what_is_allowed_over_the_limit() -> None:
    verdict = judge_probe(probe_facts(with_bad(2, ttft_s=2.5)), DEFAULT_SLO)
    assert verdict.outcome is Outcome.PASS
    assert (verdict.limited_by, verdict.misses, verdict.is_valid) == (None, 2, True)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [({"ttft_s": 2.5}, LimitedBy.TTFT), ({"tpot_s": 0.06}, LimitedBy.TPOT)],
)
def test_one_more_fails_it_and_the_objective_is_named(changes: dict[str, float], limit: LimitedBy) -> None:
    verdict = judge_probe(probe_facts(with_bad(3, **changes)), DEFAULT_SLO)
    assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, limit)


def test_the_objective_that_is_furthest_over_is_named() -> None:
    records = [
        record(index, ttft_s=2.5 if index < 5 else 0.2, tpot_s=0.06 if index < 50 else 0.02) for index in range(N)
    ]
    assert judge_probe(probe_facts(records), DEFAULT_SLO).limited_by is LimitedBy.TPOT


def test_failures_are_named_where_they_alone_break_an_objective() -> None:
    records = [failed(each) if each.index < 3 else each for each in with_bad(50, tpot_s=0.06)]
    assert judge_probe(probe_facts(records), DEFAULT_SLO).limited_by is LimitedBy.FAILURES


def test_failures_within_the_allowance_pass_and_are_misses() -> None:
    records = [failed(each) if each.index < 2 else each for each in with_bad(0)]
    verdict = judge_probe(probe_facts(records), DEFAULT_SLO)
    assert (verdict.outcome, verdict.misses, verdict.summary.failed) == (Outcome.PASS, 2, 2)


def test_a_thousand_requests_of_which_a_hundred_timed_out_fail() -> None:  # R14
    good = [record(index, ttft_s=0.5) for index in range(900)]
    bad = [failed(record(index), End.TIMED_OUT) for index in range(900, 1000)]
    verdict = judge_probe(probe_facts([*good, *bad]), DEFAULT_SLO)
    assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, LimitedBy.FAILURES)
    result = verdict.result(Metric.TTFT)
    assert result is not None
    assert result.value_s is None


def test_a_thousand_failures_fail_cleanly() -> None:  # R14
    verdict = judge_probe(probe_facts([failed(record(index)) for index in range(1000)]), DEFAULT_SLO)
    assert (verdict.outcome, verdict.limited_by, verdict.misses) == (Outcome.FAIL, LimitedBy.FAILURES, 1000)
    assert verdict.goodput_rps == 0.0


def test_two_of_a_hundred_and_twenty_over_two_seconds_fail() -> None:  # R15 (a)
    records = [record(index, ttft_s=0.1 if index < 118 else 2.3) for index in range(120)]
    assert judge_probe(probe_facts(records), DEFAULT_SLO).outcome is Outcome.FAIL


def test_twenty_good_requests_are_no_result() -> None:  # R15 (b)
    verdict = judge_probe(probe_facts([record(index) for index in range(20)]), DEFAULT_SLO)
    assert (verdict.outcome, verdict.is_valid) == (None, False)


def test_an_invalid_probe_has_no_outcome_but_its_counts() -> None:
    verdict = judge_probe(probe_facts(with_bad(50, ttft_s=3.0), stall_max_s=9.0), DEFAULT_SLO)
    assert verdict.outcome is None
    assert len(verdict.invalid_reasons) == 1
    assert verdict.misses == 50


def test_growth_is_unstable_whatever_was_answered_in_time() -> None:
    verdict = judge_probe(probe_facts(with_bad(0), stop=Stop.GROWTH), DEFAULT_SLO)
    assert verdict.outcome is Outcome.UNSTABLE
    assert not verdict.outcome.passed


def test_too_many_errors_fail_even_where_the_percentile_would_hold() -> None:
    records = [failed(each) if each.index < 20 else each for each in with_bad(0)]
    assert judge_probe(probe_facts(records), P80).outcome is Outcome.PASS
    assert judge_probe(probe_facts(records, stop=Stop.ERRORS), P80).outcome is Outcome.FAIL


@pytest.mark.parametrize("passed", [outcome for outcome in Outcome if outcome is not Outcome.PASS])
def test_only_a_pass_has_passed(passed: Outcome) -> None:
    assert not passed.passed


def test_goodput_is_what_broke_nothing_per_second_of_window() -> None:
    verdict = judge_probe(probe_facts(with_bad(2, ttft_s=2.5), window={"window_end_s": 40.0}, load_s=60.0), DEFAULT_SLO)
    assert verdict.goodput_rps == pytest.approx(198 / 40)


def test_goodput_counts_a_request_once_however_many_objectives_it_broke() -> None:
    assert judge_probe(probe_facts(with_bad(2, ttft_s=2.5, tpot_s=0.06)), DEFAULT_SLO).misses == 2


def test_the_verdict_looks_at_resolved_requests_of_the_cohort_alone() -> None:
    ramp = [replace(failed(record(index)), in_cohort=False) for index in range(100)]
    cut = [record(index, ttft_s=9.0, end=End.UNRESOLVED) for index in range(100)]
    verdict = judge_probe(probe_facts([*ramp, *cut, *with_bad(0)]), DEFAULT_SLO)
    assert (verdict.outcome, verdict.misses) == (Outcome.PASS, 0)
    assert all(result.n == N for result in verdict.results)


def test_one_token_answers_leave_only_the_sample_of_time_per_token() -> None:  # R06
    verdict = judge_probe(probe_facts(with_bad(50, output_tokens=1)), DEFAULT_SLO)
    assert [result.n for result in verdict.results] == [200, 150]
    assert verdict.summary.n == 200


@settings(deadline=None, max_examples=60)
@given(st.lists(answers, min_size=5, max_size=60), st.data())
def test_turning_any_success_into_a_failure_never_turns_a_fail_into_a_pass(
    drawn: list[RequestRecord], data: st.DataObject
) -> None:
    cohort = [replace(each, index=index) for index, each in enumerate(drawn)]
    successes = [index for index, each in enumerate(cohort) if each.end is End.FINISHED]
    chosen = data.draw(st.sets(st.sampled_from(successes))) if successes else set()
    end = data.draw(st.sampled_from(ENDS))
    worse = [failed(each, end) if each.index in chosen else each for each in cohort]
    before, after = (judge_probe(probe_facts(each), P80) for each in (cohort, worse))
    assert before.outcome in (Outcome.PASS, None) or after.outcome is not Outcome.PASS
    assert after.misses >= before.misses
