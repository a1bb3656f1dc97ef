from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from comparisons import cohort
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.pooled import Cohort, Resampling, _percentiles, goodput_effect, percentile_effect, resampling
from traffic.summary import nearest_rank

P50, P99 = Decimal(50), Decimal(99)
values = st.lists(st.floats(min_value=1e-3, max_value=10.0) | st.just(math.inf), max_size=30)
blocks = st.lists(values, min_size=1, max_size=5)


@settings(max_examples=60)
@given(blocks, st.sampled_from([P50, Decimal(90), P99, Decimal("99.9")]), st.integers(0, 99))
def test_a_resampled_percentile_is_the_nearest_rank_of_the_requests_that_were_drawn(
    drawn_from: list[list[float]], percentile: Decimal, seed: int
) -> None:
    counts = np.random.default_rng(seed).multinomial(len(drawn_from), [1 / len(drawn_from)] * len(drawn_from), size=5)
    found = _percentiles([np.array(block, dtype=np.float64) for block in drawn_from], counts, percentile)
    for row, value in zip(counts, found, strict=True):
        requests = sorted(each for block, count in zip(drawn_from, row, strict=True) for each in block * int(count))
        expected = nearest_rank(requests, percentile)
        assert (value if math.isfinite(value) else None) == expected


def arms(n: int, factor: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    a = [cohort(0.03 + 0.001 * index, n=n, seed=index).tpot_s for index in range(6)]
    return a, [block * factor for block in a]


def test_requests_of_all_blocks_are_pooled() -> None:
    a, b = arms(100, 0.9)
    low, high, found = percentile_effect(a, b, P99, resampling([0] * 6, [0] * 6, 0, 100))
    assert low == nearest_rank(sorted(np.concatenate(a)), P99)
    assert found is not None
    assert high is not None
    assert found.share == pytest.approx(-0.1)
    assert (found.degrees, found.standard_error) == (5, pytest.approx(0.0, abs=1e-12))


def test_exchanging_the_arms_turns_the_sign_exactly() -> None:
    rng = np.random.default_rng(0)
    a, b = ([rng.exponential(size=80) for _ in range(6)] for _ in range(2))
    drawn = resampling([0] * 6, [0] * 6, 0, 200)
    there, back = percentile_effect(a, b, P50, drawn)[2], percentile_effect(b, a, P50, drawn)[2]
    assert there is not None
    assert back is not None
    assert (back.log_ratio, back.degrees) == (-there.log_ratio, there.degrees)
    assert back.standard_error == pytest.approx(there.standard_error, abs=1e-15)


@given(st.floats(min_value=0.01, max_value=100.0))
def test_the_unit_does_not_matter(unit: float) -> None:
    a, b = arms(20, 0.95)
    drawn = resampling([0] * 6, [0] * 6, 0, 50)
    found = percentile_effect([block * unit for block in a], [block * unit for block in b], P50, drawn)[2]
    assert found is not None
    assert found.log_ratio == pytest.approx(math.log(0.95), abs=1e-9)


def test_a_percentile_on_a_failure_has_no_value_and_few_requests_no_p99() -> None:
    a, b = arms(60, 1.0)
    b[0] = np.full(60, math.inf)
    drawn = resampling([0] * 6, [0] * 6, 0, 100)
    assert percentile_effect(a, b, P99, drawn)[1:] == (None, None)
    assert percentile_effect(a, b, P50, drawn)[2] is not None
    few, same = arms(16, 1.0)
    assert percentile_effect(few, same, P99, drawn) == (None, None, None)


def test_draws_without_a_value_leave_the_effect_without_an_interval() -> None:
    a, b = arms(60, 1.0)
    b[0] = np.where(np.arange(60) < 3, math.inf, b[0])  # 3 of 360 are allowed, 6 of 360 are not
    found = percentile_effect(a, b, P99, resampling([0] * 6, [0] * 6, 0, 100))[2]
    assert found is not None
    assert found.interval is None


def test_goodput_is_requests_over_seconds_of_all_blocks() -> None:
    a = [Cohort(*(np.array([0.1]),) * 2, 0.1, 0.1, good, 10.0) for good in (10, 20, 30)]
    b = [Cohort(*(np.array([0.1]),) * 2, 0.1, 0.1, 2 * good, 10.0) for good in (10, 20, 30)]
    low, high, found = goodput_effect(a, b, resampling([0] * 3, [0] * 3, 0, 50))
    assert (low, high) == (2.0, 4.0)
    assert found is not None
    assert found.share == pytest.approx(1.0)
    assert (
        goodput_effect(
            a,
            [Cohort(each.tpot_s, each.ttft_s, 0.1, 0.1, 0, 10.0) for each in a],
            Resampling(np.ones((2, 3), dtype=np.int64), 3),
        )[2]
        is None
    )


def test_pairs_are_drawn_with_few_starts_and_starts_with_three() -> None:
    assert resampling([0] * 5, [0] * 5, 0, 10).units == 5
    assert resampling([0, 1, 0, 1], [0, 1, 1, 0], 0, 10).units == 4
    nested = resampling([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], 0, 50)
    assert nested.units == 3
    assert np.array_equal(nested.counts[:, 0], nested.counts[:, 1])
    crossed = resampling([0, 1, 2] * 3, [0, 1, 2, 1, 2, 0, 2, 0, 1], 0, 50)
    assert crossed.units == 3
    assert set(crossed.counts.sum(axis=1)) == {9}


def test_draws_depend_on_the_seed_alone() -> None:
    first, again, other = (resampling([0] * 4, [0] * 4, seed, 20).counts for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_error_of_a_resampled_mean_is_that_of_the_mean() -> None:
    rng = np.random.default_rng(0)
    shifts = 0.05 * rng.standard_normal(8)
    a = [np.full(100, 1.0) for _ in shifts]
    b = [np.full(100, math.exp(shift)) for shift in shifts]
    good_a = [Cohort(x, x, 1.0, 1.0, 1000, 10.0) for x in a]
    good_b = [Cohort(x, x, 1.0, 1.0, round(1000 * math.exp(shift)), 10.0) for x, shift in zip(b, shifts, strict=True)]
    found = goodput_effect(good_a, good_b, resampling([0] * 8, [0] * 8, 0, 4000))[2]
    assert found is not None
    assert found.standard_error == pytest.approx(np.std(shifts, ddof=1) / math.sqrt(8), rel=0.05)
