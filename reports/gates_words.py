"""The accuracy gate in lines for people: the score with its interval, what became of every item, the verdict."""

from __future__ import annotations

from gates.accuracy import AccuracyOutcome
from gates.proportion import CONFIDENCE, POWER
from reports import numbers
from reports.gates_document import GatesDocument


def gate_lines(gate: GatesDocument) -> list[str]:
    """What a terminal says of a gate."""
    lines = [*score_lines(gate), f"accuracy gate: {verdict_text(gate)}", changes_text(gate)]
    return [line for line in lines if line]


def verdict_text(gate: GatesDocument) -> str:
    """The outcome and the sentences behind it, the deciding one first."""
    reasons = "; ".join(gate.reasons)
    return reasons if gate.outcome is AccuracyOutcome.NOT_APPLICABLE else f"{gate.outcome}: {reasons}"


def score_lines(gate: GatesDocument) -> list[str]:
    """The score and the smallest drop that so many items show; nothing where nothing was asked."""
    if gate.asked is None:
        return []
    parts = [f"{gate.wrong} wrong", f"{gate.no_answer} without an answer", f"{gate.cut_off} of them cut"]
    parts += [f"{gate.errors} errors", f"{gate.retries} requests sent again"]
    lines = [f"accuracy: {score_text(gate)}; {', '.join(parts)}; {gate.asked.concurrency} in flight"]
    if gate.smallest_visible_drop_share is not None:
        points = f"{gate.smallest_visible_drop_share * 100:.1f} points"
        lines.append(f"smallest drop that {gate.n} items show in {numbers.confidence(POWER)} of all runs: {points}")
    return lines


def score_text(gate: GatesDocument) -> str:
    """Right answers over all items with their interval: 45 of 50 right, 90.0 % (95 % interval 78.6 % to 95.7 %)."""
    right = f"{numbers.of(gate.right, gate.n)} right"
    if gate.accuracy_share is None or gate.accuracy_interval is None:
        return f"{right}, which is no accuracy"
    low, high = (numbers.share(end) for end in gate.accuracy_interval)
    return f"{right}, {numbers.share(gate.accuracy_share)} ({numbers.confidence(CONFIDENCE)} interval {low} to {high})"


def changes_text(gate: GatesDocument) -> str:
    """Which items an arm lost and gained against the first one; empty where it was not compared or lost none."""
    if gate.comparison is None or not (gate.comparison.lost or gate.comparison.gained):
        return ""
    lost, gained = (_some(each) for each in (gate.comparison.lost, gate.comparison.gained))
    return f"items lost: {lost}; gained: {gained}"


_SHOWN = 10


def _some(indices: list[int]) -> str:
    shown = ", ".join(str(each) for each in indices[:_SHOWN]) or "none"
    more = len(indices) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
