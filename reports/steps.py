"""How many tokens the server had in a step under load, from its own counts in metrics.parquet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from reports.arms import Arm
from reports.metrics import read_metrics
from reports.prediction import StepSize
from reports.run_directory import ProbeRow
from traffic.server_facts import Histogram, ServerSample


def steps_at(arm: Arm, rate_rps: float | None) -> Histogram | None:
    """Tokens per step over the whole windows of a rate, ramps among them; None where the server does not tell.

    Raises UsageError for a file that cannot be read.
    """
    path = arm.directory / "metrics.parquet"
    rows = arm.at(rate_rps).whole
    if not rows or not path.exists():
        return None
    samples = read_metrics(path).samples
    found = [steps for row in rows if (steps := _of_window(samples, row)) is not None]
    return _together(found) if len(found) == len(rows) else None


def _of_window(samples: Sequence[ServerSample], row: ProbeRow) -> Histogram | None:
    begin_s = datetime.fromisoformat(row.started_utc).timestamp()
    inside = [each for each in samples if begin_s <= each.utc_s <= begin_s + row.load_s]
    if not inside or inside[0].step_tokens is None or inside[-1].step_tokens is None:
        return None
    return inside[-1].step_tokens.since(inside[0].step_tokens)


def _together(parts: Sequence[Histogram]) -> Histogram | None:
    """The values of all of them; None where their edges differ or there is nothing in them."""
    if len({each.bounds for each in parts}) != 1 or not any(each.count for each in parts):
        return None
    counts = tuple(sum(same) for same in zip(*(each.counts for each in parts), strict=True))
    return Histogram(parts[0].bounds, counts, sum(each.sum for each in parts), sum(each.count for each in parts))


def step_sizes(steps: Histogram, moe_share: float) -> list[StepSize]:
    """The steps by size, each bucket at its upper edge; what is above the last edge is at that edge.

    A histogram counts steps and not their time, so every step is taken to be equally long.
    """
    below = (0, *steps.counts[:-1])
    counts = [now - before for now, before in zip(steps.counts, below, strict=True)]
    counts[-1] += steps.count - steps.counts[-1]
    return [
        StepSize(edge, count / steps.count, moe_share)
        for edge, count in zip(steps.bounds, counts, strict=True)
        if count
    ]
