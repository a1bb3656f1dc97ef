"""A session on a terminal: a compact table per question, made for 80 columns and better with 120."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gates.capacity import CapacityVerdict
from gates.effect import EffectMetric
from reports import numbers
from reports.arms import SIMULATED, SMOKE
from reports.markdown import one_line
from reports.summary_document import ArmSummary, SummaryDocument

_MOST_DIFFERENCES = 12
"""More rows than this are no table that is read on a terminal."""


def terminal(summary: SummaryDocument) -> RenderableType:
    """The session in a screenful; nothing in it is markup, whatever a label holds."""
    marks = "".join(f"[{mark}] " for mark in _marks(summary))
    parts: list[RenderableType] = [
        Text(f"{marks}{one_line(summary.title)}", style="bold"),
        Text(summary.headline),
        Text(),
    ]
    if summary.arms:
        parts += [_arms(summary), *_limits(summary), Text(), _spending(summary), Text()]
    if summary.effects:
        parts += [_effects(summary), Text()]
    parts += [Text(f"blocks in turn: {each.sentence}") for each in summary.comparisons if summary.kind != "compare"]
    parts += [Text(f"{label}: not measured, {one_line(reason)}") for label, reason in summary.failed.items()]
    if (differing := _differences(summary)) is not None:
        parts += [differing, Text()]
    parts += [Text(line) for line in summary.bullets] if summary.kind == "compare" else []
    parts += [Text(f"note: {line}") for line in summary.cautions]
    if summary.decision is not None:
        made = summary.decision
        parts.append(Text(f"decision on {one_line(made.arm)}: {made.decision}; {made.reason}", style="bold"))
    return Group(*parts)


def _marks(summary: SummaryDocument) -> Iterator[str]:
    if summary.is_simulated:
        yield SIMULATED
    if summary.is_smoke:
        yield SMOKE


def _table(*columns: str) -> Table:
    """A table without a frame: the first column is text, the others are figures."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        made.add_column(name, justify="left" if number == 0 else "right", header_style="dim", overflow="fold")
    return made


def _arms(summary: SummaryDocument) -> Group:
    at = "no anchor rate" if summary.anchor_rps is None else f"latencies at {numbers.rate(summary.anchor_rps)}, ms"
    made = _table("arm", "capacity", "windows", "resol.", "TTFT p99", "TPOT p99", "TPOT mean", "limit")
    for arm in summary.arms:
        anchor = arm.anchor
        values = (None, None, None) if anchor is None else (anchor.ttft_p99_s, anchor.tpot_p99_s, anchor.tpot_mean_s)
        made.add_row(
            Text(one_line(arm.label)),
            Text(_capacity(arm)),
            Text(_windows(arm)),
            Text(_or_dash(numbers.share(arm.resolution_share))),
            *(Text(_or_dash(numbers.ms(each, unit=False))) for each in values),
            Text(arm.limited_by or "-"),
        )
    return Group(Text(f"capacity in req/s; {at}"), made)


def _limits(summary: SummaryDocument) -> Iterator[Text]:
    """What limited the baseline."""
    base = summary.arm(summary.baseline)
    if base is not None and base.first_failed_rps is not None:
        why = base.cause or "why is not known"
        at = numbers.rate(base.first_failed_rps)
        yield Text(f"{one_line(base.label)} was limited by {base.limited_by or 'an objective'} at {at}: {why}")


def _spending(summary: SummaryDocument) -> RenderableType:
    """Accuracy, power and cost of each arm; one line where none of them was measured."""
    rows = [(arm, _accuracy(arm), *_power_and_cost(arm)) for arm in summary.arms]
    if all(cell == "-" for _, *cells in rows for cell in cells):
        return Text("accuracy, power and cost: not measured")
    at = "" if summary.anchor_rps is None else f" at {numbers.rate(summary.anchor_rps)}"
    made = _table("arm", "accuracy", "power", "J/token", "per 1M tokens")
    for arm, *cells in rows:
        made.add_row(Text(one_line(arm.label)), *map(Text, cells))
    return Group(Text(f"power{at}; cost at each arm's capacity"), made)


def _accuracy(arm: ArmSummary) -> str:
    """The gate: 46/50 pass."""
    return "-" if arm.accuracy is None else f"{arm.accuracy.right}/{arm.accuracy.n} {arm.accuracy.outcome}"


def _power_and_cost(arm: ArmSummary) -> tuple[str, str, str]:
    watts, joules = numbers.watts(arm.power_mean_w), numbers.joules(arm.joules_per_output_token)
    return _or_dash(watts), _or_dash(joules), _or_dash(numbers.usd(arm.usd_per_million_output_tokens))


def _capacity(arm: ArmSummary) -> str:
    rate = numbers.rate(arm.capacity_rps, unit=False)
    return {
        CapacityVerdict.FOUND: rate,
        CapacityVerdict.AT_LEAST: f"≥ {rate}",
        CapacityVerdict.NONE: "none",
        CapacityVerdict.UNFINISHED: "unfinished",
        CapacityVerdict.GATE_FAILED: "not claimed",
        CapacityVerdict.GATE_INCONCLUSIVE: "not claimed",
    }[arm.capacity_verdict]


def _windows(arm: ArmSummary) -> str:
    """Windows passed at both ends of the bracket: 3/3, 0/3."""
    ends = [numbers.rate(each, unit=False) for each in (arm.capacity_rps, arm.first_failed_rps) if each is not None]
    told = dict(tally.split(": ", 1) for tally in arm.tallies if ": " in tally)
    return ", ".join(told[end].replace(" of ", "/") for end in ends if end in told) or "-"


def _effects(summary: SummaryDocument) -> Group:
    tpot = [each for each in summary.effects if each.metric is EffectMetric.TPOT_MEAN]
    drift = _signed(tpot[0].drift_share, tpot[0].drift_interval) if tpot[0].drift_share is not None else "not measured"
    title = f"mean TPOT against {summary.baseline}, 95 % interval; drift {drift}"
    made = _table("arm", "effect", "visible from")
    made.add_column("finding", header_style="dim", overflow="fold")
    for each in tpot:
        made.add_row(
            Text(one_line(each.arm)),
            Text(_signed(each.share, each.interval)),
            Text(_or_dash(numbers.share(each.smallest_visible_share))),
            Text(each.finding),
        )
    return Group(Text(title), made)


def _differences(summary: SummaryDocument) -> Group | None:
    """The facts in which arms differ; None where they do not."""
    names = dict.fromkeys(name for arm in summary.arms for name in arm.facts)
    differing = [name for name in names if len({arm.facts.get(name) for arm in summary.arms}) > 1]
    if not differing:
        return None
    made = _table("", *(one_line(arm.label) for arm in summary.arms))
    for name in differing[:_MOST_DIFFERENCES]:
        made.add_row(Text(one_line(name)), *(Text(one_line(arm.facts.get(name, "-"))) for arm in summary.arms))
    if len(differing) > _MOST_DIFFERENCES:
        made.add_row(Text(f"and {len(differing) - _MOST_DIFFERENCES} more, see the note"))
    return Group(Text("in what the arms differ"), made)


def _signed(share: float | None, interval: tuple[float, float] | None) -> str:
    if share is None:
        return "-"
    ends = "" if interval is None else f" ({numbers.signed_interval(interval).replace(' %', '')})"
    return f"{numbers.signed_share(share)}{ends}"


def _or_dash(text: str) -> str:
    return "-" if text in {numbers.NOT_MEASURED, numbers.NOT_KNOWN} else text
