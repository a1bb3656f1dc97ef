"""Estimates of a logarithm of a ratio: their interval, and what they could have seen.

Ratios are kept as logarithms, so that a change and its reverse have the same size: exchanging the two arms turns every
sign and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy import special

CONFIDENCE = 0.95
"""Of every interval of an effect."""

POWER = 0.80
"""An effect that a design could have seen is one that it shows in this share of all runs."""

_LARGEST_LOG = 700.0
"""What a float can carry as a ratio: two wild pairs must not end a report."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A log ratio, its standard error and the degrees of freedom of that.

    degrees: infinite where the error is known. standard_error is None, and degrees 0, where nothing repeats.
    """

    log_ratio: float
    standard_error: float | None
    degrees: float

    @property
    def share(self) -> float:
        """The change as a share: -0.03 is 3 % less."""
        return as_share(self.log_ratio)

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width on the logarithm."""
        return None if self.standard_error is None else critical_t(self.degrees) * self.standard_error

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval by t, as shares."""
        half = self.half_width
        return None if half is None else (as_share(self.log_ratio - half), as_share(self.log_ratio + half))

    @property
    def excludes_no_change(self) -> bool:
        """Whether the interval lies on one side of no change."""
        return self.half_width is not None and abs(self.log_ratio) > self.half_width

    @property
    def nearest(self) -> float:
        """The smallest size of log ratio that the interval holds; 0 where it holds no change or has no ends."""
        return 0.0 if self.half_width is None else max(0.0, abs(self.log_ratio) - self.half_width)

    @property
    def furthest(self) -> float:
        """The largest size of log ratio that the interval holds; infinite where it has no ends."""
        return math.inf if self.half_width is None else abs(self.log_ratio) + self.half_width

    @property
    def smallest_visible_share(self) -> float | None:
        """The smallest increase that would have been found in 80 % of such runs."""
        return None if self.standard_error is None else as_share(visible_log_ratio(self.standard_error, self.degrees))


def as_share(log_ratio: float) -> float:
    """A log ratio as a share, held inside what a float can carry."""
    return math.expm1(min(log_ratio, _LARGEST_LOG))


def log_ratio(base: float | None, other: float | None) -> float | None:
    """ln(other / base); None where either is absent, not finite or not above 0."""
    if base is None or other is None or not (0 < base < math.inf and 0 < other < math.inf):
        return None
    return math.log(other) - math.log(base)


def critical_t(degrees: float) -> float:
    """How many standard errors the 95 % interval reaches to each side."""
    if math.isinf(degrees):
        return float(special.ndtri((1 + CONFIDENCE) / 2))
    return float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))


def visible_log_ratio(standard_error: float, degrees: float) -> float:
    """The log ratio whose interval excludes no change in 80 % of all runs, by the non-central t distribution."""
    critical = critical_t(degrees)
    if math.isinf(degrees):
        return standard_error * (critical + float(special.ndtri(POWER)))
    return standard_error * float(special.nctdtrinc(degrees, 1 - POWER, critical))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean of at least one log ratio, its error by their own spread."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, 0)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return Estimate(mean, math.sqrt(variance / n), n - 1)


def balanced_estimate(values: Sequence[float], orders: Sequence[float]) -> tuple[Estimate, Estimate | None]:
    """The mean of log ratios at order 0, and the effect of the order: a regression on one covariate.

    orders: +1 where the base ran first, -1 where it ran second, means of these for means of pairs. What changes evenly
    with time moves the two orders apart by the same amount, so it leaves the mean and stays in the order's effect. With
    one order alone the two cannot be told apart: then the plain mean, and None.
    """
    n = len(values)
    centre = math.fsum(orders) / n
    spread = math.fsum((order - centre) ** 2 for order in orders)
    if spread == 0:
        return mean_estimate(values), None
    mean = math.fsum(values) / n
    slope = math.fsum((order - centre) * value for order, value in zip(orders, values, strict=True)) / spread
    at_zero = mean - slope * centre
    degrees = n - 2
    if degrees < 1:
        return Estimate(at_zero, None, 0), Estimate(slope, None, 0)
    rest = math.fsum((value - at_zero - slope * order) ** 2 for order, value in zip(orders, values, strict=True))
    variance = rest / degrees
    return (
        Estimate(at_zero, math.sqrt(variance * (1 / n + centre**2 / spread)), degrees),
        Estimate(slope, math.sqrt(variance / spread), degrees),
    )


def after_looking(found: Estimate) -> Estimate:
    """The estimate of a comparison that ended because its interval had become narrow enough.

    Whoever ends on a narrow interval ends on one that is narrow by luck too often: with six to twenty pairs 95 %
    intervals covered 92 to 94 %. An error larger by 1 + 2 / n brings back 95 % (benchmarks/compare).
    """
    if found.standard_error is None:
        return found
    return replace(found, standard_error=found.standard_error * (1 + 2 / (found.degrees + 2)))
