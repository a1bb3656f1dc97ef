"""How long prompts were in the server's own tokens, beside how long they were meant to be."""

from __future__ import annotations

from dataclasses import dataclass

from traffic.probe import ProbeFacts
from traffic.summary import cohort

DEVIATES_SHARE = 0.01
"""A mean prompt that is further from its target is flagged: prefill time follows it."""


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Prompts of the cohort that the server counted, template included: tokens. target_mean: of the same requests."""

    mean: float
    least: int
    most: int
    target_mean: float

    @property
    def deviation_share(self) -> float:
        """By how much the mean prompt is longer than meant; negative for shorter."""
        return self.mean / self.target_mean - 1

    @property
    def flag(self) -> str | None:
        """What a reader must know of a mean that deviates."""
        if abs(self.deviation_share) <= DEVIATES_SHARE:
            return None
        return (
            f"the server counts {self.mean:.0f} tokens in a mean prompt ({self.least} to {self.most}), "
            f"{self.deviation_share:+.1%} from the {self.target_mean:.0f} that were meant"
        )


def prompt_lengths(facts: ProbeFacts) -> PromptLengths | None:
    """The cohort's lengths; None where no answer has a count."""
    counted = [
        (each.prompt_tokens, each.input_tokens)
        for each in cohort(facts.records)
        if each.prompt_tokens is not None and each.is_resolved and not each.has_failed
    ]
    if not counted:
        return None
    tokens, targets = zip(*counted, strict=True)
    return PromptLengths(sum(tokens) / len(tokens), min(tokens), max(tokens), sum(targets) / len(targets))
