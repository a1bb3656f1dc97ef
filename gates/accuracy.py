"""The accuracy gate: from graded items to a score, and from scores to a verdict.

Nothing is dropped: an item whose request failed and an answer that was cut stay in n (R24). A gate that could not be
answered is inconclusive, and inconclusive is no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from gates.answers import FoundBy, Grade
from gates.effect import AnswerMetric, Effect
from gates.proportion import ALPHA, POWER, p_worse, paired_interval, smallest_visible_drop, wilson_interval
from traffic.errors import UsageError

FEW_CUT = 2
FEW_CUT_SHARE = 0.02
"""More cut answers than both of these would move the score by what the gate is there to see."""

RANDOM_WEIGHTS = "random weights"


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What became of one item.

    grade: None where no attempt was answered; then `error` says why. number, found_by, is_cut_off: as in
    `gates.answers.Answer`. finish_reason: the server's own word, None where it gave none. attempts: requests sent.
    tail: the end of the completion, for whoever doubts a grade.
    """

    index: int
    grade: Grade | None
    number: Fraction | None = None
    found_by: FoundBy | None = None
    is_cut_off: bool = False
    finish_reason: str | None = None
    output_tokens: int = 0
    attempts: int = 1
    error: str = ""
    tail: str = ""


@dataclass(frozen=True, slots=True)
class AccuracyRun:
    """All items of one arm, and what they were asked under. Checksums: of the items and of the rest of the prompt."""

    label: str
    items_source: str
    items_sha256: str
    prompt_sha256: str
    token_budget: int
    concurrency: int
    results: tuple[ItemResult, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts over all n items: right + wrong + no_answer + errors = n; cut_off are some of no_answer.

    retries: requests that were sent again.
    """

    n: int
    right: int
    wrong: int
    no_answer: int
    cut_off: int
    errors: int
    retries: int

    @property
    def is_budget_too_small(self) -> bool:
        """Whether so many answers were cut that the score would be the budget's, not the model's (R23)."""
        return self.cut_off > max(FEW_CUT, FEW_CUT_SHARE * self.n)

    @property
    def share(self) -> float | None:
        """Right answers over all items; None without items, and where the token budget made the score."""
        return None if self.n == 0 or self.is_budget_too_small else self.right / self.n

    @property
    def interval(self) -> tuple[float, float] | None:
        """The share's 95 % interval (Wilson)."""
        return None if self.share is None else wilson_interval(self.right, self.n)

    def __str__(self) -> str:
        if self.interval is None:
            return f"no accuracy: {self.cut_off} of {self.n} answers were cut" if self.n else "no items"
        low, high = self.interval
        return f"{self.right}/{self.n} right ({low:.0%} to {high:.0%})"


def score(results: Sequence[ItemResult]) -> Score:
    """Count the grades."""
    grades = [each.grade for each in results]
    return Score(
        n=len(grades),
        right=grades.count(Grade.RIGHT),
        wrong=grades.count(Grade.WRONG),
        no_answer=grades.count(Grade.NO_ANSWER),
        cut_off=sum(each.is_cut_off for each in results),
        errors=grades.count(None),
        retries=sum(max(0, each.attempts - 1) for each in results),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against the first, item by item.

    lost and gained: indices of the items that only the first arm, or only this one, answered right. p_worse: one-sided,
    exact (McNemar).
    """

    first_label: str
    lost: tuple[int, ...]
    gained: tuple[int, ...]
    p_worse: float

    def __str__(self) -> str:
        counts = f"{len(self.lost)} lost and {len(self.gained)} gained"
        return f"of the items, {counts} against {self.first_label}, p = {self.p_worse:.2g}"


def compare(first: AccuracyRun, other: AccuracyRun) -> Comparison:
    """Pair the items of two arms. Raises ValueError where they were not asked the same; see `differences`."""
    if differences(first, other):
        raise ValueError(f"{other.label} and {first.label} were not asked the same")
    was_right = {each.index: each.grade is Grade.RIGHT for each in first.results}
    is_right = {each.index: each.grade is Grade.RIGHT for each in other.results}
    lost = tuple(index for index, was in was_right.items() if was and not is_right[index])
    gained = tuple(index for index, was in was_right.items() if is_right[index] and not was)
    return Comparison(first.label, lost, gained, p_worse(len(lost), len(gained)))


def effect_of(first: AccuracyRun | None, other: AccuracyRun | None) -> Effect:
    """The difference in accuracy of two arms, item by item: right answers over all items, other less first.

    n_pairs: items. None for a run that has no accuracy (None, failed requests, cut answers), and for two that were not
    asked the same: then there is no pair.
    """
    nothing = Effect(AnswerMetric.ACCURACY, None, None, 0, 0)
    if first is None or other is None or differences(first, other):
        return nothing
    if any(_spoiled(run, score(run.results)) for run in (first, other)):
        return nothing
    found, n = compare(first, other), len(first.results)
    lost, gained = len(found.lost), len(found.gained)
    return Effect(AnswerMetric.ACCURACY, (gained - lost) / n, paired_interval(lost, gained, n), n, 0)


def differences(first: AccuracyRun, other: AccuracyRun) -> tuple[str, ...]:
    """What the two arms were asked differently; empty where they can be compared item by item.

    Concurrency may differ: one request at a time against many catches an engine that is right only when it is alone.
    """
    asked = (
        ("items", first.items_sha256, other.items_sha256),
        ("prompt", first.prompt_sha256, other.prompt_sha256),
        ("token budget", first.token_budget, other.token_budget),
    )
    return tuple(name for name, one, another in asked if one != another)


class AccuracyOutcome(StrEnum):
    """What the gate says. Only PASS is a pass."""

    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    UNJUDGED = "not judged"
    """Measured, with no floor and no first arm to hold it against."""
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class AccuracyVerdict:
    """The outcome and the sentences behind it, the deciding ones first.

    score and comparison: None where there is none. smallest_visible_drop_share: the drop against the first arm that so
    many items would have shown in 80 % of all runs, None where none.
    """

    outcome: AccuracyOutcome
    reasons: tuple[str, ...]
    score: Score | None = None
    comparison: Comparison | None = None
    smallest_visible_drop_share: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the gate was held and passed."""
        return self.outcome is AccuracyOutcome.PASS


def not_applicable(why: str = RANDOM_WEIGHTS) -> AccuracyVerdict:
    """The verdict on an engine that cannot know arithmetic."""
    return AccuracyVerdict(AccuracyOutcome.NOT_APPLICABLE, (f"not applicable: {why}",))


_Finding = tuple[AccuracyOutcome, str]

_BY_WEIGHT = (AccuracyOutcome.FAIL, AccuracyOutcome.INCONCLUSIVE, AccuracyOutcome.PASS, AccuracyOutcome.UNJUDGED)


def judge_accuracy(
    run: AccuracyRun, *, floor: float | None = None, first: AccuracyRun | None = None
) -> AccuracyVerdict:
    """Hold one arm against a floor and against the first arm, where they are given.

    floor: a share; the gate fails below it. Raises UsageError for one that is no share.
    """
    if floor is not None and not 0 < floor <= 1:
        raise UsageError(f"the accuracy floor {floor:g} is no share above 0 and at most 1; for 85 % give 0.85")
    found = score(run.results)
    spoiled = _spoiled(run, found)
    if spoiled:
        return AccuracyVerdict(AccuracyOutcome.INCONCLUSIVE, spoiled, found)
    drop = smallest_visible_drop(found.n)
    comparison = None
    findings: list[_Finding] = []
    if floor is not None:
        findings.append(_against_floor(found, floor))
    if first is not None:
        comparison = None if differences(first, run) else compare(first, run)
        findings.append(_against_first(run, first, comparison, drop))
    if not findings:
        findings.append((AccuracyOutcome.UNJUDGED, "no floor and no first arm to hold it against"))
    findings.sort(key=lambda finding: _BY_WEIGHT.index(finding[0]))
    reasons = tuple(reason for _, reason in findings)
    return AccuracyVerdict(findings[0][0], reasons, found, comparison, drop)


def _spoiled(run: AccuracyRun, found: Score) -> tuple[str, ...]:
    """Why these results are no accuracy at all; empty where they are one."""
    reasons = []
    if found.n == 0:
        reasons.append("no items were asked")
    if found.errors:
        error = next(each.error for each in run.results if each.grade is None)
        reasons.append(f"requests failed for {found.errors} of {found.n} items: {error}")
    if found.is_budget_too_small:
        reasons.append(
            f"token budget too small: {found.cut_off} of {found.n} answers were cut at {run.token_budget} tokens"
        )
    return tuple(reasons)


def _against_floor(found: Score, floor: float) -> _Finding:
    if found.right / found.n < floor:
        return AccuracyOutcome.FAIL, f"{found} is below the floor of {floor:g}"
    low, _ = found.interval or (0.0, 1.0)
    doubt = "; the floor lies inside the interval, so another run may fall below it" if low < floor else ""
    return AccuracyOutcome.PASS, f"{found} is not below the floor of {floor:g}{doubt}"


def _against_first(run: AccuracyRun, first: AccuracyRun, comparison: Comparison | None, drop: float | None) -> _Finding:
    if comparison is None:
        return AccuracyOutcome.INCONCLUSIVE, f"not comparable: another {', '.join(differences(first, run))}"
    before = score(first.results)
    if _spoiled(first, before):
        return AccuracyOutcome.INCONCLUSIVE, f"the first arm, {first.label}, has no accuracy to compare with"
    if comparison.p_worse < ALPHA:
        return AccuracyOutcome.FAIL, f"worse than the first arm: {comparison}"
    if drop is None or drop * before.n > before.right:
        return AccuracyOutcome.INCONCLUSIVE, f"{before} in the first arm is too little to show any drop"
    return AccuracyOutcome.PASS, (
        f"no drop was shown: {comparison}; with {before.n} items one of {drop * 100:.1f} points "
        f"would show in {POWER:.0%} of all runs, a smaller one less often"
    )
