"""A session on a terminal: what somebody who decides must see, in a screenful of 80 columns or more."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gates.accuracy import AccuracyOutcome
from gates.capacity import CapacityVerdict
from gates.effect import AnswerMetric, EffectMetric
from gates.spending import SpentMetric
from reports import numbers
from reports.arms import SIMULATED, SMOKE
from reports.changes import compact, size
from reports.markdown import one_line
from reports.story import Kind
from reports.summary_document import ArmSummary, EffectSummary, SummaryDocument
from reports.terminal_details import details
from reports.terminal_table import DASH, table

_NO_TABLE_TELLS = (Kind.NOTHING_PASSED, Kind.GATE_FAILED, Kind.NOT_COMPARABLE)
"""Answers that stand in no column: the headline gives them."""


def terminal(summary: SummaryDocument, *, is_verbose: bool = False) -> RenderableType:
    """The session; nothing in it is markup, whatever a label holds. is_verbose: with all tables below."""
    marks = "".join(f"[{mark}] " for mark in _marks(summary))
    parts: list[RenderableType] = [Text(f"{marks}{one_line(summary.title)}", style="bold")]
    if summary.arms:
        parts.append(_arms(summary))
    if not is_verbose and _needs_headline(summary):
        parts.append(Text(summary.headline))
    parts += [Text(line) for line in _lines(summary)]
    if summary.decision is not None:
        made = summary.decision
        parts.append(Text(f"decision on {one_line(made.arm)}: {made.decision}; {made.ground}", style="bold"))
    if is_verbose:
        parts += [Text(), *details(summary)]
    return Group(*parts)


def _marks(summary: SummaryDocument) -> Iterator[str]:
    if summary.is_simulated:
        yield SIMULATED
    if summary.is_smoke:
        yield SMOKE


def _needs_headline(summary: SummaryDocument) -> bool:
    """Whether the rest leaves the answer out."""
    return not summary.arms or summary.answer in _NO_TABLE_TELLS or (len(summary.arms) > 1 and not summary.effects)


def _lines(summary: SummaryDocument) -> Iterator[str]:
    """What the table has no room for, a line each: effects beside drift, what was spent, what limited it, cautions."""
    yield from _findings(summary)
    yield from _accuracy(summary)
    yield from _power(summary)
    yield from _cost(summary)
    yield from _not_measured(summary)
    yield from _limit(summary)
    if summary.kind == "compare":
        yield from summary.bullets
    else:
        yield from (f"blocks in turn: {each.sentence}" for each in summary.comparisons)
    yield from (f"{one_line(label)}: no result, {one_line(why)}" for label, why in summary.struck.items())
    yield from (f"{one_line(label)}: not measured, {one_line(reason)}" for label, reason in summary.failed.items())
    yield from (f"note: {line}" for line in summary.cautions)


def _arms(summary: SummaryDocument) -> Table:
    """A row per arm: capacity in req/s, the windows behind it, and mean TPOT: the baseline's, the others' effect."""
    at = "" if summary.anchor_rps is None else f", {numbers.rate(summary.anchor_rps)}"
    has_gate = any(arm.accuracy is not None for arm in summary.arms)
    made = table("arm", "capacity", "windows passed", f"mean TPOT{at}", *(("accuracy",) if has_gate else ()))
    for arm in summary.arms:
        cells = [one_line(arm.label), _capacity(arm), _windows(arm), _tpot(summary, arm)]
        made.add_row(*map(Text, [*cells, _right(arm)] if has_gate else cells))
    return made


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
    """Windows passed at the capacity and at the first failed rate: 3/3, 11.50: 0/3."""
    told = dict(tally.split(": ", 1) for tally in arm.tallies if ": " in tally)
    passed, failed = (
        told.get(numbers.rate(rate, unit=False), "").replace(" of ", "/")
        for rate in (arm.capacity_rps, arm.first_failed_rps)
    )
    at = f"{numbers.rate(arm.first_failed_rps, unit=False)}: {failed}" if failed else ""
    return ", ".join(each for each in (passed, at) if each) or DASH


def _tpot(summary: SummaryDocument, arm: ArmSummary) -> str:
    """The baseline's mean TPOT; of another arm its effect, of the drift arm the drift."""
    if arm.label == summary.baseline:
        value = None if arm.anchor is None else arm.anchor.tpot_mean_s
        return DASH if value is None else numbers.ms(value)
    found = [each for each in summary.effects if each.metric is EffectMetric.TPOT_MEAN]
    if arm.label == summary.drift_arm:
        return _short(found[0].drift_share, found[0].drift_interval) if found else DASH
    return next((_short(each.share, each.interval) for each in found if each.arm == arm.label), DASH)


