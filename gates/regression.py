"""Whether a server became slower between two sessions, each of which measured its drift.

A session has two equal arms: the baseline, and the same again at the end. What two starts of one configuration differ
by, in time and by their start, is all that is known of the noise between sessions, so it is what the interval is made
of (docs/method.md, "Across sessions").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gates.log_ratio import Estimate, as_share, mean_estimate

STARTS = 2
"""Equal arms of a session."""

_DEGREES = 2
"""One difference between equal starts per session, two sessions."""


class Verdict(StrEnum):
    """What may be said of a bound on a regression."""

    NONE = "no regression beyond the bound"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"


class Measure(StrEnum):
    """What is judged. Mean TPOT alone can rule a regression out; each of them can prove one."""

    TPOT_MEAN = "mean TPOT"
    TTFT_MEAN = "mean TTFT"
    CAPACITY = "capacity"

    @property
    def is_better_high(self) -> bool:
        """Whether a larger value is the better one."""
        return self is Measure.CAPACITY


Values = Mapping[int, float | None]


@dataclass(frozen=True, slots=True)
class EqualStarts:
    """A latency on both equal arms of one session, by repeat, in any unit as long as it is the same everywhere."""

    first: Values
    again: Values


@dataclass(frozen=True, slots=True)
class Bracket:
    """A sweep's answer, req/s: the highest rate that passed, the lowest that failed; None where an end is open."""

    passed_rps: float | None
    failed_rps: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """Now against before, as shares. interval: 95 %, None where it is not known. repeats: windows behind each start."""

    measure: Measure
    share: float | None
    interval: tuple[float, float] | None
    repeats: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer, and what it rests on."""

    verdict: Verdict
    changes: tuple[Change, ...]


def latency_change(measure: Measure, before: EqualStarts, now: EqualStarts, *, bound_share: float) -> Change:
    """The change of a latency between two sessions. Partners are windows with the same repeat in all four arms.

    Raises ValueError for a bound that is not between 0 and 1.
    """
    _check(bound_share)
    levels = [_Level.of(each.first, each.again, _repeats(before, now)) for each in (before, now)]
    return _change(measure, levels[0], levels[1], bound_share)


def capacity_change(before: Sequence[Bracket], now: Sequence[Bracket], *, bound_share: float) -> Change:
    """The change of the capacity, from the brackets of both equal arms of each session.

    A capacity lies anywhere in its bracket, so the interval reaches further by half a bracket of each session. Raises
    ValueError for a bound that is not between 0 and 1.
    """
    _check(bound_share)
    levels = [_Level.of_brackets(each) for each in (before, now)]
    return _change(Measure.CAPACITY, levels[0], levels[1], bound_share)


def judge(changes: Sequence[Change]) -> Judgement:
    """Proven by any measure, ruled out by mean TPOT alone; everything else is inconclusive."""
    verdicts = {change.measure: change.verdict for change in changes}
    if Verdict.REGRESSION in verdicts.values():
        return Judgement(Verdict.REGRESSION, tuple(changes))
    return Judgement(verdicts.get(Measure.TPOT_MEAN, Verdict.INCONCLUSIVE), tuple(changes))


@dataclass(frozen=True, slots=True)
class _Level:
    """A session's level: its logarithm per repeat, averaged over the equal arms, and how far those are apart.

    blur: by how much, on the logarithm, the level is not known even without noise.
    """

    logs: tuple[float, ...]
    apart: float
    blur: float = 0.0

    @classmethod
    def of(cls, first: Values, again: Values, repeats: Sequence[int]) -> _Level | None:
        """From latencies; None without a repeat that all arms have."""
        if not repeats:
            return None
        pairs = [(math.log(first[each] or math.nan), math.log(again[each] or math.nan)) for each in repeats]
        return cls(
            logs=tuple((one + other) / STARTS for one, other in pairs),
            apart=math.fsum(other - one for one, other in pairs) / len(pairs),
        )

    @classmethod
    def of_brackets(cls, brackets: Sequence[Bracket]) -> _Level | None:
        """From brackets; None where one is open, or where there are not two."""
        ends = [(each.passed_rps, each.failed_rps) for each in brackets]
        known = [(math.log(low), math.log(high)) for low, high in ends if low is not None and high is not None]
        if len(known) != STARTS or len(brackets) != STARTS:
            return None
        one, other = ((low + high) / 2 for low, high in known)
        return cls(((one + other) / STARTS,), other - one, math.fsum(high - low for low, high in known) / 2 / STARTS)


def _repeats(before: EqualStarts, now: EqualStarts) -> list[int]:
    """The repeats that all four arms have with a value above 0."""
    arms = (before.first, before.again, now.first, now.again)
    return [
        repeat
        for repeat in sorted(arms[0])
        if all((value := arm.get(repeat)) is not None and 0 < value < math.inf for arm in arms)
    ]


def _change(measure: Measure, before: _Level | None, now: _Level | None, bound_share: float) -> Change:
    if before is None or now is None:
        return Change(measure, None, None, 0, Verdict.INCONCLUSIVE)
    repeats = len(now.logs)
    change, half = _across(before, now)
    if half is None:
        return Change(measure, as_share(change), None, repeats, Verdict.INCONCLUSIVE)
    low, high = change - half, change + half
    interval = (as_share(low), as_share(high))
    return Change(measure, as_share(change), interval, repeats, _verdict(measure, low, high, bound_share))


def _across(before: _Level, now: _Level) -> tuple[float, float | None]:
    """The change of the level and half of its 95 % interval, on the logarithm; None where nothing varies at all.

    Starts of one configuration have levels of equal spread, so what two of them differ by has twice its variance, and
    the mean of two has half of it: the variance of the change is a quarter of the two squared differences, by t with
    two degrees. The spread over the repeats is a second way to see noise; the wider interval counts. What blurs both
    levels is added.
    """
    steps = [new - old for old, new in zip(before.logs, now.logs, strict=True)]
    by_repeats = mean_estimate(steps)
    error, blur = math.hypot(before.apart, now.apart) / STARTS, before.blur + now.blur
    if error == blur == 0:  # starts that are equal to the last bit are one set of data twice, and no measurement
        return by_repeats.log_ratio, None
    halves = (by_repeats.half_width, Estimate(by_repeats.log_ratio, error, _DEGREES).half_width)
    return by_repeats.log_ratio, max(half for half in halves if half is not None) + blur


def _verdict(measure: Measure, low: float, high: float, bound_share: float) -> Verdict:
    """Where the interval of the log ratio lies to the bound: a rise of a latency, a fall of a capacity."""
    if measure.is_better_high:
        low, high, bound = -high, -low, -math.log1p(-bound_share)
    else:
        bound = math.log1p(bound_share)
    if low > bound:
        return Verdict.REGRESSION
    return Verdict.NONE if high <= bound else Verdict.INCONCLUSIVE


def _check(bound_share: float) -> None:
    if not 0 <= bound_share < 1:
        raise ValueError(f"a bound of {bound_share} is not between 0 and 1")
