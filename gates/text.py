"""The text gate: whether a change that should not change the text does, by more than a repeat of the same engine.

Teacher-forced: every arm reads the same fixed texts, one at a time and in one order, and says how likely it found each
token. So a difference at one token leaves all later ones comparable, which free-running text does not. Rounding alone
moves these numbers, with another order of sums most of all: they are held against the same numbers between two equal
arms, and against what rounding may do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

REPEAT_FACTOR = 2.0
"""An arm may differ by so many times as much as the first arm's repeat does: both are single draws."""

ROUNDING_MEAN = 0.0625
"""Of the mean difference. bfloat16 keeps 8 bits of a logit, so those from 16 to 32 stand 0.125 apart: half of it."""

ROUNDING_LARGEST = 1.0
"""Of the largest difference. Our reading: rounding does not make a token e times as likely."""

ROUNDING_TOP_SHARE = 0.02
"""Of the share of changed top tokens. Our reading: so many tokens have two candidates that are as good as equal."""

LOWEST_LOGPROB = -100.0
"""Less likely is as good as impossible; servers write -inf or -9999."""


@dataclass(frozen=True, slots=True)
class TextResult:
    """One fixed text. logprobs, top: per token but the first, how likely it was found and which was the likeliest.

    continuation: tokens that the engine goes on with, greedily.
    """

    logprobs: tuple[float, ...]
    top: tuple[str, ...]
    continuation: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextRun:
    """All texts of one arm, in their order."""

    label: str
    texts_sha256: str
    results: tuple[TextResult, ...]


@dataclass(frozen=True, slots=True)
class TextDifference:
    """What two arms say differently of n tokens. mean_logprob and largest_logprob: of the absolute difference, in nats.

    changed_top_share: of the tokens, where another one was the likeliest. diverged_at: per text, the first token of the
    continuation that differs, None where none does; it is shown and decides nothing.
    """

    n: int
    mean_logprob: float
    largest_logprob: float
    changed_top_share: float
    diverged_at: tuple[int | None, ...]


def difference(first: TextRun, other: TextRun) -> TextDifference | None:
    """None where the two did not read the same tokens: other texts, or another tokenizer."""
    lengths = [[len(each.logprobs) for each in run.results] for run in (first, other)]
    if first.texts_sha256 != other.texts_sha256 or lengths[0] != lengths[1] or not sum(lengths[0]):
        return None
    pairs = list(zip(first.results, other.results, strict=True))
    moved = [
        abs(max(one, LOWEST_LOGPROB) - max(another, LOWEST_LOGPROB))
        for before, after in pairs
        for one, another in zip(before.logprobs, after.logprobs, strict=True)
    ]
    changed = sum(one != another for before, after in pairs for one, another in zip(before.top, after.top, strict=True))
    return TextDifference(
        n=len(moved),
        mean_logprob=math.fsum(moved) / len(moved),
        largest_logprob=max(moved),
        changed_top_share=changed / len(moved),
        diverged_at=tuple(_diverged_at(before.continuation, after.continuation) for before, after in pairs),
    )


def _diverged_at(before: tuple[str, ...], after: tuple[str, ...]) -> int | None:
    """The first place at which two continuations differ; one that is shorter differs where it ends."""
    if before == after:
        return None
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (one, another) in pairs if one != another), min(len(before), len(after)))


class TextOutcome(StrEnum):
    """What the text gate says."""

    SAME = "the same text"
    """No measure is beyond what a repeat of the first arm differs by."""
    ROUNDING = "within rounding"
    CHANGED = "another text"
    UNJUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class TextVerdict:
    """The outcome and one sentence. found: against the first arm; repeat: of the first arm's repeat, None without."""

    outcome: TextOutcome
    reason: str
    found: TextDifference | None = None
    repeat: TextDifference | None = None


def judge_text(found: TextDifference | None, repeat: TextDifference | None) -> TextVerdict:
    """Hold an arm's difference from the first arm against that of the first arm's repeat, and against rounding.

    None: not the same tokens, or not measured.
    """
    if found is None or repeat is None:
        which = "this arm" if found is None else "a repeat of the first arm"
        return TextVerdict(TextOutcome.UNJUDGED, f"{which} and the first arm cannot be compared", found, repeat)
    measures = (
        ("mean |Δ logprob|", found.mean_logprob, repeat.mean_logprob, ROUNDING_MEAN),
        ("largest |Δ logprob|", found.largest_logprob, repeat.largest_logprob, ROUNDING_LARGEST),
        ("share of changed top tokens", found.changed_top_share, repeat.changed_top_share, ROUNDING_TOP_SHARE),
    )
    beyond = [each for each in measures if each[1] > REPEAT_FACTOR * each[2]]
    coarse = [each for each in beyond if each[1] > each[3]]
    if coarse:
        return TextVerdict(TextOutcome.CHANGED, f"beyond the repeat and rounding: {_told(coarse)}", found, repeat)
    if beyond:
        return TextVerdict(
            TextOutcome.ROUNDING, f"more than the repeat, as rounding may: {_told(beyond)}", found, repeat
        )
    return TextVerdict(TextOutcome.SAME, "no more than the first arm's repeat differs", found, repeat)


def _told(measures: Iterable[tuple[str, float, float, float]]) -> str:
    return ", ".join(
        f"{name} {value:.3g} (repeat {again:.3g}, rounding up to {limit:g})" for name, value, again, limit in measures
    )
