from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.prediction import StepSize, predicted_share


def test_it_is_the_sum_of_time_share_times_moe_share_times_gain() -> None:
    sizes = [StepSize(16, 0.25, 0.5), StepSize(128, 0.75, 0.4)]
    assert predicted_share(sizes, {16: 0.10, 128: 0.20}) == pytest.approx(-(0.25 * 0.5 * 0.10 + 0.75 * 0.4 * 0.20))


def test_a_step_takes_the_gain_of_the_nearest_size_and_of_two_the_smaller() -> None:
    assert predicted_share([StepSize(90, 1.0, 1.0)], {64: 0.1, 128: 0.3}) == pytest.approx(-0.1)
    assert predicted_share([StepSize(96, 1.0, 1.0)], {128: 0.3, 64: 0.1}) == pytest.approx(-0.1)


def test_a_slower_kernel_makes_steps_longer() -> None:
    assert predicted_share([StepSize(64, 1.0, 0.5)], {64: -0.1}) == pytest.approx(0.05)


def test_nothing_is_predicted_of_nothing() -> None:
    assert predicted_share([], {64: 0.1}) is None
    assert predicted_share([StepSize(64, 1.0, 0.5)], {}) is None


@pytest.mark.parametrize("bad", [StepSize(64, 1.2, 0.5), StepSize(64, 0.5, 1.5), StepSize(64, -0.1, 0.5)])
def test_shares_that_are_none_are_refused(bad: StepSize) -> None:
    with pytest.raises(ValueError, match="shares of time"):
        predicted_share([bad], {64: 0.1})


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=6), moe=st.floats(0, 1), gain=st.floats(-0.5, 0.9))
def test_no_step_can_shorten_by_more_than_the_kernel_does(shares: list[float], moe: float, gain: float) -> None:
    total = max(1.0, sum(shares))
    sizes = [StepSize(2.0**index, share / total, moe) for index, share in enumerate(shares)]
    predicted = predicted_share(sizes, {64: gain})
    assert predicted is not None
    assert abs(predicted) <= abs(gain) * moe + 1e-12
