"""The capacity fitted to the latencies of all windows of a sweep, with its interval. It is shown and decides nothing.

Per objective: the logarithm of its percentile against the logarithm of the rate is a line near the limit, and the
capacity is where the line crosses it. Both the crossing and the slope are unknown, so each pair of them is weighed by
how well it explains the windows: the percentiles of those that ran to their end, "above the limit" of those that ended
early. Blocks say how well a percentile is known. Windows with the same repeat share their draw, so they err together:
they tell the slope well, and the crossing hardly better than one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, logsumexp

from gates.margin import BLOCK_S, FloatArray, Shape, WindowSample, shape
from gates.slo import Objective

CONFIDENCE = 0.90

SHARED_DRAW = 0.8
"""Correlation of the percentiles of two windows with the same draw at neighbouring rates."""

BLOCK_SPREAD = 2.1
"""A percentile's standard deviation between blocks, in spreads, is taken as at least this. Blocks that follow each
other are alike, which their own differences do not show. Chosen so that the 90 % interval held the truth in 90 % of 250
searches on the five engines of benchmarks/search (seeds 1000 to 1049)."""

CURVATURE = 0.4
"""The slope between the limit and a window far from it may differ from the slope at the limit by this share."""

NEAR = 0.15
"""Windows whose percentile is within this distance of the limit, in logarithms, give the tail factor."""

SLOPES = np.geomspace(0.2, 40.0, 24)
SLOPE_CENTRE = 1.2
SLOPE_SD = 1.0
"""Candidates, and how likely they are before anything is seen: normal in the logarithm. A decode-bound server has 0.4
to 2, a queue that builds up 5 to 30."""

GRID_STEP = 0.004
GRID_REACH = 0.5
"""Crossings are looked for this far beyond the rates measured, in logarithms."""

EDGE_SHARE = 0.01
"""A distribution that is still above this share of its peak at an end of the grid lies beyond what was measured."""

WIDEST = 1.5
"""An interval whose ends differ by a larger factor is no estimate."""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median and the ends of the 90 % interval, in requests a second."""

    rps: float
    low_rps: float
    high_rps: float


@dataclass(frozen=True, slots=True)
class _Point:
    """A window for one objective. block_count: as planned. found: None where it is only known to be above the limit."""

    log_rate: float
    repeat: int
    block_count: int
    found: Shape | None


def capacity_estimate(slo: Sequence[Objective], windows: Sequence[WindowSample]) -> Estimate | None:
    """The capacity that the windows' latencies show; None where they cannot say.

    The objective that is crossed first limits, so the distribution of the smallest crossing is taken, objectives as if
    independent.
    """
    if not windows:
        return None
    logs = [math.log(each.rate_rps) for each in windows]
    grid = np.arange(min(logs) - GRID_REACH, max(logs) + GRID_REACH, GRID_STEP)
    above = np.ones(len(grid))
    for index, objective in enumerate(slo):
        points = _points(index, objective, windows)
        density = _crossing(math.log(objective.limit_s), points, grid)
        if density is not None:
            above *= 1 - np.cumsum(density)
        elif points:
            return None  # it was broken, and no window tells where
    below = 1 - above
    mass = np.diff(below, prepend=0.0)
    if max(mass[0], mass[-1]) >= EDGE_SHARE * mass.max():
        return None
    tail = (1 - CONFIDENCE) / 2
    low, middle, high = (math.exp(float(np.interp(share, below, grid))) for share in (tail, 0.5, 1 - tail))
    return Estimate(middle, low, high) if high / low <= WIDEST else None


def _points(index: int, objective: Objective, windows: Sequence[WindowSample]) -> list[_Point]:
    """What each window says of an objective. One that ended early while the objective held says nothing."""
    points = []
    for window in windows:
        result, found = window.results[index], shape(window.samples[index], objective)
        is_known = window.is_whole and found is not None and found.tail is not None and result.n >= objective.min_n
        if is_known or window.is_unstable or not result.holds:
            planned = max(1, int(window.duration_s / BLOCK_S))
            points.append(_Point(math.log(window.rate_rps), window.repeat, planned, found if is_known else None))
    return points


def _crossing(log_limit: float, points: Sequence[_Point], grid: FloatArray) -> FloatArray | None:
    """The probability of each log rate on the grid to be the one at which the objective is just met, (grid,).

    None where no window's percentile is known.
    """
    known = [each.found for each in points if each.found is not None]
    if not known:
        return None
    tail = _tail_factor(known, log_limit)
    variances = [max(BLOCK_SPREAD * each.spread, each.block_sd(tail)) ** 2 for each in known]
    variance = float(np.average(variances, weights=[each.block_count for each in known]))
    log_density = -0.5 * (np.log(SLOPES / SLOPE_CENTRE) / SLOPE_SD) ** 2 + np.zeros((len(grid), 1))
    for repeat in sorted({each.repeat for each in points}):
        same = [each for each in points if each.repeat == repeat]
        log_density = log_density + _draw(same, log_limit, tail, variance, grid)
    over_slopes = logsumexp(log_density, axis=1)
    density = np.exp(over_slopes - over_slopes.max())
    return np.asarray(density / density.sum(), dtype=np.float64)


def _tail_factor(known: Sequence[Shape], log_limit: float) -> float:
    """The windows near the limit agree on it better than any of them knows its own; far ones have another."""
    off = np.array([each.value(each.tail or 0.0) - log_limit for each in known])
    nearness = (off**2 - (off**2).min()) / (2 * NEAR**2)
    weights = np.exp(-nearness) * np.array([each.block_count for each in known])
    return float(np.average([each.tail or 0.0 for each in known], weights=weights))


def _draw(points: Sequence[_Point], log_limit: float, tail: float, variance: float, grid: FloatArray) -> FloatArray:
    """Log likelihood of the windows that share one draw, (grid, slopes); the shared error is integrated out."""
    total = np.log(_NODE_WEIGHTS / _NODE_WEIGHTS.sum()) + np.zeros((len(grid), len(SLOPES), 1))
    for point in points:
        distance = (point.log_rate - grid)[:, None, None]
        slope = SLOPES[None, :, None]
        sampling = variance / point.block_count
        shared = math.sqrt(SHARED_DRAW * sampling) * _NODES
        sd = np.sqrt((1 - SHARED_DRAW) * sampling + (CURVATURE * slope * distance) ** 2)
        expected = slope * distance + shared
        if point.found is None:
            total = total + log_ndtr(expected / sd)
        else:
            total = total - 0.5 * ((point.found.value(tail) - log_limit - expected) / sd) ** 2 - np.log(sd)
    return np.asarray(logsumexp(total, axis=2), dtype=np.float64)
