"""Poisson arrivals: one draw for all rates, never forced to a count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.arrivals import poisson_arrivals

rates = st.floats(0.1, 50.0)
seeds = st.integers(0, 2**31)


@settings(deadline=None, max_examples=40)
@given(rate_rps=rates, other_rps=rates, seed=seeds, repeat=st.integers(0, 9))
def test_every_rate_sees_the_same_draw_scaled(rate_rps: float, other_rps: float, seed: int, repeat: int) -> None:
    one = poisson_arrivals(rate_rps, seed, repeat, 30.0) * rate_rps
    other = poisson_arrivals(other_rps, seed, repeat, 30.0) * other_rps
    shared = min(len(one), len(other))
    assert one[:shared] == pytest.approx(other[:shared])


@settings(deadline=None, max_examples=40)
@given(rate_rps=rates, seed=seeds, short_s=st.floats(0, 200.0), more_s=st.floats(0, 400.0))
def test_a_longer_horizon_only_appends(rate_rps: float, seed: int, short_s: float, more_s: float) -> None:
    short = poisson_arrivals(rate_rps, seed, 0, short_s)
    long = poisson_arrivals(rate_rps, seed, 0, short_s + more_s)
    assert np.array_equal(short, long[: len(short)])
    assert (long[len(short) :] >= short_s).all()


@settings(deadline=None, max_examples=40)
@given(rate_rps=rates, seed=seeds, horizon_s=st.floats(0.0, 500.0))
def test_due_times_ascend_below_the_horizon(rate_rps: float, seed: int, horizon_s: float) -> None:
    due_s = poisson_arrivals(rate_rps, seed, 0, horizon_s)
    assert (np.diff(due_s) > 0).all()
    assert ((due_s > 0) & (due_s < horizon_s)).all()


@pytest.mark.parametrize("bin_s", [1.0, 5.0])
def test_counts_are_as_random_as_a_poisson_process_makes_them(bin_s: float) -> None:
    horizon_s = 7200.0
    counts, _ = np.histogram(poisson_arrivals(8.0, 0, 0, horizon_s), np.arange(0.0, horizon_s + bin_s, bin_s))
    error = math.sqrt(2 / (len(counts) - 1))
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(1.0, abs=3 * error)


def test_the_number_of_arrivals_is_left_to_chance() -> None:
    counts = np.array([len(poisson_arrivals(8.0, seed, 0, 120.0)) for seed in range(400)])
    assert counts.mean() == pytest.approx(960, abs=4 * math.sqrt(960 / 400))
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(1.0, abs=4 * math.sqrt(2 / 399))


def test_gaps_are_exponential() -> None:
    gaps = np.diff(poisson_arrivals(10.0, 3, 0, 2000.0))
    for share in (0.1, 0.5, 0.9, 0.99):
        assert np.mean(gaps <= -math.log(1 - share) / 10.0) == pytest.approx(share, abs=0.01)


def test_another_repeat_is_another_draw() -> None:
    one, other = (poisson_arrivals(8.0, 0, repeat, 60.0)[:100] for repeat in (0, 1))
    assert not np.isclose(one, other).any()


def test_a_rate_far_below_one_request_a_second_stays_a_rate() -> None:
    due_s = poisson_arrivals(0.0042, 0, 0, 1e6)
    assert len(due_s) == pytest.approx(4200, abs=4 * math.sqrt(4200))


@pytest.mark.parametrize("rate_rps", [0.0, -1.0, math.nan])
def test_no_rate_is_refused(rate_rps: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        poisson_arrivals(rate_rps, 0, 0, 60.0)
