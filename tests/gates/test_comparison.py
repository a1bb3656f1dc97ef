from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from comparisons import pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.comparison import Claim, ComparedMetric, Pair, claim_of, compare, quick_look, starts_per_arm
from gates.log_ratio import Estimate
from gates.pooled import Cohort

NOISE = (0.003, -0.004, 0.001, 0.002, -0.002, 0.0)
SHIFTED = [-0.05 + value for value in NOISE]
NESTED = [(start, start) for start in range(4) for _ in range(2)]


def turned(measured: list[Pair]) -> list[Pair]:
    return [Pair(pair.number, pair.b, pair.a, not pair.a_first, pair.start_b, pair.start_a) for pair in measured]


def scaled(cohort: Cohort, factor: float) -> Cohort:
    return dataclasses.replace(
        cohort,
        tpot_s=cohort.tpot_s * factor,
        ttft_s=cohort.ttft_s * factor,
        tpot_mean_s=(cohort.tpot_mean_s or 0) * factor,
        ttft_mean_s=(cohort.ttft_mean_s or 0) * factor,
    )


def test_mean_tpot_comes_first_and_every_metric_once() -> None:
    found = compare(pairs(SHIFTED), seed=0, draws=50)
    assert [each.metric for each in found.effects] == list(ComparedMetric)
    assert found.primary is found.effect(ComparedMetric.TPOT_MEAN)


def test_an_effect_between_single_servers_is_never_called_real() -> None:
    found = compare(pairs(SHIFTED), seed=0, draws=50)
    assert found.primary.shown is not None
    assert found.primary.shown.share == pytest.approx(math.expm1(-0.05), abs=0.002)
    assert found.primary.claim is Claim.BETWEEN_INSTANCES
    assert all(each.claim is not Claim.REAL for each in found.effects)
    assert found.starts_per_arm == 1


def test_noise_is_below_resolution() -> None:
    found = compare(pairs(NOISE), seed=0, draws=50)
    assert found.primary.claim is Claim.BELOW_RESOLUTION


def test_a_known_offset_that_could_explain_it_makes_it_drift() -> None:
    assert compare(pairs(SHIFTED), seed=0, known_offset_sd=0.05, draws=50).primary.claim is Claim.WITHIN_DRIFT
    assert compare(pairs(SHIFTED), seed=0, known_offset_sd=0.001, draws=50).primary.claim is Claim.BETWEEN_INSTANCES


def test_three_starts_of_each_arm_may_be_called_real() -> None:
    found = compare(pairs([*SHIFTED, -0.05, -0.048], starts=NESTED), seed=0, draws=50)
    assert found.starts_per_arm == 4
    assert found.primary.claim is Claim.REAL


def test_starts_that_differ_as_much_are_drift() -> None:
    offsets = [0.06, 0.06, -0.06, -0.06, 0.07, 0.07, -0.05, -0.05]
    noise = [*NOISE, 0.001, -0.001]
    found = compare(
        pairs([-0.03 + offset + value for offset, value in zip(offsets, noise, strict=True)], starts=NESTED),
        seed=0,
        draws=50,
    )
    assert found.primary.claim is Claim.WITHIN_DRIFT


def test_drift_in_time_is_in_no_effect() -> None:
    still, drifting = (compare(pairs(SHIFTED, drift=drift), seed=0, draws=50) for drift in (0.0, 0.004))
    assert still.primary.shown is not None
    assert drifting.primary.shown is not None
    assert drifting.primary.shown.log_ratio == pytest.approx(still.primary.shown.log_ratio, abs=1e-12)
    assert drifting.primary.shown.standard_error == pytest.approx(still.primary.shown.standard_error, abs=1e-12)
    assert drifting.mean is not None
    assert drifting.mean.order is not None
    assert drifting.mean.order.log_ratio == pytest.approx(0.004, abs=0.003)


