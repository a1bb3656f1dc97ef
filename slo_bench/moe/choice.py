"""One configuration for a batch size, from its times and the default's, taken in turn under every routing.

A replay of one and the next replay of the other meet the same clock and the same heat, so they are compared round by
round: the median of the ratios, with the interval of the sign test, which asks nothing of how times are spread.

A configuration takes the place of the default where it was shown to be faster under the first routing, and shown not to
be slower by more than a margin under any. Where nothing was shown, the default stays: a file changes no size for which
there is no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from slo_bench.moe.space import KernelConfig

ROUNDS = 40
"""Replays of each finalist under each routing, in turn."""

CALLS = 10
"""Calls of the kernel in one of these replays."""

CONFIDENCE = 0.95
"""Of every interval, at least."""

MARGIN_SHARE = 0.01
"""So much slower than the default a chosen configuration may not even perhaps be, under any routing."""

TIE_SHARE = 0.005
"""Who is within this share of the fastest is as fast; the other routings decide between them."""

ERROR_FACTOR = 2.0
"""A configuration's result may be so many times as far from float32 as the default's."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A time over the default's, less 1: below 0 is faster. low, high: its interval; None of fewer than six rounds."""

    share: float
    low: float | None
    high: float | None

    @property
    def is_faster(self) -> bool:
        """Whether it was shown to be faster."""
        return self.high is not None and self.high < 0

    @property
    def is_no_slower(self) -> bool:
        """Whether it was not shown to be slower, and shown not to be slower by more than the margin."""
        return self.low is not None and self.high is not None and self.low <= 0 and self.high <= MARGIN_SHARE


@dataclass(frozen=True, slots=True)
class Final:
    """A configuration at the end of a search. times_s: under each routing, one for each round, in seconds per call.

    relative_error: of its result against float32; None where that was not computed.
    """

    config: KernelConfig
    times_s: Mapping[str, tuple[float, ...]]
    relative_error: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A finalist held against the default under every routing, the first routing first."""

    config: KernelConfig
    ratios: Mapping[str, Ratio]

    @property
    def gain(self) -> Ratio:
        """Under the routing that decides."""
        return next(iter(self.ratios.values()))

    @property
    def is_better(self) -> bool:
        """Whether it may take the default's place."""
        return self.gain.is_faster and all(each.is_no_slower for each in self.ratios.values())

    @property
    def elsewhere(self) -> float:
        """Sum of the log ratios under the other routings."""
        return math.fsum(math.log1p(each.share) for each in list(self.ratios.values())[1:])


def judged(default: Final, other: Final) -> Judged | None:
    """The finalist against the default; None where it was not timed under all routings or its result is wrong."""
    if not set(default.times_s) <= set(other.times_s) or not all(other.times_s.values()):
        return None
    if is_wrong(default, other):
        return None
    return Judged(other.config, {name: ratio(default.times_s[name], other.times_s[name]) for name in default.times_s})


def is_wrong(default: Final, other: Final) -> bool:
    """Whether its result is much farther from float32 than the default's."""
    if default.relative_error is None or other.relative_error is None:
        return False
    return not other.relative_error <= ERROR_FACTOR * default.relative_error


def ranked(default: Final, others: Sequence[Final]) -> tuple[Judged, ...]:
    """Those that may take the default's place, the one to choose first; empty where the default stays."""
    able = [each for other in others if (each := judged(default, other)) is not None and each.is_better]
    if not able:
        return ()
    able.sort(key=lambda each: each.gain.share)
    limit = (1 + able[0].gain.share) * (1 + TIE_SHARE)
    tied = [each for each in able if 1 + each.gain.share <= limit]
    return (*sorted(tied, key=lambda each: each.elsewhere), *able[len(tied) :])


def ratio(default_s: Sequence[float], other_s: Sequence[float]) -> Ratio:
    """The times of the same rounds, one by one. Raises ValueError where there are not as many of both, or none."""
    logs = [math.log(other / default) for default, other in zip(default_s, other_s, strict=True)]
    middle, low, high = (None if each is None else math.expm1(each) for each in middle_of(logs))
    if middle is None:
        raise ValueError("no rounds to compare")
    return Ratio(middle, low, high)


def middle_of(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The median and its interval by the sign test: order statistics (any text on the binomial distribution)."""
    if not values:
        return None, None, None
    ordered = sorted(values)
    n = len(ordered)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    below = _below(n)
    return (median, ordered[below], ordered[n - 1 - below]) if below >= 0 else (median, None, None)


@cache
def _below(n: int) -> int:
    """How many values lie outside the interval on each side; -1 where n values give none of this confidence."""
    tail, below = 0.0, -1
    for count in range(n // 2):
        tail += math.comb(n, count) / 2**n
        if 2 * tail > 1 - CONFIDENCE:
            break
        below = count
    return below
