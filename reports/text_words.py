"""The text gate in lines: what an arm says differently of fixed texts, beside what the first arm's repeat does."""

from __future__ import annotations

from gates.text import TextDifference
from reports import numbers
from reports.arms import Experiment
from reports.text_document import read_text, text_verdict


def text_lines(experiment: Experiment) -> list[str]:
    """A line for each arm that is compared and was asked. Raises UsageError for a broken file."""
    repeat = None if experiment.drift_arm is None else experiment.drift_arm.directory
    lines = []
    for arm in experiment.compared:
        document = read_text(arm.directory)
        if document is None:
            continue
        verdict = text_verdict(experiment.baseline.directory, arm.directory, repeat)
        if verdict is None:
            lines.append(f"text gate: {arm.label}: {numbers.NOT_MEASURED}: {document.not_measured or 'the first arm'}")
            continue
        parts = [f"text gate: {arm.label}: {verdict.outcome}, {verdict.reason}"]
        parts += [difference_text(verdict.found)] if verdict.found is not None else []
        lines.append("; ".join(parts))
    return lines


def difference_text(found: TextDifference) -> str:
    """The measures of one difference, and where free-running text parts, which decides nothing."""
    parted = [place for place in found.diverged_at if place is not None]
    text = (
        f"{numbers.count(found.n)} tokens, mean |Δ logprob| {found.mean_logprob:.3g}, largest "
        f"{found.largest_logprob:.3g}, top token changed at {numbers.share(found.changed_top_share)}"
    )
    if not parted:
        return f"{text}, all {len(found.diverged_at)} continuations equal"
    parts = numbers.of(len(parted), len(found.diverged_at))
    return f"{text}, {parts} continuations part, the first one at token {min(parted) + 1}"
