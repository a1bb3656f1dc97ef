from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gates.log_ratio import (
    Estimate,
    after_looking,
    as_share,
    balanced_estimate,
    critical_t,
    log_ratio,
    mean_estimate,
    visible_log_ratio,
)

ratios = st.floats(min_value=-2.0, max_value=2.0)
runs = st.lists(st.tuples(ratios, st.booleans()), min_size=3, max_size=12)


def sides(run: list[tuple[float, bool]]) -> tuple[list[float], list[float]]:
    return [value for value, _ in run], [1.0 if a_first else -1.0 for _, a_first in run]


def test_a_log_ratio_needs_two_positive_finite_values() -> None:
    assert log_ratio(1.0, 2.0) == pytest.approx(math.log(2))
    for base, other in ((None, 1.0), (1.0, None), (0.0, 1.0), (1.0, -1.0), (math.inf, 1.0), (1.0, math.nan)):
        assert log_ratio(base, other) is None


def test_a_wild_ratio_is_held_inside_what_a_float_can_carry() -> None:
    assert math.isfinite(as_share(5000.0))
    assert as_share(-5000.0) == -1.0


def test_a_mean_has_the_interval_of_t() -> None:
    values = [0.01, 0.03, 0.02, 0.05]
    found = mean_estimate(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert found.interval == pytest.approx((math.expm1(low), math.expm1(high)))
    assert found.excludes_no_change == (low > 0)


def test_one_value_has_no_interval_and_excludes_nothing() -> None:
    found = mean_estimate([0.5])
    assert (found.interval, found.smallest_visible_share, found.excludes_no_change) == (None, None, False)


def test_the_order_is_the_regression_of_a_textbook() -> None:
    values, orders = [0.01, 0.03, 0.02, 0.05, 0.0], [1.0, -1.0, 1.0, -1.0, 1.0]
    found, order = balanced_estimate(values, orders)
    fit = stats.linregress(orders, values)
    assert order is not None
    assert (found.log_ratio, order.log_ratio) == pytest.approx((fit.intercept, fit.slope))
    assert (found.standard_error, order.standard_error) == pytest.approx((fit.intercept_stderr, fit.stderr))
    assert found.degrees == order.degrees == 3


def test_a_drift_that_is_even_in_time_is_in_the_order_and_not_in_the_mean() -> None:
    noise = [0.003, -0.002, -0.001, 0.0]
    orders = [1.0, -1.0, 1.0, -1.0]
    plain, _ = balanced_estimate(noise, orders)
    drifted, order = balanced_estimate([value + 0.01 * sign for value, sign in zip(noise, orders, strict=True)], orders)
    assert drifted.log_ratio == pytest.approx(plain.log_ratio)
    assert drifted.standard_error == pytest.approx(plain.standard_error)
    assert order is not None
    assert order.log_ratio == pytest.approx(0.01 + 0.001)


def test_with_one_order_alone_it_is_the_plain_mean() -> None:
    found, order = balanced_estimate([0.01, 0.02, 0.03], [1.0, 1.0, 1.0])
    assert found == mean_estimate([0.01, 0.02, 0.03])
    assert order is None


def test_two_pairs_of_two_orders_have_no_interval() -> None:
    found, order = balanced_estimate([0.01, 0.03], [1.0, -1.0])
    assert found == Estimate(0.02, None, 0)
    assert order is not None
    assert order.interval is None


@given(runs)
def test_exchanging_the_arms_turns_the_sign_and_nothing_else(run: list[tuple[float, bool]]) -> None:
    values, orders = sides(run)
    there, order = balanced_estimate(values, orders)
    back, turned = balanced_estimate([-value for value in values], [-sign for sign in orders])
    assert back.log_ratio == -there.log_ratio
    assert (back.standard_error, back.degrees) == (there.standard_error, there.degrees)
    assert (order is None) == (turned is None)
    if order is not None and turned is not None:
        assert turned.log_ratio == order.log_ratio


@given(st.integers(1, 60), st.floats(min_value=1e-4, max_value=0.1))
def test_the_smallest_visible_effect_is_found_in_80_percent_of_runs(degrees: int, error: float) -> None:
    visible = visible_log_ratio(error, degrees)
    assert stats.nct.sf(critical_t(degrees), degrees, visible / error) == pytest.approx(0.80, abs=1e-4)


def test_a_known_error_is_a_normal() -> None:
    assert critical_t(math.inf) == pytest.approx(1.959964)
    assert visible_log_ratio(0.01, math.inf) == pytest.approx(0.01 * (1.959964 + 0.841621))
    assert visible_log_ratio(0.01, 10_000) == pytest.approx(visible_log_ratio(0.01, math.inf), rel=1e-3)


def test_an_interval_that_was_waited_for_is_wider_and_the_effect_the_same() -> None:
    found = Estimate(0.05, 0.01, 4)
    assert after_looking(found) == Estimate(0.05, pytest.approx(0.01 * (1 + 2 / 6)), 4)  # type: ignore[arg-type]
    assert after_looking(Estimate(0.05, 0.01, math.inf)) == Estimate(0.05, 0.01, math.inf)
    assert after_looking(Estimate(0.05, None, 0)) == Estimate(0.05, None, 0)
