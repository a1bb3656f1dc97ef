"""The search: which window to measure next. A pure function of what was seen, so a resumed search goes the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gates.capacity import Capacity, CapacityVerdict, Observation, Tally, bracket, conclude, tally
from traffic.errors import UsageError

HIGHEST_FACTOR = 16.0
"""Without --max-request-rate the growth ends at this many times the start rate."""

LEAST_GROWTH = 1.01
"""A smaller factor would take more than seventy probes to double a rate."""

LOWEST_FACTOR = 64.0
"""The search goes below a failing start down to the start rate divided by this."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Geometric growth from start_rps by `growth`, bisection down to resolution_share, then repeats at the boundary.

    pass_repeats and fail_repeats: further windows, with other seeds, at the last pass and the first fail.
    """

    start_rps: float = 8.0
    growth: float = 1.25
    resolution_share: float = 0.03
    pass_repeats: int = 2
    fail_repeats: int = 2
    highest_rps: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start_rps) and self.start_rps > 0):
            raise UsageError(f"the start rate must be above 0 req/s, not {self.start_rps:g}")
        if not (math.isfinite(self.growth) and self.growth >= LEAST_GROWTH):
            raise UsageError(f"the growth must be above 1 (at least {LEAST_GROWTH}), not {self.growth:g}")
        if not 0 < self.resolution_share < 1:
            raise UsageError(f"the resolution must be between 0 and 1, not {self.resolution_share:g}")
        if self.highest_rps is not None and not (math.isfinite(self.highest_rps) and self.highest_rps > 0):
            raise UsageError(f"the highest request rate must be above 0 req/s, not {self.highest_rps:g}")

    @property
    def ceiling_rps(self) -> float:
        """The highest rate that may be tried."""
        return round_rate(self.start_rps * HIGHEST_FACTOR if self.highest_rps is None else self.highest_rps)

    @property
    def floor_rps(self) -> float:
        """The lowest rate that may be tried."""
        return round_rate(min(self.start_rps, self.ceiling_rps) / LOWEST_FACTOR)


@dataclass(frozen=True, slots=True)
class Measure:
    """The next window to measure. duration_s: None for the mode's own length."""

    rate_rps: float
    repeat: int
    duration_s: float | None = None


def round_rate(rate_rps: float) -> float:
    """Six significant digits: enough for any resolution, and short enough to be typed again."""
    return float(f"{rate_rps:.6g}")


def next_step(settings: SearchSettings, seen: Sequence[Observation]) -> Measure | Capacity:
    """What to measure next, or the answer."""
    tallies = tally(seen)
    low, high = bracket(tallies)
    if low is None and high is None:
        return Measure(round_rate(min(settings.start_rps, settings.ceiling_rps)), 0)
    if high is None and low is not None:
        return _grow(settings, low, seen)
    if low is None and high is not None:
        return _shrink(settings, high, tallies, seen)
    assert low is not None  # noqa: S101 - for the type checker: both ends exist here
    assert high is not None  # noqa: S101 - as above
    middle = round_rate(math.sqrt(low.rate_rps * high.rate_rps))
    is_wide = high.rate_rps / low.rate_rps - 1 > settings.resolution_share
    if is_wide and low.rate_rps < middle < high.rate_rps:
        return Measure(middle, 0)
    return (
        _repeat(low, settings.pass_repeats)
        or _repeat(high, settings.fail_repeats)
        or conclude(seen, CapacityVerdict.FOUND)
    )


def _grow(settings: SearchSettings, low: Tally, seen: Sequence[Observation]) -> Measure | Capacity:
    """Everything passed so far: go up, or confirm the ceiling."""
    if low.rate_rps < settings.ceiling_rps:
        return Measure(min(round_rate(low.rate_rps * settings.growth), settings.ceiling_rps), 0)
    return _repeat(low, settings.pass_repeats) or conclude(seen, CapacityVerdict.AT_LEAST)


def _shrink(
    settings: SearchSettings, high: Tally, tallies: Sequence[Tally], seen: Sequence[Observation]
) -> Measure | Capacity:
    """Nothing passed so far: go down, faster with each failure, since the start may be far off."""
    failed = sum(not each.holds for each in tallies)
    factor = settings.growth ** (2 ** (failed - 1)) if failed < 6 else LOWEST_FACTOR  # noqa: PLR2004 - no overflow
    lower = max(round_rate(high.rate_rps / factor), settings.floor_rps)
    if lower < high.rate_rps:
        return Measure(lower, 0)
    return conclude(seen, CapacityVerdict.NONE)


def _repeat(end: Tally, repeats: int) -> Measure | None:
    """The next repeat at one end of the bracket, None when it has them all."""
    return Measure(end.rate_rps, end.windows) if end.windows < 1 + repeats else None


def possible_searches(settings: SearchSettings) -> list[list[float]]:
    """The rates of each window, in order, for true limits between floor and ceiling; verdicts have no noise."""
    steps = 200
    span = math.log(settings.ceiling_rps * 1.01 / (settings.floor_rps * 0.99))
    limits = [settings.floor_rps * 0.99 * math.exp(span * step / steps) for step in range(steps + 1)]
    return [rates_needed(settings, limit_rps) for limit_rps in limits]


def longest_search(settings: SearchSettings) -> int:
    """The largest number of windows that a search without contradictions takes."""
    return max(len(rates) for rates in possible_searches(settings))


def rates_needed(settings: SearchSettings, limit_rps: float) -> list[float]:
    """The rates that the search measures when exactly those up to limit_rps pass."""
    seen: list[Observation] = []
    while isinstance(step := next_step(settings, seen), Measure):
        seen.append(Observation(step.rate_rps, step.repeat, step.rate_rps <= limit_rps))
    return [each.rate_rps for each in seen]