def _short(share: float | None, ends: tuple[float, float] | None) -> str:
    return DASH if share is None else compact(EffectMetric.TPOT_MEAN, share, ends)


def _right(arm: ArmSummary) -> str:
    """Right of asked, and the outcome where it is no pass: 46/50; 29/50 fail."""
    found = arm.accuracy
    if found is None:
        return DASH
    if found.n == 0:
        return found.outcome
    return f"{found.right}/{found.n}{'' if found.outcome == AccuracyOutcome.PASS else f' {found.outcome}'}"


def _findings(summary: SummaryDocument) -> Iterator[str]:
    """What may be said of each arm's mean TPOT, once the drift is known."""
    found = [each for each in summary.effects if each.metric is EffectMetric.TPOT_MEAN]
    if found:
        told = "; ".join(
            f"{one_line(each.arm)} {each.finding.said} (visible from {size(each.metric, each.smallest_visible_share)})"
            for each in found
        )
        yield f"mean TPOT, 95 % intervals; drift of two equal arms {_drift(found[0])}: {told}"


def _drift(effect: EffectSummary) -> str:
    return compact(effect.metric, effect.drift_share, effect.drift_interval)


def _change(summary: SummaryDocument, metric: AnswerMetric | SpentMetric) -> str:
    """The change of the arm that is decided on, with drift and verdict; empty where it was not compared."""
    about = None if summary.decision is None else summary.decision.arm
    found = [each for each in summary.effects if each.metric is metric]
    each = next((each for each in found if each.arm == about), found[0] if found else None)
    if each is None:
        return ""
    told = compact(metric, each.share, each.interval)
    return f"; {one_line(each.arm)} {told}, drift {_drift(each)}: {each.finding.said}"


def _accuracy(summary: SummaryDocument) -> Iterator[str]:
    base = summary.arm(summary.baseline)
    if base is not None and base.accuracy is not None and base.accuracy.n:
        found = base.accuracy
        told = f"{found.right}/{found.n} right, gate {found.outcome}"
        yield f"accuracy: {one_line(base.label)} {told}{_change(summary, AnswerMetric.ACCURACY)}"


def _power(summary: SummaryDocument) -> Iterator[str]:
    base = summary.arm(summary.baseline)
    if base is not None and base.power_mean_w is not None:
        told = f"{numbers.watts(base.power_mean_w)}, {numbers.joules(base.joules_per_output_token)} per output token"
        yield f"power: {one_line(base.label)} {told}{_change(summary, SpentMetric.POWER_MEAN)}"


def _cost(summary: SummaryDocument) -> Iterator[str]:
    base = summary.arm(summary.baseline)
    if base is not None and base.usd_per_million_output_tokens is not None:
        price = f"{'an assumed ' if summary.is_simulated else ''}{numbers.usd(base.usd_per_hour)}/hour"
        told = f"{numbers.usd(base.usd_per_million_output_tokens)} per million output tokens at {price}"
        yield f"cost: {one_line(base.label)} {told}{_change(summary, SpentMetric.USD_PER_MILLION)}"


def _not_measured(summary: SummaryDocument) -> Iterator[str]:
    """What the baseline has no number of, in one line."""
    base = summary.arm(summary.baseline)
    if base is None:
        return
    power = f"power ({one_line(base.power_not_measured)})" if base.power_not_measured else "power"
    missing = [
        *(("accuracy",) if base.accuracy is None else ()),
        *((power,) if base.power_mean_w is None else ()),
        *(("cost",) if base.usd_per_million_output_tokens is None else ()),
    ]
    if missing:
        yield f"not measured: {', '.join(missing)}"


def _limit(summary: SummaryDocument) -> Iterator[str]:
    """What limited the baseline."""
    base = summary.arm(summary.baseline)
    if base is not None and base.first_failed_rps is not None:
        why = base.cause or "why is not known"
        at = numbers.rate(base.first_failed_rps)
        yield f"{one_line(base.label)} was limited by {base.limited_by or 'an objective'} at {at}: {why}"
