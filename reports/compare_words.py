"""What a comparison says, in sentences and plain lines; every number beside its interval and its count."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gates.comparison import Claim, ComparedMetric
from gates.log_ratio import CONFIDENCE, POWER, Estimate
from gates.spending import SpentMetric
from gates.starts import MIN_STARTS
from reports import numbers
from reports.effect_document import ArmName, EffectDocument, EffectRow, PairRow

SIMULATED = "SIMULATED"

_HEADER = ("metric", "A", "B", "effect", f"{numbers.confidence(CONFIDENCE)} interval", "finding")
_LESS, _MORE = ("lower", "higher")


def value(metric: ComparedMetric | SpentMetric, of: float | None) -> str:
    """A value of a metric with its unit."""
    if metric is SpentMetric.POWER_MEAN:
        return numbers.watts(of)
    if metric is SpentMetric.JOULES_PER_TOKEN:
        return numbers.joules(of)
    return numbers.rate(of) if metric is ComparedMetric.GOODPUT else numbers.ms(of)


def load_text(document: EffectDocument) -> str:
    """The load in a few words: 10.00 req/s, or 16 in flight (closed loop)."""
    if document.rate_rps is None:
        return f"{document.concurrency} in flight (closed loop)"
    return numbers.rate(document.rate_rps)


def arm_text(document: EffectDocument, name: ArmName) -> str:
    """An arm's label with what was changed in it: B (kv_cache_dtype=fp8)."""
    arm = document.a if name == "A" else document.b
    return f"{arm.label} ({', '.join(arm.changes)})" if arm.changes else arm.label


def pair_line(row: PairRow, labels: tuple[str, str], so_far: Estimate | None) -> str:
    """One pair as it was measured, and the effect so far."""
    order = " ".join(labels if row.a_first else reversed(labels))
    a, b = row.a.tpot_mean_s, row.b.tpot_mean_s
    change = numbers.signed_share(b / a - 1) if a and b else numbers.NOT_MEASURED
    parts = [
        f"pair {row.number + 1:>2} ({order})",
        f"mean TPOT {labels[0]} {numbers.ms(a)}, {labels[1]} {numbers.ms(b)}: {change}",
        f"n {row.a.n} and {row.b.n}",
        f"so far {estimate_text(so_far)}",
    ]
    return "  ".join(parts)


def estimate_text(found: Estimate | None) -> str:
    """An effect with its interval."""
    if found is None:
        return numbers.NOT_MEASURED
    if found.interval is None:
        return f"{numbers.signed_share(found.share)}, no interval yet"
    return f"{numbers.signed_share(found.share)} ({numbers.signed_interval(found.interval)})"


