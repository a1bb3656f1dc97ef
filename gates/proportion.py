"""Shares of right answers: how well n items know one, whether two differ, and which drop n items could have shown.

Two arms answer the same items, so they are compared item by item: what both answer alike says nothing about a change.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

CONFIDENCE = 0.95
"""Of the interval."""

ALPHA = 0.05
"""Of the one-sided test: one of twenty arms that are no worse is called worse, at most."""

POWER = 0.80
"""A drop that n items could see is one that they show in this share of all runs."""

CHANCE_FLIPS = 0.015
"""Share of items that change from wrong to right between two equal greedy runs, and as many the other way.

61 equal runs of 200 items scored 0.84 to 0.88 (sgl-project/sglang-jax PR #1333). The range of 61 normal draws is 4.6
standard deviations on average, so one run has 0.0086; the difference of two has a variance of 2 x 0.0086^2, and paired
items that flip with probability 2f give 2f / 200: f = 0.015.
"""


def wilson_interval(right: int, n: int) -> tuple[float, float] | None:
    """The 95 % interval of a share, None without items (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927, p. 209)."""
    if n == 0:
        return None
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    share = right / n
    centre = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    low, high = (centre - half) / scale, (centre + half) / scale
    return max(0.0, min(share, low)), min(1.0, max(share, high))  # rounding must not push 0 and 1 out of it


def paired_interval(lost: int, gained: int, n: int) -> tuple[float, float] | None:
    """The 95 % interval of the difference of two shares over the same n items; None without items.

    lost, gained: items that only the first, or only the second, has right; the difference is (gained - lost) / n. It is
    Wald's interval with one lost and one gained item added, so that it keeps its width where nothing differs (D. G.
    Bonett and R. M. Price, J. Educ. Behav. Stat. 37, 2012, p. 479).
    """
    if n == 0:
        return None
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    less, more = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    half = z * math.sqrt((less + more - (more - less) ** 2) / (n + 2))
    return max(-1.0, more - less - half), min(1.0, more - less + half)


def p_worse(lost: int, gained: int) -> float:
    """How often chance alone loses so many items or more, of those that differ: McNemar's test, exact and one-sided.

    lost: right in the first arm, not right in this one. gained: the other way round. Under "no change" each item that
    differs is lost with probability 1/2 (Q. McNemar, Psychometrika 12, 1947, p. 153): the p-value is a binomial tail.
    """
    differing = lost + gained
    tail = sum(math.comb(differing, count) for count in range(lost, differing + 1))
    return tail / (1 << differing)


@functools.cache
def smallest_visible_drop(n: int, chance_flips: float = CHANCE_FLIPS) -> float | None:
    """The smallest drop of the share that `p_worse` shows (ALPHA) in POWER of all runs over n items; None for none.

    Each item is lost with probability drop + chance_flips and gained with chance_flips. The power is summed over the
    number of differing items, which is binomial, and the lost ones among them, binomial too (the unconditional power of
    the exact conditional test; S. W. Duffy, Biometrics 40, 1984, p. 1005).
    """
    critical = _critical_losses(n)
    low, high = 0.0, 1 - 2 * chance_flips
    if _power(n, high, chance_flips, critical) < POWER:
        return None
    while high - low > 1e-4:  # noqa: PLR2004 - a hundredth of a point is finer than anybody reads
        middle = (low + high) / 2
        if _power(n, middle, chance_flips, critical) < POWER:
            low = middle
        else:
            high = middle
    return high


def _critical_losses(n: int) -> npt.NDArray[np.int64]:
    """Per number of differing items 0..n, the fewest lost ones that are significant; one more where none is."""
    critical = np.zeros(n + 1, dtype=np.int64)
    losses = 1
    for differing in range(n + 1):
        while losses <= differing and special.bdtrc(losses - 1, differing, 0.5) >= ALPHA:
            losses += 1
        critical[differing] = min(losses, differing + 1)
    return critical


def _power(n: int, drop: float, chance_flips: float, critical: npt.NDArray[np.int64]) -> float:
    """The chance that a drop shows."""
    differ_share = drop + 2 * chance_flips
    if differ_share == 0:
        return 0.0
    differing = np.arange(n + 1)
    log_choose = special.gammaln(n + 1) - special.gammaln(differing + 1) - special.gammaln(n - differing + 1)
    log_share = special.xlogy(differing, differ_share) + special.xlogy(n - differing, 1 - differ_share)
    lost_share = (drop + chance_flips) / differ_share
    shows = np.where(critical > differing, 0.0, special.bdtrc(critical - 1, differing, lost_share))
    return float(np.exp(log_choose + log_share) @ shows)
