"""One decision on a change: ignore it, adopt it, or measure longer; docs/method.md, "The decision", has the rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gates.accuracy import AccuracyOutcome

WORTH_SHARE = 0.03
"""A smaller gain is not worth a change: it is finer than what a sweep resolves by default."""

_HELD = (AccuracyOutcome.PASS, AccuracyOutcome.NOT_APPLICABLE)


class Decision(StrEnum):
    """What to do about a change."""

    IGNORE = "ignore"
    ADOPT = "adopt"
    MEASURE_LONGER = "measure longer"


class Ground(StrEnum):
    """Why; the deciding rule."""

    ACCURACY_LOST = "the accuracy gate failed"
    NOT_COMPARABLE = "the arms cannot be compared"
    NO_INTERVAL = "the effect has no interval, or no two equal arms say how much of it is drift"
    TOO_SMALL = "no gain that is worth a change agrees with what was measured"
    REAL = "the gain is real and may be worth a change"
    ACCURACY_OPEN = "the gain is real, but whether accuracy held is not known"
    OPEN = "a gain that is worth a change is neither shown nor excluded"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a decision rests on, for one arm against its baseline.

    interval: of the change of mean TPOT as a share, 95 %; below 0 is faster. None where there is none. reach_share: how
    far two equal arms differ in either direction, on top of the interval; 0.0 where the interval has it already, None
    where it is not known. is_real: shown over several starts of both arms. accuracy: None where no gate ran.
    is_comparable: whether both arms did the same work and ended well.
    """

    interval: tuple[float, float] | None
    reach_share: float | None
    is_real: bool
    accuracy: AccuracyOutcome | None
    is_comparable: bool

    @property
    def largest_gain_share(self) -> float | None:
        """The largest fall of mean TPOT that agrees with the interval and the drift; None where that is not known."""
        if self.interval is None or self.reach_share is None:
            return None
        return self.reach_share - self.interval[0]


def decide(evidence: Evidence) -> tuple[Decision, Ground]:
    """The decision and the first rule that applies, in the order of `Ground`."""
    if evidence.accuracy is AccuracyOutcome.FAIL:
        return Decision.IGNORE, Ground.ACCURACY_LOST
    if not evidence.is_comparable:
        return Decision.MEASURE_LONGER, Ground.NOT_COMPARABLE
    gain = evidence.largest_gain_share
    if evidence.interval is None or gain is None:
        return Decision.MEASURE_LONGER, Ground.NO_INTERVAL
    return _by_gain(evidence, gain, evidence.interval[1])


def _by_gain(evidence: Evidence, largest_gain_share: float, upper_share: float) -> tuple[Decision, Ground]:
    """The rules that look at the size. upper_share: the interval's end at which the gain is smallest."""
    if largest_gain_share < WORTH_SHARE:
        return Decision.IGNORE, Ground.TOO_SMALL
    if not evidence.is_real or upper_share >= 0:
        return Decision.MEASURE_LONGER, Ground.OPEN
    if evidence.accuracy not in _HELD:
        return Decision.MEASURE_LONGER, Ground.ACCURACY_OPEN
    return Decision.ADOPT, Ground.REAL


def payback_s(spent_s: float, gain_share: float) -> float | None:
    """How long a server must run, under load, until a gain has given back the time that was spent on it.

    gain_share: of the time that the same work takes, above 0; None without a gain, which gives nothing back.
    """
    return spent_s / gain_share if gain_share > 0 else None
