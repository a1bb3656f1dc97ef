"""A change as it is written: in percent of the baseline, or for accuracy in points."""

from __future__ import annotations

from gates.effect import AnswerMetric, EffectMetric
from gates.spending import SpentMetric
from reports import numbers

Metric = EffectMetric | SpentMetric | AnswerMetric


def change(metric: Metric, share: float | None) -> str:
    """A change with its sign: -2.9 %; -2.0 points."""
    return numbers.points(share) if metric is AnswerMetric.ACCURACY else numbers.signed_share(share)


def size(metric: Metric, share: float | None) -> str:
    """The size of a change, without sign: 5.3 %; 5.3 points."""
    return numbers.points(share).lstrip("+") if metric is AnswerMetric.ACCURACY else numbers.share(share)


def change_interval(metric: Metric, ends: tuple[float, float] | None) -> str:
    """Its interval: -3.1 % to -2.7 %; of points, which stand before it: -8.0 to +4.1."""
    if metric is AnswerMetric.ACCURACY and ends is not None:
        return " to ".join(numbers.points(end, unit=False) for end in ends)
    return numbers.signed_interval(ends)


def with_interval(metric: Metric, share: float | None, ends: tuple[float, float] | None) -> str:
    """A change and, where it has one, its interval: -2.9 % (-3.1 % to -2.7 %)."""
    return change(metric, share) + ("" if ends is None else f" ({change_interval(metric, ends)})")


def compact(metric: Metric, share: float | None, ends: tuple[float, float] | None) -> str:
    """The same where room is short, the unit said once: -2.9 % (-3.1 to -2.7)."""
    told = change(metric, share)
    return told if ends is None else f"{told} ({change_interval(metric, ends).replace(' %', '')})"
