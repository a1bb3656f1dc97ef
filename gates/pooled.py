"""Percentiles and goodput of many blocks together: requests are pooled, whole pairs of blocks are resampled.

A percentile of a block of a minute says little, and percentiles cannot be averaged. Requests of one block depend on
each other, so what is drawn again and again is the pair, or the start of a server, never the request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from gates.log_ratio import Estimate, log_ratio
from gates.starts import MIN_STARTS, FloatArray
from traffic.randomness import stream

IntArray = npt.NDArray[np.int64]

DRAWS = 2000
MIN_N_FOR_P99 = 100
"""Below this many requests the 99th percentile is only the largest value."""

_MOST_UNDEFINED = 0.025
"""Of the draws; where more have no value, the interval's ends have none."""


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """The measured requests of one block.

    tpot_s, ttft_s: of those that have the metric or failed; a failure is infinite, worse than any limit. The means are
    over finished requests, None without one. good: requests that met every objective. window_s: the measured seconds.
    power_mean_w, joules_per_token: of the block's GPUs, None where power was not measured.
    """

    tpot_s: FloatArray
    ttft_s: FloatArray
    tpot_mean_s: float | None
    ttft_mean_s: float | None
    good: int
    window_s: float
    power_mean_w: float | None = None
    joules_per_token: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Resampling:
    """How often each pair counts in each draw: shape (draws, pairs). units: how many things were drawn among."""

    counts: IntArray
    units: int


def resampling(starts_a: Sequence[int], starts_b: Sequence[int], seed: int, draws: int = DRAWS) -> Resampling:
    """Draw pairs; with three starts of each arm or more, draw starts, and a pair counts as often as both of its own.

    Starts that only meet each other are one unit. Drawing both arms' starts independently overstates the noise, never
    the offsets (A. B. Owen, Ann. Appl. Stat. 1, 2007, p. 386).
    """
    generator = stream("comparison bootstrap", seed)
    ids_a, index_a = np.unique(np.array(starts_a), return_inverse=True)
    ids_b, index_b = np.unique(np.array(starts_b), return_inverse=True)
    if min(len(ids_a), len(ids_b)) < MIN_STARTS:
        n = len(starts_a)
        return Resampling(generator.multinomial(n, [1 / n] * n, size=draws), n)
    drawn_a = _drawn(generator, len(ids_a), draws)[:, index_a]
    if len(set(zip(starts_a, starts_b, strict=True))) == len(ids_a) == len(ids_b):
        return Resampling(drawn_a, len(ids_a))
    drawn_b = _drawn(generator, len(ids_b), draws)[:, index_b]
    return Resampling(drawn_a * drawn_b, min(len(ids_a), len(ids_b)))


def _drawn(generator: np.random.Generator, count: int, draws: int) -> IntArray:
    return generator.multinomial(count, [1 / count] * count, size=draws)


def percentile_effect(
    a: Sequence[FloatArray], b: Sequence[FloatArray], percentile: Decimal, resampled: Resampling
) -> tuple[float | None, float | None, Estimate | None]:
    """A percentile (in percent) of all blocks' requests in both arms, and its effect.

    a and b: values in seconds, one array per pair. None where a percentile falls on a failure or has too few requests.
    """
    once: IntArray = np.ones((1, len(a)), dtype=np.int64)
    values = [_finite(float(_percentiles(each, once, percentile)[0])) for each in (a, b)]
    if percentile >= Decimal(99) and min(sum(map(len, a)), sum(map(len, b))) < MIN_N_FOR_P99:
        return None, None, None
    point = log_ratio(*values)
    if point is None:
        return values[0], values[1], None
    drawn = [_percentiles(each, resampled.counts, percentile) for each in (a, b)]
    return values[0], values[1], _resampled_estimate(point, drawn[0], drawn[1], resampled.units)


def goodput_effect(
    a: Sequence[Cohort], b: Sequence[Cohort], resampled: Resampling
) -> tuple[float | None, float | None, Estimate | None]:
    """Requests per second that met every objective, over all blocks, and their effect."""
    rates, drawn = [], []
    for each in (a, b):
        good = np.array([cohort.good for cohort in each], dtype=np.float64)
        seconds = np.array([cohort.window_s for cohort in each])
        rates.append(float(good.sum() / seconds.sum()))
        with np.errstate(invalid="ignore"):
            drawn.append((resampled.counts @ good) / (resampled.counts @ seconds))
    point = log_ratio(*rates)
    estimate = None if point is None else _resampled_estimate(point, drawn[0], drawn[1], resampled.units)
    return rates[0], rates[1], estimate


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _resampled_estimate(point: float, a: FloatArray, b: FloatArray, units: int) -> Estimate:
    """The error from the spread of the draws, made as large as that of a mean of so few units.

    The plain bootstrap's spread is that of a mean whose variance was divided by n instead of n - 1, and its percentiles
    are a normal's instead of a t's (T. C. Hesterberg, Am. Stat. 69, 2015, p. 371).
    """
    if units < 2:  # noqa: PLR2004 - one unit has no spread
        return Estimate(point, None, 0)
    usable = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
    if np.mean(~usable) > _MOST_UNDEFINED:
        return Estimate(point, None, 0)
    spread = float(np.std(np.log(b[usable]) - np.log(a[usable])))
    return Estimate(point, spread * math.sqrt(units / (units - 1)), units - 1)


def _percentiles(blocks: Sequence[FloatArray], counts: IntArray, percentile: Decimal) -> FloatArray:
    """The nearest rank of the pooled blocks in each draw, NaN where a draw holds no request; shape (draws,).

    Counted from the largest value down: the percentile is the first one that has more than the allowed number at or
    above it. What each block has at or above a place is counted once, so a draw is a bisection over the places.
    """
    pooled = np.concatenate(blocks)
    order = np.argsort(pooled, kind="stable")[::-1]
    sizes = np.array([len(block) for block in blocks], dtype=np.int64)
    owner = np.repeat(np.arange(len(blocks)), sizes)[order]
    at_or_above = np.cumsum(owner[:, None] == np.arange(len(blocks)), axis=0)
    n = counts @ sizes
    found = np.full(len(counts), np.nan)
    some = np.flatnonzero(n)
    allowed = _allowed(n[some], percentile)
    low, high = np.full(len(some), -1), np.full(len(some), len(pooled) - 1)
    while np.any(high - low > 1):
        middle = np.maximum((low + high) // 2, 0)
        reached = np.sum(at_or_above[middle] * counts[some], axis=1) > allowed
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    found[some] = pooled[order][high]
    return found


def _allowed(n: IntArray, percentile: Decimal) -> IntArray:
    """How many of n may lie above the percentile: floor((1 - p) n), exactly; see `traffic.summary.allowed`."""
    numerator, denominator = ((100 - percentile) / 100).as_integer_ratio()
    allowed: IntArray = n * numerator // denominator
    return allowed
