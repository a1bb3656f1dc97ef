"""The economical search: which window comes next, that it always ends, and what it says of contradictions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.capacity import MOST_AT_ONE_RATE, Capacity, CapacityVerdict, pooled_tally
from gates.estimate import capacity_estimate
from gates.margin import Reading, WindowSample
from gates.slo import DEFAULT_SLO, ObjectiveResult, parse_objective
from gates.verdict import Outcome
from slo_bench.economical import MOST_WINDOWS, Economy, next_step, slowest_search
from slo_bench.modes import mode_named
from slo_bench.search import Measure, SearchSettings, round_rate
from traffic.summary import allowed

TPOT = parse_objective("tpot:p99:50")
SLO = (TPOT,)
QUICK = mode_named("quick")
ECONOMY = Economy(SLO, lambda rate: QUICK.window_s(rate, SLO), lambda rate: QUICK.short_window_s(rate, SLO))
PLAN = SearchSettings()

Server = Callable[[Measure], WindowSample]


def window(step: Measure, distance: float, *, stable: bool = True) -> WindowSample:
    """A window whose p99 is so far above the limit, in logarithms; it tells its margin where it is stable."""
    duration_s = step.duration_s or 120.0
    n = max(100, round(step.rate_rps * duration_s))
    most = allowed(n, TPOT.percentile)
    over = round(most * math.exp(8 * min(distance, 0.5))) + (distance > 0)
    reading = Reading(math.log(TPOT.limit_s) + distance, max(2, int(duration_s / 20)), 0.12, 15) if stable else None
    outcome = (Outcome.PASS if over <= most else Outcome.FAIL) if stable else Outcome.UNSTABLE
    result = ObjectiveResult(TPOT, n, over, most, None)
    return WindowSample(step.rate_rps, step.repeat, duration_s, outcome, stable, (result,), (reading,))


def server(true_rps: float, noise: float = 0.0, seed: int = 0) -> Server:
    def measured(step: Measure) -> WindowSample:
        luck = noise * float(np.random.default_rng((seed, step.repeat)).normal())
        return window(step, 1.2 * math.log(step.rate_rps / true_rps) + luck)

    return measured


def search(
    measured: Server, plan: SearchSettings = PLAN, economy: Economy = ECONOMY
) -> tuple[list[WindowSample], Capacity]:
    """Walk the search to its end."""
    seen: list[WindowSample] = []
    while isinstance(step := next_step(plan, economy, seen), Measure):
        assert len(seen) < MOST_WINDOWS
        seen.append(measured(step))
    return seen, step


def test_it_finds_a_capacity_with_a_short_window_first_and_full_ones_at_the_boundary() -> None:
    seen, found = search(server(11.34))
    assert found.verdict is CapacityVerdict.FOUND
    assert found.capacity_rps is not None
    assert found.first_failed_rps is not None
    assert found.capacity_rps <= 11.34 < found.first_failed_rps
    assert found.resolution_share is not None
    assert found.resolution_share <= 0.0301
    assert [seen[0].rate_rps, seen[0].duration_s] == [8.0, 40.0]
    for end_rps in (found.capacity_rps, found.first_failed_rps):
        assert max(each.duration_s for each in seen if each.rate_rps == end_rps) == 120.0
    near = [each for each in seen if each.duration_s >= 120.0 and 0.88 < each.rate_rps / 11.34 < 1.12]
    assert len(near) >= 3
    assert sum(each.duration_s for each in seen) < 0.6 * 10 * 120  # ten windows are what the published search takes


def test_a_wide_margin_makes_a_large_step_and_a_narrow_one_a_small_one() -> None:
    def second(true_rps: float) -> float:
        first = next_step(PLAN, ECONOMY, [])
        assert isinstance(first, Measure)
        step = next_step(PLAN, ECONOMY, [server(true_rps)(first)])
        assert isinstance(step, Measure)
        return step.rate_rps

    assert second(9.0) < second(12.0) < second(40.0) <= 8.0 * 1.25**4 + 1e-3


def test_every_window_has_a_draw_of_its_own() -> None:
    seen, _ = search(server(11.34, noise=0.1))
    assert [each.repeat for each in seen] == list(range(len(seen)))


def test_it_goes_down_when_the_start_fails() -> None:
    seen, found = search(server(1.0))
    assert found.capacity_rps is not None
    assert found.first_failed_rps is not None
    assert found.capacity_rps <= 1.0 < found.first_failed_rps
    assert len(seen) < 12


def test_nothing_that_passes_is_none_in_steps_that_double() -> None:
    seen, found = search(lambda step: window(step, 1.0, stable=False))
    assert (found.verdict, found.capacity_rps, found.first_failed_rps) == (CapacityVerdict.NONE, None, 0.125)
    assert [each.rate_rps for each in seen][:3] == [8.0, 6.4, 4.096]
    assert len(seen) < 10


def test_everything_that_passes_is_at_least_the_ceiling_with_its_repeats() -> None:
    seen, found = search(server(1e6), SearchSettings(highest_rps=20.0))
    assert (found.verdict, found.capacity_rps, found.first_failed_rps) == (CapacityVerdict.AT_LEAST, 20.0, None)
    assert sum(each.rate_rps == 20.0 and each.duration_s == 120.0 for each in seen) == 3


def test_a_ceiling_below_the_start_is_where_it_begins() -> None:
    seen, found = search(server(1e6), SearchSettings(highest_rps=5.0))
    assert {each.rate_rps for each in seen} == {5.0}
    assert found.verdict is CapacityVerdict.AT_LEAST


def test_a_rate_passes_by_its_windows_together() -> None:
    one_fails = [window(Measure(11.0, 0, 120.0), -0.5), window(Measure(11.0, 1, 120.0), 0.02)]
    assert [each.outcome for each in one_fails] == [Outcome.PASS, Outcome.FAIL]
    (found,) = pooled_tally(one_fails)
    assert (str(found), found.holds, found.is_unclear) == ("11.00: 1 of 2", True, False)


def test_windows_that_contradict_each_other_four_times_bound_nothing_and_are_told() -> None:
    def at(rate_rps: float, *signs: float) -> list[WindowSample]:
        return [window(Measure(rate_rps, repeat, 120.0), sign) for repeat, sign in enumerate(signs)]

    seen = [*at(11.0, -0.3, -0.3), *at(11.3, 0.03, -0.3, 0.03, -0.3), *at(11.6, 0.3, 0.3)]
    (_, unclear, _) = pooled_tally(seen)
    assert (str(unclear), unclear.is_unclear) == ("11.30: 2 of 4", True)
    found = next_step(PLAN, ECONOMY, seen)
    assert isinstance(found, Capacity)
    assert (found.capacity_rps, found.first_failed_rps, found.unclear) == (11.0, 11.6, (11.3,))


def test_a_rate_that_passed_above_a_failed_one_is_told() -> None:
    seen = [window(Measure(rate, 0, 120.0), off) for rate, off in ((11.0, -0.02), (11.3, 0.02), (11.8, -0.02))]
    step = next_step(PLAN, ECONOMY, seen)
    while isinstance(step, Measure):
        seen.append(server(11.15)(step))
        step = next_step(PLAN, ECONOMY, seen)
    assert step.contradictions == (11.8,)


def test_an_end_is_repeated_where_the_estimates_interval_excludes_it_not_for_an_estimate_that_is_off() -> None:
    below = [window(Measure(8.0, 0, 40.0), -0.25), window(Measure(10.0, 1, 120.0), -0.02)]
    seen = [*below, window(Measure(11.0, 2, 120.0), -0.005), window(Measure(11.3, 3, 120.0), 0.2)]
    off = capacity_estimate(SLO, seen)
    assert off is not None
    assert off.rps < 11.0 / 1.03 < 11.0 < off.high_rps
    assert isinstance(next_step(PLAN, ECONOMY, seen), Capacity)
    seen = [*seen[:-1], window(Measure(11.3, 3, 120.0), 0.25), window(Measure(11.64, 4, 120.0), 0.25)]
    contradicts = capacity_estimate(SLO, seen)
    assert contradicts is not None
    assert contradicts.high_rps < 11.0
    assert next_step(PLAN, ECONOMY, seen) == Measure(11.0, 5, 120.0)


def test_a_rate_that_no_window_can_save_is_not_repeated() -> None:
    (found,) = pooled_tally([window(Measure(12.0, 0, 120.0), 0.4)])
    assert found.is_lost
    (close,) = pooled_tally([window(Measure(12.0, 0, 120.0), 0.02)])
    assert not close.is_lost


rates = st.floats(0.05, 40.0).map(round_rate)
plans = st.builds(
    SearchSettings,
    start_rps=rates,
    growth=st.floats(1.15, 3.0),
    resolution_share=st.floats(0.005, 0.3),
    pass_repeats=st.integers(0, 3),
    fail_repeats=st.integers(0, 3),
    highest_rps=st.one_of(st.none(), rates),
)


@settings(deadline=None, max_examples=8)
@given(plans, st.floats(0.02, 60.0), st.sampled_from([0.0, 0.06, 0.5]), st.integers(0, 1000))
def test_however_noisy_it_ends_within_its_bounds_and_no_rate_has_five_windows(
    plan: SearchSettings, true_rps: float, noise: float, seed: int
) -> None:
    seen, found = search(server(true_rps, noise, seed), plan)
    assert len(seen) <= MOST_WINDOWS
    assert max(each.windows for each in found.tallies) <= MOST_AT_ONE_RATE
    assert all(plan.floor_rps <= each.rate_rps <= plan.ceiling_rps for each in seen)
    if found.capacity_rps is not None and found.first_failed_rps is not None:
        assert found.capacity_rps < found.first_failed_rps
    if noise == 0.0 and found.verdict is CapacityVerdict.FOUND:
        assert found.capacity_rps is not None
        assert found.first_failed_rps is not None
        assert found.capacity_rps <= true_rps * 1.001
        assert found.first_failed_rps > true_rps * 0.999


@settings(deadline=None, max_examples=3)
@given(st.floats(6.0, 20.0), st.integers(0, 1000))
def test_a_search_that_is_resumed_goes_the_same_way(true_rps: float, seed: int) -> None:
    seen, found = search(server(true_rps, 0.06, seed))
    for count, after in enumerate(seen):
        assert next_step(PLAN, ECONOMY, seen[:count]) == Measure(after.rate_rps, after.repeat, after.duration_s)
    assert next_step(PLAN, ECONOMY, seen) == found


def test_the_slowest_search_goes_down_to_the_floor() -> None:
    rates_down = slowest_search(PLAN)
    assert len(rates_down) == MOST_WINDOWS
    assert (rates_down[0], rates_down[-1]) == (8.0, PLAN.floor_rps)


@pytest.mark.parametrize("rate_rps", [0.4, 2.0, 8.0, 40.0])
def test_a_short_window_brings_the_sample_that_the_percentile_needs(rate_rps: float) -> None:
    short_s = QUICK.short_window_s(rate_rps, DEFAULT_SLO)
    assert short_s * rate_rps > 120
    assert 40.0 <= short_s <= QUICK.window_s(rate_rps, DEFAULT_SLO)