def table_lines(document: EffectDocument) -> list[str]:
    """The effects as a plain table."""
    rows = [(_HEADER[0], document.a.label, document.b.label, *_HEADER[3:])]
    rows += [
        (
            each.metric.value,
            value(each.metric, each.a_value),
            value(each.metric, each.b_value),
            numbers.signed_share(each.share),
            numbers.signed_interval(each.interval),
            each.claim.value,
        )
        for each in document.effects
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def sentence(document: EffectDocument) -> str:
    """The one sentence that a reader takes away."""
    if document.outcome != "concluded":
        word = {"unfinished": "Inconclusive", "not comparable": "Not comparable", "invalid": "Invalid"}[
            document.outcome
        ]
        return f"{word}: {'; '.join(document.reasons) or 'it has not ended yet'}."
    primary = document.primary
    who = f"mean TPOT of {arm_text(document, 'B')}"
    at = f"at {load_text(document)}"
    found = f"{_interval(primary)}, {numbers.plural(primary.n_pairs, 'pair')} of blocks"
    share = primary.share or 0.0
    direction = f"{numbers.share(abs(share))} {_LESS if share < 0 else _MORE} than that of {document.a.label}"
    starts = numbers.plural(document.starts_per_arm, "start")
    match primary.claim:
        case Claim.REAL:
            return f"Real: {at} {who} is {direction} ({found}, {starts} of each arm)."
        case Claim.BETWEEN_INSTANCES:
            return _between_instances(document, f"{who} is {direction} {at}", found)
        case Claim.WITHIN_DRIFT:
            return (
                f"Within drift: between these server instances {who} differs from that of {document.a.label} {at}, and "
                f"starts of one configuration may differ by as much ({found}). The change is not needed to explain it."
            )
        case _:
            return f"No effect found: {at} {who} differs by {numbers.signed_share(share)} ({found})."


def _between_instances(document: EffectDocument, differs: str, found: str) -> str:
    """An effect beyond noise of which nobody knows how far it goes beyond the servers that ran."""
    primary = document.primary
    if primary.control_share is not None:
        return (
            f"Between these server instances {differs} ({found}), beyond what a second start of {document.a.label} "
            f"differs by ({control_text(primary)}). Whether other starts would differ alike was not measured."
        )
    if document.starts_per_arm == 1:
        return (
            f"Between these two server instances {differs} ({found}). Whether other starts of the same configurations "
            "would differ alike was not measured."
        )
    return (
        f"Between these server instances {differs} ({found}, {document.starts_per_arm} starts of each arm). "
        f"{MIN_STARTS} starts of each arm are the fewest that speak for others."
    )


def _interval(row: EffectRow) -> str:
    return f"{numbers.confidence(CONFIDENCE)} interval {numbers.signed_interval(row.interval)}"


def control_text(row: EffectRow) -> str:
    """What two starts of arm A differ by in one metric."""
    return f"{numbers.signed_share(row.control_share)}, {numbers.signed_interval(row.control_interval)}"


def control_lines(document: EffectDocument) -> list[str]:
    """The control in each metric that has one."""
    told = [f"{each.metric.value} {control_text(each)}" for each in document.effects if each.control_share is not None]
    return [f"control, the second start of {document.a.label} against its first: {'; '.join(told)}"] if told else []


def outlook_lines(document: EffectDocument) -> list[str]:
    """What the design could have seen, and what more would take."""
    lines = []
    primary = document.primary
    if primary.smallest_visible_share is not None:
        lines.append(
            f"smallest effect on mean TPOT that such a comparison finds in {numbers.confidence(POWER)} of all runs: "
            f"{numbers.share(primary.smallest_visible_share)}"
        )
    if document.pairs_needed is not None:
        minutes = math.ceil(document.pairs_needed * _pair_s(document) / 60)
        cost = f"{numbers.plural(document.pairs_needed, 'pair')}, about {numbers.plural(minutes, 'minute')} of load"
        lines.append(f"to find {numbers.share(document.resolution_share)} between the servers that ran: {cost}")
    return control_lines(document) + lines + _starts_lines(document)


def _pair_s(document: EffectDocument) -> float:
    """Seconds of load per pair."""
    return sum(row.a.load_s + row.b.load_s for row in document.pairs) / max(1, len(document.pairs))


def _starts_lines(document: EffectDocument) -> list[str]:
    """How far starts of one configuration differ, and how many of them a claim would need."""
    lines = []
    if document.offset_share is not None:
        source = {"measured": "between equal servers of this run", "given": "as given", None: ""}[
            document.offset_source
        ]
        lines.append(f"offset of one server start, {source}: sd {numbers.share(document.offset_share)} of mean TPOT")
    claim = document.primary.claim
    if claim in (Claim.REAL, Claim.TOO_FEW_PAIRS):
        return lines
    is_seen = claim is not Claim.BELOW_RESOLUTION
    if document.offset_share is None and not is_seen:
        return lines
    if document.offset_share is None:
        ways = "" if document.placement == "attached" else ": --instances 3 or --placement restart measures it"
        least = f"{MIN_STARTS} of each arm at least; how many depends on the offset of a start"
        return [*lines, f"starts needed to call it real: {least}, which single starts cannot show{ways}"]
    needed = "more than 100" if document.starts_needed is None else numbers.count(document.starts_needed)
    size = "this size" if is_seen else numbers.share(document.resolution_share)
    return [*lines, f"starts needed to call an effect of {size} real: {needed} of each arm"]


def spent_lines(document: EffectDocument) -> list[str]:
    """Why there is no power, and what the comparison cost."""
    lines = []
    if document.power_not_measured is not None:
        lines.append(f"power: not measured: {document.power_not_measured}")
    if document.usd_per_hour is not None:
        lines.append(f"cost: {numbers.usd(document.usd)} at {numbers.usd(document.usd_per_hour)}/hour")
    return lines


def trend_lines(document: EffectDocument) -> Sequence[str]:
    """Trends inside blocks that are more than chance."""
    return [
        f"inside the blocks of {document.a.label if row.arm == 'A' else document.b.label} {row.what} changed by "
        f"{numbers.signed_share(row.share)} from start to end ({numbers.signed_interval(row.interval)})"
        for row in document.trends
        if row.is_told
    ]