@settings(max_examples=20)
@given(st.lists(st.floats(-0.2, 0.2), min_size=3, max_size=8))
def test_exchanging_the_arms_turns_every_sign_exactly(ratios: list[float]) -> None:
    measured = pairs(ratios)
    there, back = (compare(each, seed=3, draws=40) for each in (measured, turned(measured)))
    for one, other in zip(there.effects, back.effects, strict=True):
        assert (one.a_value, one.b_value) == (other.b_value, other.a_value)
        assert one.claim is other.claim
        assert (one.shown is None) == (other.shown is None)
        if one.shown is not None and other.shown is not None:
            assert one.shown.log_ratio == -other.shown.log_ratio


@settings(max_examples=20)
@given(st.floats(0.001, 1000.0))
def test_the_unit_of_both_arms_does_not_matter(unit: float) -> None:
    measured = pairs(SHIFTED)
    other = [dataclasses.replace(pair, a=scaled(pair.a, unit), b=scaled(pair.b, unit)) for pair in measured]
    for one, same in zip(
        compare(measured, seed=0, draws=30).effects, compare(other, seed=0, draws=30).effects, strict=True
    ):
        assert one.shown is not None
        assert same.shown is not None
        assert same.shown.log_ratio == pytest.approx(one.shown.log_ratio, abs=1e-9)
        assert same.shown.standard_error == pytest.approx(one.shown.standard_error, abs=1e-9)
        assert same.claim is one.claim


def test_two_pairs_are_too_few_and_none_is_no_fault() -> None:
    assert {each.claim for each in compare(pairs([0.1, 0.2]), seed=0, draws=10).effects} == {Claim.TOO_FEW_PAIRS}
    nothing = compare([], seed=0)
    assert {each.claim for each in nothing.effects} == {Claim.TOO_FEW_PAIRS}
    assert (nothing.starts_per_arm, nothing.mean, nothing.primary.shown) == (0, None, None)


def test_a_pair_without_a_mean_is_in_no_mean() -> None:
    measured = pairs(SHIFTED)
    measured[0] = dataclasses.replace(measured[0], a=dataclasses.replace(measured[0].a, tpot_mean_s=None))
    found = compare(measured, seed=0, draws=10)
    assert found.primary.n_pairs == 5
    assert found.effect(ComparedMetric.TPOT_P50).n_pairs == 6


def test_a_failure_reaches_the_percentiles_and_goodput() -> None:
    measured = pairs(NOISE, n=200)
    slow = np.where(np.arange(200) < 6, math.inf, measured[0].b.ttft_s)
    broken = [dataclasses.replace(pair, b=dataclasses.replace(pair.b, ttft_s=slow, good=190)) for pair in measured]
    found = compare(broken, seed=0, draws=20)
    assert found.effect(ComparedMetric.TTFT_P99).b_value is None
    assert found.effect(ComparedMetric.TTFT_P99).claim is Claim.NOT_MEASURED
    assert found.effect(ComparedMetric.GOODPUT).shown is not None
    assert found.effect(ComparedMetric.GOODPUT).claim is Claim.BETWEEN_INSTANCES


def test_a_percentile_of_too_few_requests_is_not_measured() -> None:
    found = compare(pairs(list(NOISE[:3]), n=20), seed=0, draws=10)
    assert found.effect(ComparedMetric.TPOT_P99).claim is Claim.NOT_MEASURED
    assert found.effect(ComparedMetric.TPOT_P50).claim is Claim.BELOW_RESOLUTION
    looked = compare(pairs(list(NOISE[:3]), n=20), seed=0, draws=10, is_sequential=True)
    assert looked.effect(ComparedMetric.TPOT_P99).claim is Claim.NOT_MEASURED


def test_a_quick_look_sees_the_same_mean() -> None:
    measured = pairs(SHIFTED)
    found = compare(measured, seed=0, draws=10)
    assert quick_look(measured) == (found.primary, found.mean)
    assert starts_per_arm(measured) == 1


def test_pairs_that_were_added_until_it_was_narrow_pay_for_the_looking() -> None:
    measured = pairs([-0.0066 + 2 * value for value in NOISE])
    plain, looked = (compare(measured, seed=0, draws=50, is_sequential=each) for each in (False, True))
    for one, other in zip(plain.effects, looked.effects, strict=True):
        assert one.shown is not None
        assert other.shown is not None
        assert other.shown.log_ratio == one.shown.log_ratio
        assert (other.shown.standard_error or 0) >= (one.shown.standard_error or 0)
    assert (plain.primary.claim, looked.primary.claim) == (Claim.BETWEEN_INSTANCES, Claim.BELOW_RESOLUTION)
    assert quick_look(measured, is_sequential=True)[0] == looked.primary
    assert compare(measured[:2], seed=0, draws=5, is_sequential=True).primary.claim is Claim.TOO_FEW_PAIRS


