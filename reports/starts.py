"""On how many server starts an arm stands: more than one where its sweep was stopped and went on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reports import numbers
from reports.arms import Arm
from reports.markdown import code


def server_starts(arm: Arm) -> int:
    """Server starts that its windows were measured on; 0 without windows."""
    return len({row.server_start for row in arm.sweep.probes})


def starts_lines(arm: Arm) -> Iterator[str]:
    """What a reader must know of an arm that went on after a stop; nothing of any other."""
    if not arm.run.resumed_utc:
        return
    name, counts = code(arm.label), Counter(row.server_start for row in arm.sweep.probes)
    on = f"stand on {numbers.plural(len(counts), 'server start')}"
    if len(counts) > 1:
        on += f" ({', '.join(numbers.count(counts[start]) for start in sorted(counts))})"
    yield (
        f"{name} went on after a stop: its {numbers.plural(counts.total(), 'window')} {on}. Its accuracy, idle power, "
        "power over time, dollars of measuring and passport are those of the last start."
    )
    cold = sum(not warm.is_warm for warm in arm.sweep.earlier_warm_ups)
    if cold:
        yield f"Earlier server starts of {name} that were not warm: {numbers.count(cold)}."


def offset_line(arm: Arm) -> str | None:
    """What windows of several starts do to an effect; None for an arm of one start."""
    starts = server_starts(arm)
    if starts <= 1:
        return None
    return (
        f"{code(arm.label)} is not one server start but {numbers.count(starts)}: what these differ by is among its "
        "windows, and counts as noise between them."
    )
