"""The capacity fitted to the latencies of all windows of a sweep, with its interval. It is shown and decides nothing.

Per objective: the logarithm of its percentile against the logarithm of the rate is a line near the limit, and the
capacity is where the line crosses it. The crossing, the slope and how much windows differ by chance are unknown, so
each choice of them is weighed by how well it explains the windows: the percentiles of those that ran to their end,
"above the limit" of those that ended early. Windows with the same repeat share their draw, so they err together: they
tell the slope well, and the crossing hardly better than one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, logsumexp

from gates.draw import FloatArray
from gates.margin import BLOCK_S, WindowSample
from gates.slo import Objective

CONFIDENCE = 0.90

SHARED_DRAW = 0.8
"""Correlation of the percentiles of two windows with the same draw at neighbouring rates."""

SCALES = (0.6, 0.85, 1.2, 1.7, 2.4)
"""How much more windows may differ than their blocks say; all equally likely before anything is seen."""

CURVATURE = 0.4
"""The slope between the limit and a window far from it may differ from the slope at the limit by this share."""

SLOPES = np.geomspace(0.2, 40.0, 24)
SLOPE_CENTRE = 1.2
SLOPE_SD = 1.0
"""Candidates, and how likely they are before anything is seen: normal in the logarithm. A decode-bound server has 0.4
to 2, a queue that builds up 5 to 30."""

GRID_STEP = 0.004
GRID_REACH = 0.5
"""Crossings are looked for this far beyond the rates measured, in logarithms."""

COARSE = 8
UNLIKELY = 14.0
"""Crossings that are less likely than the best by this factor, in logarithms, are left out."""

EDGE_SHARE = 0.01
"""A distribution that is still above this share of its peak at an end of the grid lies beyond what was measured."""

WIDEST = 1.5
"""An interval whose ends differ by a larger factor is no estimate."""

NEAR = 0.15
"""Windows whose percentile is within this distance of the limit, in logarithms, tell the variance of a block."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median and the ends of the 90 % interval, in requests a second."""

    rps: float
    low_rps: float
    high_rps: float


@dataclass(frozen=True, slots=True)
class _Point:
    """A window for one objective. variance: of its percentile, by blocks.

    distance: log percentile minus log limit; None where it is only known to be above 0.
    """

    log_rate: float
    repeat: int
    distance: float | None
    variance: float


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
        if any(each.distance is not None for each in points):
            above *= 1 - np.cumsum(_crossing(points, grid))
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
    """What each window says of an objective. One that ended early while the objective held says nothing.

    Windows near the limit tell the variance of a block; each window's own would make quiet windows weigh more.
    """
    known = [
        (window, reading, reading.log_value - math.log(objective.limit_s))
        for window in windows
        if window.is_whole and (reading := window.readings[index]) is not None and reading.log_value is not None
    ]
    if not known:
        return [_Point(0.0, 0, None, 0.0)] if any(not each.results[index].holds for each in windows) else []
    nearest = min(abs(off) for _, _, off in known)
    weights = [reading.blocks * math.exp(-(off**2 - nearest**2) / (2 * NEAR**2)) for _, reading, off in known]
    variance = float(np.average([reading.block_sd**2 for _, reading, _ in known], weights=weights))
    points = [
        _Point(math.log(window.rate_rps), window.repeat, off, variance / reading.blocks)
        for window, reading, off in known
    ]
    seen = {id(window) for window, _, _ in known}
    for window in windows:
        if id(window) not in seen and (window.is_unstable or not window.results[index].holds):
            planned = max(1, int(window.duration_s / BLOCK_S))
            points.append(_Point(math.log(window.rate_rps), window.repeat, None, variance / planned))
    return points


def _crossing(points: Sequence[_Point], grid: FloatArray) -> FloatArray:
    """The probability of each log rate on the grid to be the one at which the objective is just met, (grid,).

    Every eighth is tried first; the rest of the grid is looked at only where these leave it a chance.
    """
    coarse = _log_density(points, grid[::COARSE])
    likely = np.interp(grid, grid[::COARSE], coarse) > coarse.max() - UNLIKELY
    likely = np.convolve(likely, np.ones(2 * COARSE + 1), "same") > 0
    density = np.zeros(len(grid))
    fine = _log_density(points, grid[likely])
    density[likely] = np.exp(fine - fine.max())
    return np.asarray(density / density.sum(), dtype=np.float64)


def _log_density(points: Sequence[_Point], grid: FloatArray) -> FloatArray:
    """Log likelihood of each crossing, over all slopes and scales, up to a constant, (grid,)."""
    prior = -0.5 * (np.log(SLOPES / SLOPE_CENTRE) / SLOPE_SD) ** 2
    draws = [[each for each in points if each.repeat == repeat] for repeat in sorted({each.repeat for each in points})]
    found = [sum((_draw(same, scale, grid) for same in draws), prior) for scale in SCALES]
    return np.asarray(logsumexp(found, axis=(0, 2)), dtype=np.float64)


def _draw(points: Sequence[_Point], scale: float, grid: FloatArray) -> FloatArray:
    """Log likelihood of the windows that share one draw, (grid, slopes).

    Their shared error is one standard normal number times each window's own factor. Where they tell its mean and
    variance the normal integral over it has a closed form; windows that are only known to be above the limit follow.
    """
    shared_part = SHARED_DRAW if len(points) > 1 else 0.0
    total = np.zeros((len(grid), len(SLOPES)))
    weight, pull = np.ones_like(total), np.zeros_like(total)
    above = []
    for point in points:
        away = SLOPES[None, :] * (point.log_rate - grid)[:, None]
        sampling = scale * scale * point.variance
        own = (1 - shared_part) * sampling + (CURVATURE * away) ** 2
        factor = math.sqrt(shared_part * sampling)
        if point.distance is None:
            above.append((away, own, factor))
        else:
            off = point.distance - away
            total -= 0.5 * (off * off / own + np.log(own))
            weight += factor * factor / own
            pull += factor * off / own
    total += 0.5 * (pull * pull / weight - np.log(weight))
    for away, own, factor in above:
        total += log_ndtr((away + factor * pull / weight) / np.sqrt(own + factor * factor / weight))
    return total
