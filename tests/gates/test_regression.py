"""A regression between sessions: proven only beyond the drift of both, ruled out only by an interval that says so."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.regression import (
    Bracket,
    Change,
    EqualStarts,
    Judgement,
    Measure,
    Verdict,
    capacity_change,
    judge,
    latency_change,
)
from traffic.randomness import stream

TPOT = Measure.TPOT_MEAN
BOUND = 0.02

latencies = st.floats(min_value=0.01, max_value=0.1)
starts = st.builds(
    lambda pairs: EqualStarts(
        {repeat: first for repeat, (first, _) in enumerate(pairs)},
        {repeat: again for repeat, (_, again) in enumerate(pairs)},
    ),
    st.lists(st.tuples(latencies, latencies), min_size=1, max_size=4),
)
bounds = st.floats(min_value=0.0, max_value=0.5)


def session(level: float, drift: float, repeats: int = 3) -> EqualStarts:
    """Two equal starts, `drift` apart, around a level; no noise between repeats."""
    first = {repeat: level * math.exp(-drift / 2) * (1 + 0.1 * repeat) for repeat in range(repeats)}
    return EqualStarts(first, {repeat: value * math.exp(drift) for repeat, value in first.items()})


def change(before: EqualStarts, now: EqualStarts, bound_share: float = BOUND) -> Change:
    return latency_change(TPOT, before, now, bound_share=bound_share)


def test_ten_per_cent_slower_on_a_quiet_machine_is_a_regression() -> None:
    found = change(session(0.040, 0.002), session(0.044, -0.002))
    assert found.share == pytest.approx(0.10)
    assert found.verdict is Verdict.REGRESSION


def test_the_interval_is_that_of_t_over_the_drift_of_both_sessions() -> None:
    found = change(session(0.040, 0.003), session(0.040, 0.004))
    half = 4.302653 * 0.005 / 2  # t, 97.5 %, 2 degrees of freedom; hypot(3, 4) = 5
    assert found.interval == pytest.approx((math.expm1(-half), math.expm1(half)), rel=1e-6)
    assert found.verdict is Verdict.NONE


def test_a_change_within_the_drift_of_either_session_proves_nothing() -> None:
    assert change(session(0.040, 0.03), session(0.0415, 0.001)).verdict is Verdict.INCONCLUSIVE
    assert change(session(0.040, 0.001), session(0.0415, 0.03)).verdict is Verdict.INCONCLUSIVE


def test_a_faster_server_is_no_regression() -> None:
    assert change(session(0.044, 0.002), session(0.040, 0.002)).verdict is Verdict.NONE


def test_the_spread_over_the_repeats_counts_where_it_is_wider() -> None:
    before, now = session(0.040, 0.001), session(0.040, 0.001)
    noisy = EqualStarts(
        {repeat: value * (1 + 0.03 * (repeat - 1)) for repeat, value in now.first.items()},
        {repeat: value * (1 + 0.03 * (repeat - 1)) for repeat, value in now.again.items()},
    )
    quiet, loud = change(before, now).interval, change(before, noisy).interval
    assert quiet is not None
    assert loud is not None
    assert loud[1] - loud[0] > 5 * (quiet[1] - quiet[0])


@pytest.mark.parametrize("value", [None, 0.0, math.inf])
def test_a_repeat_that_one_arm_lacks_has_no_partner(value: float | None) -> None:
    now = session(0.044, 0.002)
    cut = EqualStarts({**now.first, 1: value}, now.again)
    assert change(session(0.040, 0.002), cut).repeats == 2
    nothing = change(session(0.040, 0.002), EqualStarts({}, {}))
    assert (nothing.share, nothing.interval, nothing.verdict) == (None, None, Verdict.INCONCLUSIVE)


def test_equal_starts_that_are_the_same_data_twice_have_no_interval() -> None:
    found = change(session(0.040, 0.0), session(0.050, 0.0))
    assert (found.interval, found.verdict) == (None, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("bound_share", [-0.01, 1.0, math.nan])
def test_a_bound_that_is_no_share_is_refused(bound_share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        change(session(0.040, 0.01), session(0.040, 0.01), bound_share)


@settings(max_examples=40)
@given(starts, starts)
def test_exchanging_the_sessions_turns_the_change_round(before: EqualStarts, now: EqualStarts) -> None:
    there, back = change(before, now), change(now, before)
    if there.share is None or back.share is None:
        assert there.share is back.share is None
        return
    assert (1 + there.share) * (1 + back.share) == pytest.approx(1)
    if there.interval is not None and back.interval is not None:
        assert (1 + there.interval[0]) * (1 + back.interval[1]) == pytest.approx(1)


@settings(max_examples=40)
@given(starts, starts, bounds, bounds)
def test_a_looser_bound_never_makes_a_regression(
    before: EqualStarts, now: EqualStarts, one: float, other: float
) -> None:
    tight, loose = (change(before, now, bound).verdict for bound in sorted((one, other)))
    assert not (loose is Verdict.REGRESSION and tight is not Verdict.REGRESSION)
    assert not (tight is Verdict.NONE and loose is not Verdict.NONE)


@settings(max_examples=40)
@given(starts, starts, st.floats(min_value=0.1, max_value=10))
def test_the_unit_does_not_matter(before: EqualStarts, now: EqualStarts, unit: float) -> None:
    def scaled(each: EqualStarts) -> EqualStarts:
        return EqualStarts(
            *({key: (value or 0) * unit for key, value in arm.items()} for arm in (each.first, each.again))
        )

    one, other = change(before, now), change(scaled(before), scaled(now))
    assert one.share == (None if other.share is None else pytest.approx(other.share, abs=1e-9))


@settings(max_examples=40)
@given(starts)
def test_a_session_is_no_regression_against_itself(one: EqualStarts) -> None:
    assert change(one, one).verdict is not Verdict.REGRESSION


def test_the_interval_covers_no_change_in_95_per_cent_of_all_sessions() -> None:
    """Starts with offsets of 1 %, repeats with noise of 0.3 % each: 2,000 pairs of sessions of one server."""
    random = stream("test_regression", 0)
    offsets, noise = random.normal(0, 0.01, (2000, 2, 2)), random.normal(0, 0.003, (2000, 2, 2, 3))
    levels = np.exp(offsets[..., None] + noise)
    held = 0
    for before, now in levels:
        sides = [EqualStarts(*(dict(enumerate(arm.tolist())) for arm in each)) for each in (before, now)]
        interval = change(sides[0], sides[1]).interval
        assert interval is not None
        held += interval[0] <= 0 <= interval[1]
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def brackets(low: float, high: float, drift: float = 0.0) -> list[Bracket]:
    return [Bracket(low, high), Bracket(low * math.exp(drift), high * math.exp(drift))]


def test_a_capacity_that_lies_two_brackets_lower_is_a_regression() -> None:
    found = capacity_change(brackets(11.18, 11.5), brackets(10.0, 10.29), bound_share=BOUND)
    assert found.share == pytest.approx(-0.105, abs=0.001)
    assert found.verdict is Verdict.REGRESSION


def test_a_capacity_one_bracket_lower_may_be_the_same_one() -> None:
    found = capacity_change(brackets(11.18, 11.5), brackets(10.87, 11.18), bound_share=0.0)
    assert found.interval is not None
    assert found.interval[0] < found.interval[1] == pytest.approx(0, abs=1e-3)
    assert found.verdict is Verdict.INCONCLUSIVE


def test_an_open_bracket_or_a_single_arm_has_no_capacity_to_compare() -> None:
    whole = brackets(11.18, 11.5)
    for other in ([Bracket(11.18, None), whole[0]], [Bracket(None, 8.0), whole[0]], whole[:1], []):
        assert capacity_change(whole, other, bound_share=BOUND).interval is None


@pytest.mark.parametrize(
    ("tpot", "other", "answer"),
    [
        (Verdict.NONE, Verdict.INCONCLUSIVE, Verdict.NONE),
        (Verdict.NONE, Verdict.REGRESSION, Verdict.REGRESSION),
        (Verdict.INCONCLUSIVE, Verdict.NONE, Verdict.INCONCLUSIVE),
        (Verdict.REGRESSION, Verdict.NONE, Verdict.REGRESSION),
    ],
)
def test_any_measure_proves_and_mean_tpot_alone_rules_out(tpot: Verdict, other: Verdict, answer: Verdict) -> None:
    changes = (Change(TPOT, 0.0, None, 3, tpot), Change(Measure.CAPACITY, 0.0, None, 1, other))
    assert judge(changes) == Judgement(answer, changes)
    assert judge([]).verdict is Verdict.INCONCLUSIVE
