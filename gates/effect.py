"""The effect of one arm against another at one rate, from paired windows, and what may be said of it.

Partners are windows with the same repeat: they share due times and lengths, so that most of the noise of a Poisson draw
cancels inside a pair. Pairs are combined by their log ratios, so that a change and its reverse have the same size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gates.log_ratio import CONFIDENCE, as_share, log_ratio, mean_estimate
from gates.spending import SpentMetric

__all__ = [
    "CONFIDENCE",
    "MIN_PAIRS",
    "NOT_TOLD_APART",
    "AnswerMetric",
    "Bracket",
    "Effect",
    "EffectMetric",
    "Finding",
    "bracket_effect",
    "conclude",
    "effect",
    "smallest_visible_share",
]

MIN_PAIRS = 2
"""One pair has no spread, so it has no interval."""

NOT_TOLD_APART = (
    "Each arm is one server start, and the arms ran one after another, not interleaved. So drift in time (common to "
    "whatever runs then) cannot be told from the offset of one server start, and neither can be taken out of an effect."
)
"""Belongs beside every finding of this module; design, "A comparison"."""


class EffectMetric(StrEnum):
    """What is compared, one value per window. Means are over finished requests; percentiles count failures."""

    TPOT_MEAN = "mean TPOT"
    TTFT_MEAN = "mean TTFT"
    TPOT_P99 = "p99 TPOT"
    TTFT_P99 = "p99 TTFT"


class AnswerMetric(StrEnum):
    """What answers are worth, once per arm; its effect is a difference of shares, see `gates.accuracy.effect_of`."""

    ACCURACY = "accuracy"


class Finding(StrEnum):
    """What may be said of an effect. With one start per arm nothing stronger exists than the last one."""

    TOO_FEW_PAIRS = "too few pairs"
    BELOW_RESOLUTION = "below resolution"
    DRIFT_UNKNOWN = "drift not measured"
    WITHIN_DRIFT = "within drift"
    BETWEEN_INSTANCES = "between these two server instances"

    @property
    def meaning(self) -> str:
        """The finding as a half sentence."""
        return _MEANING[self]

    @property
    def said(self) -> str:
        """The finding where it must stand alone: within drift and below resolution are no change that was seen."""
        return f"no change seen, {self}" if self in (Finding.BELOW_RESOLUTION, Finding.WITHIN_DRIFT) else str(self)


_MEANING = {
    Finding.TOO_FEW_PAIRS: "without two pairs of windows there is no interval, so nothing is concluded",
    Finding.BELOW_RESOLUTION: "the interval includes no change, so the noise between windows alone may look like this",
    Finding.DRIFT_UNKNOWN: "the interval excludes no change, but no two equal arms say how much of it is drift",
    Finding.WITHIN_DRIFT: "two equal arms differ by as much, so the change is not needed to explain it",
    Finding.BETWEEN_INSTANCES: (
        "beyond what two equal arms differ by; whether other starts would differ alike was not measured"
    ),
}


@dataclass(frozen=True, slots=True)
class Effect:
    """`other` against `base` in one metric, as shares: -0.03 is 3 % less than the base; of accuracy, 3 points less.

    share: exp(mean log ratio) - 1, None without a usable pair. interval: its 95 % interval by t over the pairs, None
    with fewer than two. n_pairs: usable pairs; of accuracy they are items. missing_pairs: repeats that have no usable
    pair, because one arm lacks the window or its value; a percentile that falls on a failure is such a value, so it
    must be told.
    """

    metric: EffectMetric | SpentMetric | AnswerMetric
    share: float | None
    interval: tuple[float, float] | None
    n_pairs: int
    missing_pairs: int

    @property
    def reach_share(self) -> float | None:
        """The largest size of change, in either direction, that the interval holds; None without one."""
        return None if self.interval is None else max(abs(end) for end in self.interval)


def effect(
    metric: EffectMetric | SpentMetric, base: Mapping[int, float | None], other: Mapping[int, float | None]
) -> Effect:
    """The effect from the values per repeat of two arms, in any unit as long as it is the same.

    A value that is absent, not finite or not above 0 has no ratio; its repeat counts as missing.
    """
    repeats = sorted(base.keys() | other.keys())
    ratios = [ratio for repeat in repeats if (ratio := log_ratio(base.get(repeat), other.get(repeat))) is not None]
    if not ratios:
        return Effect(metric, None, None, 0, len(repeats))
    found = mean_estimate(ratios)
    return Effect(metric, found.share, found.interval, len(ratios), len(repeats) - len(ratios))


Bracket = tuple[float | None, float | None]


def bracket_effect(
    metric: SpentMetric, base: Bracket, other: Bracket, *, at: tuple[float | None, float | None]
) -> Effect:
    """The effect on something that each arm has once, and of which both ends are known: dollars at the capacity.

    base, other: the lowest and the highest that it can be in each arm, in any unit. at: what it is in each as it is
    printed. The interval goes from the largest to the smallest ratio, so it is no 95 % interval: nothing outside of it
    agrees with both brackets. None where an end is not known, as where no rate failed.
    """
    share = log_ratio(*at)
    if share is None:
        return Effect(metric, None, None, 0, 1)
    ends = log_ratio(base[1], other[0]), log_ratio(base[0], other[1])
    interval = None if ends[0] is None or ends[1] is None else (as_share(ends[0]), as_share(ends[1]))
    return Effect(metric, as_share(share), interval, 1, 0)


def conclude(effect: Effect, drift: Effect | None) -> Finding:
    """What may be said of an effect beside the drift: the effect of an arm against its equal, in the same metric.

    The drift counts in both directions: the offset of a server start has no preferred sign, so an effect is beyond it
    only when its whole interval is larger in size than anything in the drift's interval. This implies that the effect
    is larger than the drift and that the intervals do not overlap. Raises ValueError for two different metrics.
    """
    if drift is not None and drift.metric is not effect.metric:
        raise ValueError(f"the drift of {drift.metric} says nothing about {effect.metric}")
    if effect.share is None or effect.interval is None:
        return Finding.TOO_FEW_PAIRS
    low, high = effect.interval
    if low <= 0 <= high:
        return Finding.BELOW_RESOLUTION
    if drift is None or drift.share is None:
        return Finding.DRIFT_UNKNOWN
    reach = drift.reach_share
    if reach is None:
        return Finding.WITHIN_DRIFT if abs(effect.share) <= abs(drift.share) else Finding.DRIFT_UNKNOWN
    return Finding.BETWEEN_INSTANCES if min(abs(low), abs(high)) > reach else Finding.WITHIN_DRIFT


def smallest_visible_share(effect: Effect, drift: Effect | None) -> float | None:
    """The smallest size of effect that these windows could have told from noise and drift; None where unknown.

    Half the interval's width, and the drift's reach on top where two equal arms were measured.
    """
    if effect.interval is None or (drift is not None and drift.reach_share is None):
        return None
    low, high = effect.interval
    return (high - low) / 2 + (0.0 if drift is None or drift.reach_share is None else drift.reach_share)
