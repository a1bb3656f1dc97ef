from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.effect import (
    NOT_TOLD_APART,
    Effect,
    EffectMetric,
    Finding,
    conclude,
    effect,
    smallest_visible_share,
)

TPOT = EffectMetric.TPOT_MEAN

latencies = st.floats(min_value=1e-4, max_value=1e3)
pairs = st.dictionaries(st.integers(0, 9), st.tuples(latencies, latencies), min_size=2, max_size=8)
shares = st.floats(min_value=-0.9, max_value=5.0)
"""Without subnormal sizes, which no latency has."""


def given_effect(low: float, high: float) -> Effect:
    return Effect(TPOT, (low + high) / 2, (low, high), 3, 0)


effects = st.tuples(shares, shares).map(lambda ends: given_effect(min(ends), max(ends)))


def sides(values: dict[int, tuple[float, float]]) -> tuple[dict[int, float], dict[int, float]]:
    return {key: a for key, (a, _) in values.items()}, {key: b for key, (_, b) in values.items()}


def test_three_pairs_give_the_interval_of_t_over_their_log_ratios() -> None:
    base = {0: 0.040, 1: 0.042, 2: 0.041}
    other = {0: 0.0388, 1: 0.0408, 2: 0.0396}
    ratios = [math.log(other[k] / base[k]) for k in base]
    mean, half = sum(ratios) / 3, 4.302653 * statistics.stdev(ratios) / math.sqrt(3)  # t, 97.5 %, 2 degrees of freedom
    found = effect(TPOT, base, other)
    assert found.share == pytest.approx(math.exp(mean) - 1)
    assert found.interval == pytest.approx((math.exp(mean - half) - 1, math.exp(mean + half) - 1), rel=1e-6)
    assert (found.n_pairs, found.missing_pairs) == (3, 0)


def test_one_pair_has_an_effect_and_no_interval() -> None:
    found = effect(TPOT, {0: 0.040}, {0: 0.038})
    assert found.share == pytest.approx(-0.05)
    assert found.interval is None
    assert conclude(found, None) is Finding.TOO_FEW_PAIRS


def test_no_pair_is_no_effect() -> None:
    found = effect(TPOT, {}, {})
    assert (found.share, found.interval, found.n_pairs) == (None, None, 0)
    assert conclude(found, given_effect(-0.01, 0.01)) is Finding.TOO_FEW_PAIRS


@pytest.mark.parametrize("value", [None, 0.0, -1.0, math.inf, math.nan])
def test_a_value_without_a_ratio_is_told_as_a_missing_pair(value: float | None) -> None:
    found = effect(TPOT, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, {0: 1.1, 1: 1.1, 2: value})
    assert (found.n_pairs, found.missing_pairs) == (2, 2)
    assert found.share == pytest.approx(0.1)


@settings(max_examples=40)
@given(pairs)
def test_the_interval_holds_the_effect_and_both_are_finite(values: dict[int, tuple[float, float]]) -> None:
    found = effect(TPOT, *sides(values))
    assert found.share is not None
    assert found.interval is not None
    low, high = found.interval
    assert low <= found.share <= high
    assert all(math.isfinite(each) and each >= -1 for each in (low, found.share, high))


@settings(max_examples=40)
@given(pairs)
def test_a_change_and_its_reverse_have_the_same_size(values: dict[int, tuple[float, float]]) -> None:
    base, other = sides(values)
    there, back = effect(TPOT, base, other), effect(TPOT, other, base)
    assert there.share is not None
    assert back.share is not None
    assert (1 + there.share) * (1 + back.share) == pytest.approx(1)


@settings(max_examples=40)
@given(pairs, st.floats(min_value=0.001, max_value=1000))
def test_the_unit_of_the_values_does_not_matter(values: dict[int, tuple[float, float]], unit: float) -> None:
    base, other = sides(values)
    scaled = effect(TPOT, {k: v * unit for k, v in base.items()}, {k: v * unit for k, v in other.items()})
    assert scaled.share == pytest.approx(effect(TPOT, base, other).share, abs=1e-9, rel=1e-6)


