"""Strategy "economical": which window to measure next, from everything that the windows before it showed.

A pure function of what was seen, as `slo_bench.search` is, so that a resumed search goes the same way. Short windows
far from the boundary, steps as large as the margin allows, then full windows where the estimate puts the boundary. Each
window has a draw of its own: under one draw the search would find the capacity of that draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gates.capacity import MOST_AT_ONE_RATE, Capacity, CapacityVerdict, Tally, bracket, concluded, pooled_tally
from gates.estimate import capacity_estimate
from gates.margin import WindowSample
from gates.slo import Objective
from slo_bench.search import Measure, SearchSettings, round_rate

USUAL_SLOPE = 1.2
"""A percentile grows like the rate to about this power, as long as nothing queues: so far a margin lets the rate go."""

LARGEST_STEP = 4
"""No step is larger than this many growth steps at once."""

NEAR_MARGIN = 0.25
"""With a larger margin, in logarithms of the latency, the next window is a short one too."""

WIDE = 1.5
"""A bracket wider than this is narrowed by short windows."""

AROUND = 1.12
"""Full windows within this factor of the bracket count as being at the boundary."""

MOST_WINDOWS = 16
"""Whatever the windows say, the search ends."""


@dataclass(frozen=True, slots=True)
class Economy:
    """What the strategy needs beside the search's settings: the objectives, and windows' lengths (s) at a rate."""

    slo: tuple[Objective, ...]
    full_s: Callable[[float], float]
    short_s: Callable[[float], float]


def next_step(settings: SearchSettings, economy: Economy, seen: Sequence[WindowSample]) -> Measure | Capacity:
    """What to measure next, or the answer."""
    search = _Search(settings, economy, seen)
    if not seen:
        return search.measure(min(settings.start_rps, settings.ceiling_rps), is_full=False)
    if len(seen) >= MOST_WINDOWS:
        is_found = search.low is not None and search.high is not None
        return search.answer(CapacityVerdict.FOUND if is_found else CapacityVerdict.UNFINISHED)
    if search.high is None:
        return search.grow()
    if search.low is None:
        return search.shrink(search.high)
    return search.narrow(search.low, search.high)


def slowest_search(settings: SearchSettings) -> list[float]:
    """The rates of the longest search: nothing passes, and windows at low rates are long."""
    rates, factor = [min(settings.start_rps, settings.ceiling_rps)], 1
    while len(rates) < MOST_WINDOWS:
        rates.append(max(settings.floor_rps, rates[-1] / settings.growth**factor))
        factor = min(2 * factor, LARGEST_STEP)
    return rates


class _Search:
    """What was seen, and what follows from it. low, high: the ends of the bracket, None where there is none yet."""

    def __init__(self, settings: SearchSettings, economy: Economy, seen: Sequence[WindowSample]) -> None:
        self.settings = settings
        self.economy = economy
        self.seen = seen
        self.tallies = pooled_tally(seen)
        self.low, self.high = bracket(self.tallies)
        self.estimate = capacity_estimate(economy.slo, seen)
        self.estimate_rps = None if self.estimate is None else self.estimate.rps

    def answer(self, verdict: CapacityVerdict) -> Capacity:
        """The end of the search."""
        return concluded(self.tallies, verdict)

    def measure(self, rate_rps: float, *, is_full: bool) -> Measure:
        """The next window, with a fresh draw."""
        rate_rps = round_rate(min(max(rate_rps, self.settings.floor_rps), self.settings.ceiling_rps))
        length_s = self.economy.full_s if is_full else self.economy.short_s
        return Measure(rate_rps, len(self.seen), length_s(rate_rps))

    def full_windows(self, rate_rps: float) -> int:
        """How many full windows a rate has."""
        full_s = self.economy.full_s(rate_rps)
        return sum(each.rate_rps == rate_rps and _is_as_long(each, full_s) for each in self.seen)

    def margin(self, rate_rps: float) -> float | None:
        """The smallest distance to a limit at a rate, in logarithms of the latency; None where nothing tells it."""
        return min(
            (
                math.log(objective.limit_s) - reading.log_value
                for window in self.seen
                if window.rate_rps == rate_rps and window.is_whole
                for objective, reading in zip(self.economy.slo, window.readings, strict=True)
                if reading is not None and reading.log_value is not None
            ),
            default=None,
        )

    def towards(self, rate_rps: float, way: int, blind_steps: int = 1) -> float:
        """Where the boundary should be, seen from a rate and in one direction only (way: 1 is up, -1 is down).

        blind_steps: growth steps to go where nothing tells how far it is.
        """
        growth, settings = math.log(self.settings.growth), self.settings
        margin = self.margin(rate_rps)
        if self.estimate_rps is not None:
            step = way * math.log(self.estimate_rps / rate_rps)
        elif margin is not None:
            step = way * margin / USUAL_SLOPE
        else:
            step = growth * blind_steps
        least = math.log1p(settings.resolution_share)
        return rate_rps * math.exp(way * min(max(step, least), LARGEST_STEP * growth))

    def grow(self) -> Measure | Capacity:
        """Nothing failed so far, unclear rates aside: go up, or confirm the ceiling."""
        top = self.tallies[-1]
        if top.rate_rps >= self.settings.ceiling_rps:
            wanted = 1 + self.settings.pass_repeats
            if self.full_windows(top.rate_rps) < wanted and top.windows < MOST_AT_ONE_RATE:
                return self.measure(top.rate_rps, is_full=True)
            return self.answer(CapacityVerdict.UNFINISHED if top.is_unclear else CapacityVerdict.AT_LEAST)
        margin = self.margin(top.rate_rps)
        is_near = self.estimate_rps is not None or (margin is not None and margin <= NEAR_MARGIN)
        return self.measure(self.towards(top.rate_rps, 1), is_full=is_near)

    def shrink(self, high: Tally) -> Measure | Capacity:
        """Nothing passed so far: go down, faster with each failure where nothing tells how far."""
        bottom = self.tallies[0]
        if (doubtful := self.doubtful(None, high)) is not None:
            return self.measure(doubtful.rate_rps, is_full=True)
        if bottom.rate_rps <= self.settings.floor_rps:
            return self.answer(CapacityVerdict.UNFINISHED if bottom.is_unclear else CapacityVerdict.NONE)
        failed = sum(not each.holds for each in self.tallies)
        below = self.towards(bottom.rate_rps, -1, 2 ** min(failed - 1, LARGEST_STEP))
        return self.measure(below, is_full=self.estimate_rps is not None)

    def doubtful(self, low: Tally | None, high: Tally) -> Tally | None:
        """The end of the bracket that the estimate's interval contradicts, where another window could turn it."""
        if self.estimate is None:
            return None
        if low is not None and self.estimate.high_rps < low.rate_rps and low.windows < MOST_AT_ONE_RATE:
            return low
        is_beyond = self.estimate.low_rps > high.rate_rps
        return high if is_beyond and high.windows < MOST_AT_ONE_RATE and not high.is_lost else None

    def narrow(self, low: Tally, high: Tally) -> Measure | Capacity:
        """There is a bracket: split it where the estimate puts the boundary; an end that it contradicts is repeated."""
        if (doubtful := self.doubtful(low, high)) is not None:
            return self.measure(doubtful.rate_rps, is_full=True)
        step, aim = 1 + self.settings.resolution_share, self.estimate_rps
        least, most = low.rate_rps * step, high.rate_rps / step
        middle = math.sqrt(low.rate_rps * high.rate_rps)
        rate_rps = round_rate(middle if aim is None or least >= most else min(max(aim, least), most))
        is_wide = high.rate_rps / low.rate_rps > step * (1 + 1e-5)
        if is_wide and low.rate_rps < rate_rps < high.rate_rps and not self.is_unclear_at(rate_rps):
            return self.measure(rate_rps, is_full=aim is not None or high.rate_rps / low.rate_rps < WIDE)
        return self.settle(low, high)

    def is_unclear_at(self, rate_rps: float) -> bool:
        """Whether a rate is as near to an unclear one as the search may resolve: it would tell nothing new."""
        near = math.log1p(self.settings.resolution_share) / 2
        return any(each.is_unclear and abs(math.log(each.rate_rps / rate_rps)) < near for each in self.tallies)

    def settle(self, low: Tally, high: Tally) -> Measure | Capacity:
        """The bracket is as narrow as it gets: both ends have full windows, and there are enough of them around it."""
        ends = sorted((low, high), key=lambda each: self.full_windows(each.rate_rps))
        around = sum(
            _is_as_long(each, self.economy.full_s(each.rate_rps))
            and low.rate_rps / AROUND <= each.rate_rps <= high.rate_rps * AROUND
            for each in self.seen
        )
        open_ends = [each for each in ends if each.windows < MOST_AT_ONE_RATE and not each.is_lost]
        wanted = 1 + max(self.settings.pass_repeats, self.settings.fail_repeats)
        if open_ends and (self.full_windows(ends[0].rate_rps) == 0 or around < wanted):
            return self.measure(open_ends[0].rate_rps, is_full=True)
        return self.answer(CapacityVerdict.FOUND)


def _is_as_long(window: WindowSample, length_s: float) -> bool:
    """Lengths come from times that were added and taken away again, so they differ in the last digits."""
    return window.duration_s >= length_s - 1e-6
