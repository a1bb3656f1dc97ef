"""The details of a session on a terminal: what `slo-bench report --verbose` prints below the screenful."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from reports import numbers
from reports.changes import compact, size
from reports.markdown import one_line
from reports.summary_document import SummaryDocument
from reports.terminal_table import DASH, or_dash, table

_MOST_DIFFERENCES = 12
"""More rows than this are no table that is read on a terminal."""


def details(summary: SummaryDocument) -> Iterator[RenderableType]:
    """The headline, tables of latency, spending and effects, in what arms differ, and the decision's reason."""
    yield Text(summary.headline)
    if summary.arms:
        yield from (Text(), _latency(summary), Text(), _spending(summary))
    if summary.effects:
        yield from (Text(), _effects(summary))
    if (differing := _differences(summary)) is not None:
        yield from (Text(), differing)
    if summary.decision is not None:
        yield from (Text(), Text(f"why: {summary.decision.reason}"), Text(summary.decision.limits))


def _latency(summary: SummaryDocument) -> Group:
    at = "no anchor rate" if summary.anchor_rps is None else f"latencies at {numbers.rate(summary.anchor_rps)}, ms"
    made = table("arm", "resol.", "estimate (90 %)", "TTFT p99", "TPOT p99", "TPOT mean", "limit")
    for arm in summary.arms:
        anchor = arm.anchor
        values = (None, None, None) if anchor is None else (anchor.ttft_p99_s, anchor.tpot_p99_s, anchor.tpot_mean_s)
        made.add_row(
            Text(one_line(arm.label)),
            Text(or_dash(numbers.share(arm.resolution_share))),
            Text(_estimate(arm.capacity_estimate_rps, arm.capacity_interval_rps)),
            *(Text(or_dash(numbers.ms(each, unit=False))) for each in values),
            Text(arm.limited_by or DASH),
        )
    return Group(Text(f"capacity in req/s; {at}"), made)


def _estimate(rate_rps: float | None, ends: tuple[float, float] | None) -> str:
    if rate_rps is None or ends is None:
        return DASH
    low, high = (numbers.rate(end, unit=False) for end in ends)
    return f"{numbers.rate(rate_rps, unit=False)} ({low} to {high})"


def _spending(summary: SummaryDocument) -> Group:
    at = "" if summary.anchor_rps is None else f" at {numbers.rate(summary.anchor_rps)}"
    made = table("arm", "power", "J/token", "per 1M tokens")
    for arm in summary.arms:
        told = (
            numbers.watts(arm.power_mean_w),
            numbers.joules(arm.joules_per_output_token),
            numbers.usd(arm.usd_per_million_output_tokens),
        )
        made.add_row(Text(one_line(arm.label)), *(Text(or_dash(each)) for each in told))
    return Group(Text(f"power{at}; cost at each arm's capacity"), made)


def _effects(summary: SummaryDocument) -> Group:
    """A line for each effect: a table of them is wider than a terminal."""
    lines = [
        f"{one_line(each.arm)}, {each.metric}: {compact(each.metric, each.share, each.interval)}, drift "
        f"{compact(each.metric, each.drift_share, each.drift_interval)}, visible from "
        f"{size(each.metric, each.smallest_visible_share)}: {each.finding.said}"
        for each in summary.effects
    ]
    return Group(Text(f"against {summary.baseline}, 95 % intervals"), *map(Text, lines))


def _differences(summary: SummaryDocument) -> Group | None:
    """The facts in which arms differ; None where they do not."""
    names = dict.fromkeys(name for arm in summary.arms for name in arm.facts)
    differing = [name for name in names if len({arm.facts.get(name) for arm in summary.arms}) > 1]
    if not differing:
        return None
    made = table("", *(one_line(arm.label) for arm in summary.arms))
    for name in differing[:_MOST_DIFFERENCES]:
        made.add_row(Text(one_line(name)), *(Text(one_line(arm.facts.get(name, DASH))) for arm in summary.arms))
    if len(differing) > _MOST_DIFFERENCES:
        made.add_row(Text(f"and {len(differing) - _MOST_DIFFERENCES} more, see the note"))
    return Group(Text("in what the arms differ"), made)