@settings(max_examples=40)
@given(pairs, latencies)
def test_a_common_factor_per_pair_cancels(values: dict[int, tuple[float, float]], factor: float) -> None:
    base, other = sides(values)
    moved = effect(
        TPOT,
        {k: v * (1 + factor * (k % 3)) for k, v in base.items()},
        {k: v * (1 + factor * (k % 3)) for k, v in other.items()},
    )
    plain = effect(TPOT, base, other)
    assert moved.share == pytest.approx(plain.share, abs=1e-9, rel=1e-6)


@pytest.mark.parametrize(
    ("found", "drift", "finding"),
    [
        (given_effect(-0.01, 0.02), given_effect(-0.001, 0.001), Finding.BELOW_RESOLUTION),
        (given_effect(0.0, 0.02), None, Finding.BELOW_RESOLUTION),
        (given_effect(-0.04, -0.03), None, Finding.DRIFT_UNKNOWN),
        (given_effect(-0.04, -0.03), Effect(TPOT, 0.01, None, 1, 0), Finding.DRIFT_UNKNOWN),
        (given_effect(-0.04, -0.03), Effect(TPOT, 0.05, None, 1, 0), Finding.WITHIN_DRIFT),
        (given_effect(-0.04, -0.03), given_effect(0.005, 0.01), Finding.BETWEEN_INSTANCES),
        (given_effect(-0.04, -0.03), given_effect(-0.035, -0.01), Finding.WITHIN_DRIFT),
        (given_effect(-0.04, -0.03), given_effect(0.025, 0.035), Finding.WITHIN_DRIFT),
        (given_effect(0.01, 0.02), given_effect(-0.08, -0.06), Finding.WITHIN_DRIFT),
    ],
)
def test_what_may_be_said(found: Effect, drift: Effect | None, finding: Finding) -> None:
    assert conclude(found, drift) is finding


@given(effects, effects)
def test_a_difference_is_claimed_only_beyond_no_change_and_beyond_the_drift(found: Effect, drift: Effect) -> None:
    if conclude(found, drift) is Finding.BETWEEN_INSTANCES:
        assert found.interval is not None
        assert drift.interval is not None
        assert found.share is not None
        assert drift.share is not None
        assert not found.interval[0] <= 0 <= found.interval[1]
        assert abs(found.share) > abs(drift.share)
        assert found.interval[0] > drift.interval[1] or found.interval[1] < drift.interval[0]


@given(effects, effects)
def test_an_effect_that_is_claimed_was_visible(found: Effect, drift: Effect) -> None:
    visible = smallest_visible_share(found, drift)
    assert visible is not None
    assert found.share is not None
    if conclude(found, drift) is Finding.BETWEEN_INSTANCES:
        assert abs(found.share) >= visible - 1e-9


def test_what_could_have_been_seen_is_unknown_without_intervals() -> None:
    single = Effect(TPOT, 0.01, None, 1, 0)
    assert smallest_visible_share(single, None) is None
    assert smallest_visible_share(given_effect(-0.01, 0.01), single) is None
    assert smallest_visible_share(given_effect(-0.01, 0.02), None) == pytest.approx(0.015)


def test_the_drift_of_another_measure_is_refused() -> None:
    other = Effect(EffectMetric.TTFT_P99, 0.0, (0.0, 0.0), 3, 0)
    with pytest.raises(ValueError, match="the drift of p99 TTFT says nothing about mean TPOT"):
        conclude(given_effect(-0.04, -0.03), other)


def test_no_finding_calls_a_difference_real() -> None:
    for finding in Finding:
        assert "real" not in f"{finding} {finding.meaning}".split()
    assert "not interleaved" in NOT_TOLD_APART
    assert "drift in time" in NOT_TOLD_APART
    assert "offset of one server start" in NOT_TOLD_APART
