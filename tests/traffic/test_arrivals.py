"""Arrival processes: one draw for all rates, never forced to a count, and as bursty as they say."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.arrivals import POISSON, Arrivals, Constant, Gamma, Replay
from traffic.dealing import deal
from traffic.errors import UsageError
from traffic.schedule import Draw, open_loop
from traffic.traced import Traced
from traffic.traces import Trace
from traffic.workload import CHAT_MIX

RATE_RPS = 8.0
RAMP_S, WINDOW_S = 20.0, 120.0
MANY_SEEDS = range(200)

TIMES_S = [0.0, 0.5, 0.5, 0.5, 4.0, 4.25, 9.0, 30.0, 30.0, 31.5]
TRACE = Trace("ten", np.array(TIMES_S), np.arange(1, 11), np.arange(1, 11))

rates = st.floats(0.1, 50.0)
seeds = st.integers(0, 2**31)
processes = st.sampled_from([POISSON, Gamma(0.3), Gamma(4.0), Constant(), Replay(TRACE)])


@settings(deadline=None, max_examples=40)
@given(arrivals=processes, rate_rps=rates, other_rps=rates, seed=seeds, repeat=st.integers(0, 9))
def test_every_rate_sees_the_same_draw_scaled(
    arrivals: Arrivals, rate_rps: float, other_rps: float, seed: int, repeat: int
) -> None:
    one = arrivals.due_s(rate_rps, seed, repeat, 30.0) * rate_rps
    other = arrivals.due_s(other_rps, seed, repeat, 30.0) * other_rps
    shared = min(len(one), len(other))
    assert one[:shared] == pytest.approx(other[:shared], abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(arrivals=processes, rate_rps=rates, seed=seeds, short_s=st.floats(0, 200.0), more_s=st.floats(0, 400.0))
def test_a_longer_horizon_only_appends(
    arrivals: Arrivals, rate_rps: float, seed: int, short_s: float, more_s: float
) -> None:
    short = arrivals.due_s(rate_rps, seed, 0, short_s)
    long = arrivals.due_s(rate_rps, seed, 0, short_s + more_s)
    assert np.array_equal(short, long[: len(short)])
    assert (long[len(short) :] >= short_s).all()


@settings(deadline=None, max_examples=40)
@given(arrivals=processes, rate_rps=rates, seed=seeds, horizon_s=st.floats(0.0, 500.0))
def test_due_times_ascend_below_the_horizon(arrivals: Arrivals, rate_rps: float, seed: int, horizon_s: float) -> None:
    due_s = arrivals.due_s(rate_rps, seed, 0, horizon_s)
    assert (np.diff(due_s) >= 0).all()
    assert ((due_s >= 0) & (due_s < horizon_s)).all()


@pytest.mark.parametrize("arrivals", [POISSON, Gamma(0.3), Constant(), Replay(TRACE)])
@pytest.mark.parametrize("rate_rps", [0.0, -1.0, math.nan])
def test_no_rate_is_refused(arrivals: Arrivals, rate_rps: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        arrivals.due_s(rate_rps, 0, 0, 60.0)


@pytest.mark.parametrize("arrivals", [POISSON, Gamma(0.3), Constant(), Replay(TRACE)])
def test_another_repeat_is_another_draw(arrivals: Arrivals) -> None:
    one, other = (arrivals.due_s(8.0, 0, repeat, 60.0)[:100] for repeat in (0, 1))
    assert not np.isclose(one, other).any()


# How bursty


def counts(arrivals: Arrivals, bin_s: float, rate_rps: float = RATE_RPS) -> npt.NDArray[np.int64]:
    """Requests in each bin of the windows of many seeds."""
    edges = RAMP_S + np.arange(0.0, WINDOW_S + bin_s / 2, bin_s)
    drawn = [np.histogram(arrivals.due_s(rate_rps, seed, 0, edges[-1]), edges)[0] for seed in MANY_SEEDS]
    return np.concatenate(drawn)


def dispersion(bins: npt.NDArray[np.int64]) -> float:
    """Variance of the counts over their mean; 1 for a Poisson process."""
    return float(bins.var(ddof=1) / bins.mean())


@pytest.mark.parametrize(("bin_s", "error"), [(1.0, 0.0091), (5.0, 0.0204)])
def test_counts_are_as_random_as_a_poisson_process_makes_them(bin_s: float, error: float) -> None:
    bins = counts(POISSON, bin_s)
    assert math.sqrt(2 / (len(bins) - 1)) == pytest.approx(error, abs=5e-5)
    assert dispersion(bins) == pytest.approx(1.0, abs=2 * error)


@pytest.mark.parametrize("burstiness", [0.25, 2.0])
def test_gamma_counts_spread_by_one_over_the_burstiness(burstiness: float) -> None:
    bin_s = 20.0
    bins = counts(Gamma(burstiness), bin_s)
    # Cox, Renewal Theory (1962): variance of the count of an equilibrium renewal process, long bins.
    expected = 1 / burstiness + (1 - burstiness**-2) / 6 / (RATE_RPS * bin_s)
    assert dispersion(bins) == pytest.approx(expected, abs=3 * expected * math.sqrt(2 / (len(bins) - 1)))
    assert bins.mean() == pytest.approx(RATE_RPS * bin_s, rel=0.01)


def test_gamma_gaps_have_the_variation_that_vllm_means_by_burstiness() -> None:
    gaps_s = np.diff(Gamma(0.5).due_s(10.0, 3, 0, 2000.0))
    assert gaps_s.mean() == pytest.approx(0.1, rel=0.03)
    assert (gaps_s.std() / gaps_s.mean()) ** 2 == pytest.approx(2.0, rel=0.05)


def test_a_burstiness_of_one_is_poisson_to_the_bit() -> None:
    assert np.array_equal(Gamma(1.0).due_s(8.0, 5, 2, 600.0), POISSON.due_s(8.0, 5, 2, 600.0))


@pytest.mark.parametrize("burstiness", [0.0, 0.009, -1.0, math.nan, math.inf])
def test_a_burstiness_that_makes_no_load_is_refused(burstiness: float) -> None:
    with pytest.raises(UsageError, match=r"at least 0\.01"):
        Gamma(burstiness)


@pytest.mark.parametrize(("rate_rps", "part"), [(8.0, 0.0), (8.25, 0.25), (8.5, 0.5)])
def test_constant_counts_differ_by_the_fraction_alone(rate_rps: float, part: float) -> None:
    bins = counts(Constant(), 1.0, rate_rps)
    assert set(bins.tolist()) <= {8, 9}
    assert dispersion(bins) == pytest.approx(part * (1 - part) / rate_rps, rel=0.05)


def test_constant_arrivals_are_not_in_step_with_whole_seconds() -> None:
    due_s = [Constant().due_s(1.0, seed, 0, 1.0)[0] for seed in range(200)]
    assert np.mean(due_s) == pytest.approx(0.5, abs=0.1)
    assert np.ptp(due_s) > 0.9


def test_the_default_draws_what_it_always_drew() -> None:
    assert POISSON.due_s(8.0, 0, 0, 0.77).tolist() == pytest.approx(
        [0.0427619675, 0.3401633328, 0.7618586240, 0.7685317685]
    )


def test_the_number_of_arrivals_is_left_to_chance() -> None:
    each = np.array([len(POISSON.due_s(8.0, seed, 0, 120.0)) for seed in MANY_SEEDS])
    assert each.mean() == pytest.approx(960, abs=4 * math.sqrt(960 / 200))
    assert dispersion(each) == pytest.approx(1.0, abs=4 * math.sqrt(2 / 199))


def test_gaps_are_exponential() -> None:
    gaps = np.diff(POISSON.due_s(10.0, 3, 0, 2000.0))
    for share in (0.1, 0.5, 0.9, 0.99):
        assert np.mean(gaps <= -math.log(1 - share) / 10.0) == pytest.approx(share, abs=0.01)


def test_a_rate_far_below_one_request_a_second_stays_a_rate() -> None:
    due_s = POISSON.due_s(0.0042, 0, 0, 1e6)
    assert len(due_s) == pytest.approx(4200, abs=4 * math.sqrt(4200))


@pytest.mark.parametrize("arrivals", [POISSON, Gamma(0.3)])
def test_a_schedule_that_many_senders_share_is_as_bursty_as_it_was(arrivals: Arrivals) -> None:
    plan = open_loop(
        Draw(CHAT_MIX, 0, 0, arrivals=arrivals),
        rate_rps=20.0,
        ramp_s=0.0,
        duration_s=300.0,
        drain_limit_s=lambda _: 0.0,
        text=None,
    )
    edges = np.arange(0.0, 301.0)
    whole, _ = np.histogram([each.due_s for each in plan.requests], edges)
    for hands in (1, 2, 4, 10):
        parts = [np.histogram([each.due_s for each in part.requests], edges)[0] for part in deal(plan, hands)]
        assert np.array_equal(np.sum(parts, axis=0), whole)
        assert dispersion(np.sum(parts, axis=0)) == dispersion(whole)
        assert max(part.sum() for part in parts) - min(part.sum() for part in parts) <= 1


# Replay


def gaps_of_the_trace() -> npt.NDArray[np.float64]:
    """Gaps of two rounds of the trace: the last one leads back to its beginning after a mean gap."""
    gaps = [*np.diff(TIMES_S), TRACE.period_s - TIMES_S[-1]]
    return np.array(gaps * 2)


@settings(deadline=None, max_examples=30)
@given(seed=seeds, rate_rps=rates)
def test_a_replay_has_the_traces_gaps_in_their_order_scaled_to_the_rate(seed: int, rate_rps: float) -> None:
    rounds = 3
    due_s = Replay(TRACE).due_s(rate_rps, seed, 0, rounds * len(TIMES_S) / rate_rps)
    assert len(due_s) == rounds * len(TIMES_S)
    _, row = TRACE.start(seed, 0)
    gaps_s = np.diff(due_s)[: len(TIMES_S)] * rate_rps / TRACE.mean_rate_rps
    assert gaps_s == pytest.approx(gaps_of_the_trace()[row % 10 :][: len(TIMES_S)], abs=1e-9)


def test_requests_of_one_moment_stay_together() -> None:
    due_s = Replay(TRACE).due_s(3.0, 1, 0, 1000.0)
    assert np.mean(np.diff(due_s) == 0.0) == pytest.approx(3 / 10, abs=0.001)


def test_a_replay_has_the_nominal_rate_on_average_over_its_starts() -> None:
    each = np.array([len(Replay(TRACE).due_s(5.0, seed, 0, 1.0)) for seed in range(400)])
    assert each.mean() == pytest.approx(5.0, abs=3 * each.std() / math.sqrt(400))


def test_replayed_times_and_the_traces_lengths_stay_together() -> None:
    for seed in range(20):
        due_s = Replay(TRACE).due_s(1.0, seed, 3, 30.0)
        rows = np.asarray(Traced(TRACE).draw(seed, 3, len(due_s)).rows) % 10
        moment_s, _ = TRACE.start(seed, 3)
        passed_s = due_s / TRACE.mean_rate_rps
        assert np.array(TIMES_S)[rows] == pytest.approx((moment_s + passed_s) % TRACE.period_s, abs=1e-9)


def test_a_trace_of_one_moment_has_no_rate_to_replay() -> None:
    flat = Trace("flat", np.zeros(3), np.ones(3, dtype=np.int64), np.ones(3, dtype=np.int64))
    with pytest.raises(UsageError, match="flat: all requests come at one moment"):
        Replay(flat).due_s(1.0, 0, 0, 10.0)