CLEAR, OPEN, BARE = Estimate(0.05, 0.001, 8), Estimate(0.05, 0.1, 8), Estimate(0.05, None, 0)


@pytest.mark.parametrize(
    ("instances", "starts", "count", "claim"),
    [
        (None, None, 0, Claim.TOO_FEW_PAIRS),
        (BARE, None, 1, Claim.TOO_FEW_PAIRS),
        (OPEN, None, 1, Claim.BELOW_RESOLUTION),
        (CLEAR, None, 1, Claim.BETWEEN_INSTANCES),
        (CLEAR, OPEN, 1, Claim.WITHIN_DRIFT),
        (CLEAR, CLEAR, 1, Claim.BETWEEN_INSTANCES),
        (CLEAR, CLEAR, 2, Claim.BETWEEN_INSTANCES),
        (CLEAR, CLEAR, 3, Claim.REAL),
        (BARE, CLEAR, 3, Claim.REAL),
        (CLEAR, OPEN, 3, Claim.WITHIN_DRIFT),
        (OPEN, OPEN, 3, Claim.BELOW_RESOLUTION),
    ],
)
def test_what_may_be_said(instances: Estimate | None, starts: Estimate | None, count: int, claim: Claim) -> None:
    assert claim_of(instances, starts, count) is claim


@given(st.floats(-1, 1), st.floats(1e-4, 1), st.integers(1, 2), st.booleans())
def test_nothing_is_real_with_fewer_than_three_starts(value: float, error: float, count: int, over: bool) -> None:
    estimate = Estimate(value, error, 5)
    assert claim_of(estimate, estimate if over else None, count) is not Claim.REAL


def test_every_claim_says_what_it_means() -> None:
    assert all(claim.meaning for claim in Claim)


@pytest.mark.parametrize(
    ("control", "claim"),
    [
        (Estimate(0.005, 0.002, 4), Claim.BETWEEN_INSTANCES),
        (Estimate(-0.005, 0.002, 4), Claim.BETWEEN_INSTANCES),
        (Estimate(0.02, 0.002, 4), Claim.WITHIN_DRIFT),
        (Estimate(-0.02, 0.002, 4), Claim.WITHIN_DRIFT),
        (Estimate(0.0, 0.02, 4), Claim.WITHIN_DRIFT),
        (Estimate(0.0, None, 0), Claim.WITHIN_DRIFT),
    ],
)
def test_an_effect_is_held_against_all_that_its_control_may_be(control: Estimate, claim: Claim) -> None:
    assert claim_of(Estimate(-0.03, 0.004, 4), None, 1, control) is claim


def test_where_nothing_differs_a_control_changes_nothing() -> None:
    assert claim_of(Estimate(-0.003, 0.004, 4), None, 1, Estimate(0.02, 0.002, 4)) is Claim.BELOW_RESOLUTION


def test_a_control_that_explains_it_makes_an_effect_drift_and_pays_for_the_looking_too() -> None:
    starts = [(number // 2 % 2, 0) for number in range(8)]
    near = [-0.02 - 0.06 * (number // 2 % 2) + value for number, value in enumerate((*NOISE, 0.001, -0.001))]
    plain, looked = (
        compare(pairs(near, starts=starts), seed=0, draws=10, is_sequential=each) for each in (False, True)
    )
    assert plain.primary.claim is looked.primary.claim is Claim.WITHIN_DRIFT
    assert plain.primary.control is not None
    assert looked.primary.control is not None
    assert (looked.primary.control.half_width or 0) > (plain.primary.control.half_width or 0)
    assert plain.primary.control.log_ratio == pytest.approx(0.06, abs=0.006)
    far = compare(pairs([-0.05, *SHIFTED, -0.049], starts=starts), seed=0, draws=10)
    assert far.primary.claim is Claim.BETWEEN_INSTANCES
