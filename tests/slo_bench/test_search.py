"""The search: which window comes next, where it ends, and that it always does."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.capacity import Capacity, CapacityVerdict, Observation, rate_text
from slo_bench.search import (
    Measure,
    SearchSettings,
    longest_search,
    next_step,
    rates_needed,
    round_rate,
)
from traffic.errors import UsageError

Passes = Callable[[Measure], bool]
MOST = 400


def search(plan: SearchSettings, passes: Passes) -> tuple[list[Observation], Capacity]:
    """Walk the search to its end."""
    seen: list[Observation] = []
    while isinstance(step := next_step(plan, seen), Measure):
        assert len(seen) < MOST
        seen.append(Observation(step.rate_rps, step.repeat, passes(step)))
    return seen, step


def up_to(limit_rps: float, *exceptions: tuple[str, int]) -> Passes:
    """Rates up to a limit pass; `exceptions` (rate as printed, repeat) turn out the other way."""
    return lambda step: (step.rate_rps <= limit_rps) != ((rate_text(step.rate_rps), step.repeat) in exceptions)


def walk(seen: list[Observation]) -> list[str]:
    return [f"{rate_text(each.rate_rps)}{'+' if each.passed else '-'}" for each in seen]


rates = st.floats(0.02, 60.0).map(round_rate)
plans = st.builds(
    SearchSettings,
    start_rps=rates,
    growth=st.floats(1.15, 4.0),
    resolution_share=st.floats(0.003, 0.4),
    pass_repeats=st.integers(0, 3),
    fail_repeats=st.integers(0, 3),
    highest_rps=st.one_of(st.none(), rates),
)


@st.composite
def plans_and_limits(draw: st.DrawFn) -> tuple[SearchSettings, float]:
    plan = draw(plans)
    low, high = math.log(plan.floor_rps * 0.9), math.log(plan.ceiling_rps * 1.1)
    return plan, math.exp(draw(st.floats(low, high)))


def test_the_golden_case() -> None:
    seen, found = search(SearchSettings(), up_to(11.34))
    assert walk(seen) == [
        "8.00+", "10.00+", "12.50-", "11.18+", "11.82-", "11.50-", "11.18+", "11.18+", "11.50-", "11.50-",
    ]  # fmt: skip
    assert [each.repeat for each in seen] == [0, 0, 0, 0, 0, 0, 1, 2, 1, 2]
    assert "; ".join(str(each) for each in found.boundary) == "11.18: 3 of 3; 11.50: 0 of 3"
    assert found.verdict is CapacityVerdict.FOUND
    assert found.capacity_rps is not None
    assert rate_text(found.capacity_rps) == "11.18"
    assert found.resolution_share == pytest.approx(0.028, abs=0.0005)


def test_it_goes_down_when_the_start_fails_in_steps_that_double() -> None:
    seen, found = search(SearchSettings(), up_to(1.0))
    assert walk(seen)[:4] == ["8.00-", "6.40-", "4.096-", "1.678-"]
    assert found.capacity_rps is not None
    assert found.first_failed_rps is not None
    assert found.capacity_rps <= 1.0 < found.first_failed_rps


def test_nothing_that_passes_down_to_the_floor_is_none() -> None:
    seen, found = search(SearchSettings(), up_to(0.0))
    assert (found.verdict, found.capacity_rps, found.first_failed_rps) == (CapacityVerdict.NONE, None, 0.125)
    assert len(seen) < 8


def test_everything_that_passes_up_to_the_ceiling_is_at_least_that_with_its_repeats() -> None:
    seen, found = search(SearchSettings(highest_rps=20.0), up_to(1e9))
    assert walk(seen) == ["8.00+", "10.00+", "12.50+", "15.62+", "19.53+", "20.00+", "20.00+", "20.00+"]
    assert (found.verdict, found.capacity_rps, found.first_failed_rps) == (CapacityVerdict.AT_LEAST, 20.0, None)


def test_a_ceiling_below_the_start_is_where_it_begins() -> None:
    seen, found = search(SearchSettings(highest_rps=5.0), up_to(1e9))
    assert {each.rate_rps for each in seen} == {5.0}
    assert found.verdict is CapacityVerdict.AT_LEAST


def test_without_a_given_ceiling_it_ends_at_sixteen_times_the_start() -> None:
    _, found = search(SearchSettings(), up_to(1e9))
    assert (found.verdict, found.capacity_rps) == (CapacityVerdict.AT_LEAST, 128.0)


def test_rates_below_one_stay_fractional() -> None:  # R16
    seen, found = search(SearchSettings(start_rps=0.25), up_to(0.42))
    assert all(each.rate_rps > 0 for each in seen)
    assert found.capacity_rps is not None
    assert found.first_failed_rps is not None
    assert found.capacity_rps <= 0.42 < found.first_failed_rps
    assert found.resolution_share is not None
    assert found.resolution_share <= 0.03


@pytest.mark.parametrize("growth", [1.0, 0.5, -1.25, math.nan, math.inf])
def test_a_growth_that_does_not_grow_is_refused(growth: float) -> None:  # R16
    with pytest.raises(UsageError, match="growth must be above 1"):
        SearchSettings(growth=growth)


def test_a_growth_too_small_to_change_a_rate_is_refused() -> None:  # R16: no rate twice by rounding
    with pytest.raises(UsageError, match="growth"):
        SearchSettings(growth=1.0000001)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_rps": 0.0},
        {"start_rps": -8.0},
        {"start_rps": math.inf},
        {"start_rps": math.nan},
        {"resolution_share": 0.0},
        {"resolution_share": 1.0},
        {"resolution_share": math.nan},
        {"highest_rps": 0.0},
        {"highest_rps": math.nan},
        {"highest_rps": math.inf},
    ],
    ids=str,
)
def test_impossible_settings_are_refused_with_the_value(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"not {next(iter(wrong.values())):g}"):
        SearchSettings(**wrong)


def test_a_bracket_that_no_rate_fits_into_is_the_answer() -> None:  # R16
    plan = SearchSettings(resolution_share=1e-7, pass_repeats=0, fail_repeats=0)
    seen = [Observation(11.18, 0, passed=True), Observation(11.1801, 0, passed=False)]
    found = next_step(plan, seen)
    assert isinstance(found, Capacity)
    assert (found.capacity_rps, found.first_failed_rps) == (11.18, 11.1801)


def test_a_bracket_narrower_than_the_resolution_is_only_repeated() -> None:  # R16
    seen = [Observation(11.18, 0, passed=True), Observation(11.19, 0, passed=False)]
    assert next_step(SearchSettings(), seen) == Measure(11.18, 1)


def test_a_repeat_that_fails_moves_the_bracket_and_the_search_goes_on() -> None:
    seen, found = search(SearchSettings(), up_to(11.34, ("11.18", 1)))
    assert walk(seen)[6:] == ["11.18-", "10.57+", "10.87+", "10.87+", "10.87+", "11.18+"]
    assert [str(each) for each in found.boundary] == ["10.87: 3 of 3", "11.18: 2 of 3"]


def test_a_repeat_that_passes_at_the_failed_end_is_told_and_moves_nothing() -> None:
    _, found = search(SearchSettings(), up_to(11.34, ("11.50", 1)))
    assert [str(each) for each in found.boundary] == ["11.18: 3 of 3", "11.50: 1 of 3"]


def test_when_every_pass_is_turned_by_its_repeat_it_goes_on_below_the_start() -> None:
    _, found = search(SearchSettings(), lambda step: step.rate_rps <= 12.0 and (step.repeat == 0 or step.rate_rps < 5))
    assert found.capacity_rps is not None
    assert found.capacity_rps < 5


@settings(deadline=None, max_examples=25)
@given(plans_and_limits())
def test_for_any_limit_it_ends_in_time_with_the_limit_in_its_bracket(case: tuple[SearchSettings, float]) -> None:
    plan, limit_rps = case
    seen, found = search(plan, up_to(limit_rps))
    assert len(seen) == len(rates_needed(plan, limit_rps)) <= longest_search(plan)
    assert len({(each.rate_rps, each.repeat) for each in seen}) == len(seen)
    tallies = {each.rate_rps: each for each in found.tallies}
    if found.capacity_rps is not None:
        assert found.capacity_rps <= limit_rps
        assert tallies[found.capacity_rps].windows == 1 + plan.pass_repeats
    if found.first_failed_rps is not None:
        assert found.first_failed_rps > limit_rps
    if found.verdict is CapacityVerdict.FOUND:
        assert found.capacity_rps is not None
        assert found.first_failed_rps is not None
        assert found.resolution_share is not None
        middle = round_rate(math.sqrt(found.capacity_rps * found.first_failed_rps))
        fits_between = found.capacity_rps < middle < found.first_failed_rps
        assert found.resolution_share <= plan.resolution_share or not fits_between
        assert tallies[found.first_failed_rps].windows == 1 + plan.fail_repeats


@settings(deadline=None, max_examples=60)
@given(plans_and_limits())
def test_every_rate_has_six_digits_and_lies_between_floor_and_ceiling(case: tuple[SearchSettings, float]) -> None:
    plan, limit_rps = case
    seen, _ = search(plan, up_to(limit_rps))
    for each in seen:
        assert each.rate_rps == round_rate(each.rate_rps)
        assert plan.floor_rps <= each.rate_rps <= plan.ceiling_rps


@settings(deadline=None, max_examples=100)
@given(plans, st.integers(0, 2**31))
def test_however_windows_contradict_each_other_it_ends_and_repeats_none(plan: SearchSettings, noise: int) -> None:
    def coin(step: Measure) -> bool:
        return zlib.crc32(f"{noise} {step.rate_rps} {step.repeat}".encode()) % 2 == 0

    seen, found = search(plan, coin)
    assert len({(each.rate_rps, each.repeat) for each in seen}) == len(seen)
    assert max(each.repeat for each in seen) <= max(plan.pass_repeats, plan.fail_repeats)
    if found.capacity_rps is not None:
        assert all(each.passed for each in seen if each.rate_rps == found.capacity_rps)


@settings(deadline=None, max_examples=40)
@given(plans_and_limits(), st.data())
def test_a_search_that_is_resumed_goes_the_same_way(case: tuple[SearchSettings, float], data: st.DataObject) -> None:
    plan, limit_rps = case
    seen, found = search(plan, up_to(limit_rps))
    for count, after in enumerate([*seen, None]):
        known = data.draw(st.permutations(seen[:count])) if count < 6 else seen[:count]
        step = next_step(plan, known)
        if after is None:
            assert isinstance(step, Capacity)
            assert (step.capacity_rps, step.verdict) == (found.capacity_rps, found.verdict)
        else:
            assert step == Measure(after.rate_rps, after.repeat)


def test_the_default_search_takes_at_most_this_many_windows() -> None:
    assert len(rates_needed(SearchSettings(), 11.34)) == 10
    assert longest_search(SearchSettings()) == max(
        len(rates_needed(SearchSettings(), 0.1 * 1.02**step)) for step in range(380)
    )
