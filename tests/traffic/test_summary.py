"""A probe in numbers: nearest ranks, counts that agree with them, and shares of the part that ran."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from engines import failed, probe_facts, record
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.probe import Stop
from traffic.records import End, RequestRecord
from traffic.summary import allowed, cohort, lag_quantile, mean, nearest_rank, sample, summarise

PERCENTILES = [Decimal(text) for text in ("50", "75", "90", "95", "99", "99.5", "99.9")]
values = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=400)


def ttft(each: RequestRecord) -> float | None:
    return each.ttft_s


@settings(deadline=None)
@given(values, st.sampled_from(PERCENTILES))
def test_the_percentile_is_numpys_inverted_cdf(drawn: list[float], percentile: Decimal) -> None:
    expected = np.quantile(drawn, float(percentile) / 100, method="inverted_cdf")
    assert nearest_rank(sorted(drawn), percentile) == expected


@settings(deadline=None)
@given(
    drawn=st.lists(st.one_of(st.floats(0.0, 5.0), st.just(math.inf)), min_size=1, max_size=300),
    percentile=st.decimals(Decimal("0.01"), Decimal("99.99"), places=2),
    limit=st.floats(0.0, 5.0),
)
def test_the_count_over_the_limit_and_the_percentile_always_agree(
    drawn: list[float], percentile: Decimal, limit: float
) -> None:
    holds = sum(value > limit for value in drawn) <= allowed(len(drawn), percentile)
    value = nearest_rank(sorted(drawn), percentile)
    assert holds == (value is not None and value <= limit)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.decimals(Decimal("0.001"), Decimal("99.999"), places=3))
def test_the_allowance_is_exact(n: int, percentile: Decimal) -> None:
    assert allowed(n, percentile) == math.floor((100 - Fraction(percentile)) / 100 * n)


@pytest.mark.parametrize(
    ("n", "percentile", "expected"),
    [
        (9, "90", 0),
        (10, "90", 1),
        (20, "90", 2),
        (100, "90", 10),
        (99, "99", 0),
        (100, "99", 1),
        (1342, "99", 13),
        (999, "99.9", 0),
        (1000, "99.9", 1),
        (10_000, "99.9", 10),
        (0, "99", 0),
    ],
)
def test_the_allowance_of_everyday_numbers(n: int, percentile: str, expected: int) -> None:
    assert allowed(n, Decimal(percentile)) == expected


def test_nothing_has_no_percentile_and_no_mean() -> None:
    assert nearest_rank([], Decimal(99)) is None
    assert mean([]) is None


def test_a_failure_is_worse_than_any_limit() -> None:  # R14
    good = [record(index, ttft_s=0.5) for index in range(900)]
    bad = [failed(record(index), End.TIMED_OUT) for index in range(900, 1000)]
    values = sample([*good, *bad], ttft)
    assert len(values) == 1000
    assert nearest_rank(values, Decimal(90)) == pytest.approx(0.5)
    assert nearest_rank(values, Decimal(99)) is None
    assert values.count(math.inf) == 100


def test_a_request_without_the_metric_leaves_the_sample_and_a_failed_one_does_not() -> None:
    one_token = record(0, output_tokens=1)
    values = sample([one_token, failed(one_token), record(1)], lambda each: each.tpot_s)
    assert values == [pytest.approx(0.02), math.inf]


def test_a_failed_request_counts_as_over_even_where_its_numbers_look_good() -> None:
    assert sample([record(0, end=End.TRUNCATED)], ttft) == [math.inf]


def test_unresolved_requests_are_in_no_n() -> None:
    cut = [record(index, end=End.UNRESOLVED) for index in range(5)]
    summary = summarise(probe_facts([*cut, record(5)], stop=Stop.LOST))
    assert sample(cut, ttft) == []
    assert (summary.n, summary.failed) == (1, 0)


def test_requests_outside_the_cohort_are_in_no_n() -> None:
    ramp = [record(index, in_cohort=False, end=End.FAILED) for index in range(5)]
    summary = summarise(probe_facts([*ramp, record(5)]))
    assert (summary.n, summary.failed) == (1, 0)
    assert len(cohort([*ramp, record(5)])) == 1


def test_failures_errors_and_short_answers_are_counted() -> None:
    records = [
        record(0),
        record(1, output_tokens=5, requested_output_tokens=11),
        failed(record(2)),
        record(3, end=End.UNFINISHED),
        record(4, end=End.FAILED, error="client: too many open files"),
    ]
    summary = summarise(probe_facts(records))
    assert (summary.n, summary.failed, summary.errors, summary.client_errors, summary.short_answers) == (5, 3, 2, 1, 1)


def test_means_are_of_successes_and_say_nothing_of_failures() -> None:
    summary = summarise(probe_facts([record(0, ttft_s=0.2), record(1, ttft_s=0.4), failed(record(2))]))
    assert summary.mean_ttft_s == pytest.approx(0.3)
    assert summary.mean_tpot_s == pytest.approx(0.02)
    assert summary.mean_output_tokens == pytest.approx(11)


def test_with_no_success_at_all_every_number_is_absent_or_finite() -> None:  # R14
    summary = summarise(probe_facts([failed(record(index)) for index in range(1000)]))
    assert (summary.n, summary.failed) == (1000, 1000)
    assert (summary.mean_tpot_s, summary.mean_ttft_s, summary.mean_output_tokens) == (None, None, None)
    numbers = [getattr(summary, name) for name in type(summary).__slots__]
    assert all(number is None or math.isfinite(number) for number in numbers)


def test_an_empty_cohort_has_no_shares_and_no_division_by_zero() -> None:
    summary = summarise(probe_facts([], window={"window_end_s": 10.0}))
    assert (summary.n, summary.achieved_share, summary.offered_rps, summary.send_lag_max_s) == (0, None, 0.0, None)


def test_the_achieved_share_is_what_was_sent_in_the_window_of_what_was_due_in_it() -> None:
    records = [record(index, due_s=index * 0.1, sent_s=index * 0.1) for index in range(100)]
    records[-1] = record(99, due_s=9.9, sent_s=10.2)
    records[40] = record(40, due_s=4.0, sent_s=None)
    facts = probe_facts(records, window={"window_end_s": 10.0}, load_s=20.0)
    assert summarise(facts).achieved_share == pytest.approx(0.98)
    assert summarise(facts).offered_rps == pytest.approx(10.0)


def test_after_an_early_end_shares_are_of_the_part_that_ran() -> None:
    records = [record(index, due_s=index * 0.1, sent_s=index * 0.1) for index in range(50)]
    window = {"window_end_s": 10.0, "scheduled": 100}
    summary = summarise(probe_facts(records, stop=Stop.LOST, window=window, load_s=5.0))
    assert summary.achieved_share == pytest.approx(1.0)
    assert summary.measured_s == pytest.approx(5.0)
    assert summary.offered_rps == pytest.approx(10.0)  # of the whole schedule


def test_a_probe_that_ended_in_the_ramp_measured_nothing() -> None:
    window = {"window_start_s": 5.0, "window_end_s": 10.0}
    summary = summarise(probe_facts([record(0, in_cohort=False)], stop=Stop.ERRORS, window=window, load_s=3.0))
    assert (summary.measured_s, summary.achieved_share, summary.output_tokens_per_s) == (0.0, None, None)


def test_tokens_per_second_are_those_that_arrived_inside_the_window() -> None:
    window = {"window_start_s": 10.0, "window_end_s": 20.0}
    spans = [(5.0, 15.0), (12.0, 18.0), (15.0, 25.0), (0.0, 9.0), (21.0, 22.0)]
    records = [
        record(index, first_token_s=first_s, last_token_s=last_s, output_tokens=100, in_cohort=index < 3)
        for index, (first_s, last_s) in enumerate(spans)
    ]
    instant = record(9, first_token_s=12.0, last_token_s=12.0, output_tokens=1)
    summary = summarise(probe_facts([*records, instant], window=window, load_s=30.0))
    assert summary.output_tokens_per_s == pytest.approx((50 + 100 + 50 + 1) / 10)


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=50))
def test_send_lags_are_those_of_the_cohort(lags: list[float]) -> None:
    records = [record(index, due_s=float(index), sent_s=index + lag) for index, lag in enumerate(lags)]
    ramp = record(99, due_s=0.0, sent_s=99.0, in_cohort=False)
    summary = summarise(probe_facts([*records, ramp]))
    assert summary.send_lag_max_s == pytest.approx(max(lags), abs=1e-9)
    assert summary.send_lag_p50_s == lag_quantile(records, Decimal(50))
    assert summary.send_lag_p99_s == lag_quantile(records, Decimal(99))


def test_prompt_lengths_are_the_servers_own() -> None:  # R18
    records = [record(index, input_tokens=2048, prompt_tokens=2104) for index in range(3)]
    unknown = record(3, input_tokens=2048, prompt_tokens=None)
    assert summarise(probe_facts([*records, unknown])).mean_prompt_tokens == pytest.approx(2104)
