"""Objectives: how they are written, whom they count, and that a failure never helps."""

from __future__ import annotations

from decimal import Decimal

import pytest
from engines import failed, record
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.slo import DEFAULT_SLO, Metric, Objective, drain_limit_s, is_miss, judge, parse_objective
from traffic.errors import UsageError
from traffic.records import End, RequestRecord
from traffic.summary import allowed

TTFT_P99 = Objective(Metric.TTFT, Decimal(99), 2.0)
ENDS = [End.FAILED, End.TRUNCATED, End.TIMED_OUT, End.UNFINISHED]
PERCENTILES = [Decimal(text) for text in ("50", "80", "90", "95", "99")]

answers = st.builds(
    lambda ttft_s, tpot_s, tokens, end: record(ttft_s=ttft_s, tpot_s=tpot_s, output_tokens=tokens, end=end),
    ttft_s=st.sampled_from([0.1, 1.9, 2.0, 2.1, 9.0, None]),
    tpot_s=st.sampled_from([0.01, 0.049, 0.051, 0.5]),
    tokens=st.sampled_from([1, 2, 50]),
    end=st.sampled_from([*[End.FINISHED] * 8, *ENDS, End.UNRESOLVED]),
)
objectives = st.builds(
    Objective, st.sampled_from(list(Metric)), st.sampled_from(PERCENTILES), st.sampled_from([0.02, 0.05, 0.5, 2.0])
)


def test_the_default_is_the_published_slo() -> None:
    assert [str(each) for each in DEFAULT_SLO] == ["ttft:p99:2000", "tpot:p99:50"]


@settings(deadline=None)
@given(
    metric=st.sampled_from(list(Metric)),
    percentile=st.decimals(Decimal("0.1"), Decimal("99.999"), places=3),
    limit_ms=st.decimals(Decimal("0.001"), Decimal(9_999_999), places=3),
)
def test_what_is_written_down_is_the_objective_that_was_judged(
    metric: Metric, percentile: Decimal, limit_ms: Decimal
) -> None:
    objective = parse_objective(f"{metric}:p{percentile}:{limit_ms}")
    assert (objective.metric, objective.percentile) == (metric, percentile)
    assert objective.limit_s == float(limit_ms) / 1000
    assert parse_objective(str(objective)) == objective


@pytest.mark.parametrize(
    "text",
    [
        "ttft",
        "ttft:p99",
        "ttft:99:2000",
        "ttft:p100:2000",
        "foo:p99:2",
        "ttft:p99:-1",
        "ttft:p99:2s",
        "",
        "ttft:p99:1e3",
    ],
)
def test_another_form_is_refused_with_the_right_one(text: str) -> None:
    with pytest.raises(UsageError, match="for example ttft:p99:2000"):
        parse_objective(text)


@pytest.mark.parametrize("text", ["ttft:p0:2000", "ttft:p99:0"])
def test_zero_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        parse_objective(text)


@settings(deadline=None)
@given(st.decimals(Decimal(1), Decimal("99.99"), places=2))
def test_the_smallest_sample_is_the_first_that_may_have_one_over_the_limit(percentile: Decimal) -> None:
    need = Objective(Metric.TTFT, percentile, 1.0).min_n
    assert allowed(need, percentile) >= 1
    assert allowed(need - 1, percentile) == 0


@pytest.mark.parametrize(
    ("percentile", "need"), [("50", 2), ("90", 10), ("95", 20), ("97", 34), ("99", 100), ("99.9", 1000)]
)
def test_the_smallest_sample_of_everyday_percentiles(percentile: str, need: int) -> None:
    assert Objective(Metric.TTFT, Decimal(percentile), 1.0).min_n == need


@pytest.mark.parametrize(
    ("texts", "expected_s"),
    [
        (["ttft:p99:2000", "tpot:p99:50"], 2 + 99 * 0.05),
        (["ttft:p99:2000", "itl:p99:200"], 2 + 99 * 0.2),
        (["tpot:p99:50"], 10 + 99 * 0.05),
        (["e2e:p99:8000"], 8.0),
        (["ttft:p99:2000", "tpot:p99:50", "e2e:p99:8000"], 8.0),
        (["ttft:p99:2000"], 62.0),
        ([], 60.0),
    ],
)
def test_a_request_may_take_what_its_limits_allow_in_all(texts: list[str], expected_s: float) -> None:
    assert drain_limit_s([parse_objective(text) for text in texts], 100) == pytest.approx(expected_s)


@pytest.mark.parametrize("longest", [0, 1])
def test_without_a_second_token_only_the_first_needs_time(longest: int) -> None:
    assert drain_limit_s(DEFAULT_SLO, longest) == pytest.approx(2.0)


def test_each_metric_is_the_requests_own() -> None:
    one = record(ttft_s=0.3, tpot_s=0.02, chunk_gap_max_s=0.4)
    read = [metric.of(one) for metric in (Metric.TTFT, Metric.TPOT, Metric.ITL, Metric.E2E)]
    assert read == pytest.approx([0.3, 0.02, 0.4, 0.5])


def test_a_value_on_the_limit_is_inside_it() -> None:
    objective = Objective(Metric.TTFT, Decimal(50), 2.0)
    result = judge(objective, [record(0, ttft_s=2.0)])
    assert (result.over, result.holds) == (0, True)
    assert judge(objective, [record(0, ttft_s=2.000001)]).over == 1


def test_the_share_over_the_limit_decides_and_not_an_interpolated_value() -> None:  # R15 (a)
    cohort = [record(index, ttft_s=0.1 if index < 118 else 2.3) for index in range(120)]
    result = judge(TTFT_P99, cohort)
    assert (result.n, result.over, result.allowed, result.holds) == (120, 2, 1, False)
    assert result.value_s == pytest.approx(2.3)


def test_a_tenth_that_timed_out_breaks_a_p99_that_the_rest_would_meet() -> None:  # R14
    cohort = [record(index, ttft_s=0.5) for index in range(900)]
    cohort += [failed(record(index), End.TIMED_OUT) for index in range(900, 1000)]
    result = judge(TTFT_P99, cohort)
    assert (result.n, result.over, result.allowed, result.holds, result.value_s) == (1000, 100, 10, False, None)


def test_failures_alone_meet_nothing() -> None:  # R14
    result = judge(TTFT_P99, [failed(record(index), End.TIMED_OUT) for index in range(1000)])
    assert (result.n, result.over, result.holds, result.value_s) == (1000, 1000, False, None)


def test_an_empty_sample_meets_nothing() -> None:
    assert not judge(TTFT_P99, []).holds


@settings(deadline=None, max_examples=60)
@given(objectives, st.lists(answers, max_size=60), st.data())
def test_turning_any_success_into_a_failure_never_turns_a_fail_into_a_pass(
    objective: Objective, cohort: list[RequestRecord], data: st.DataObject
) -> None:
    successes = [index for index, each in enumerate(cohort) if each.end is End.FINISHED]
    chosen = data.draw(st.sets(st.sampled_from(successes))) if successes else set()
    end = data.draw(st.sampled_from(ENDS))
    worse = [failed(each, end) if index in chosen else each for index, each in enumerate(cohort)]
    before, after = judge(objective, cohort), judge(objective, worse)
    assert before.holds or not after.holds
    if after.value_s is not None and before.value_s is not None and before.n == after.n:
        assert after.value_s >= before.value_s


@settings(deadline=None, max_examples=60)
@given(objectives, st.lists(answers, max_size=60))
def test_the_printed_value_and_the_verdict_agree(objective: Objective, cohort: list[RequestRecord]) -> None:
    result = judge(objective, cohort)
    assert result.holds == (result.value_s is not None and result.value_s <= objective.limit_s)


@settings(deadline=None, max_examples=60)
@given(st.lists(answers, max_size=40))
def test_a_miss_breaks_one_objective_or_more(cohort: list[RequestRecord]) -> None:
    for each in cohort:
        if each.is_resolved:
            assert is_miss(DEFAULT_SLO, each) == any(judge(objective, [each]).over for objective in DEFAULT_SLO)
