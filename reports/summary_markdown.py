"""A session in a few lines of Markdown, for the summary of a CI job."""

from __future__ import annotations

from collections.abc import Sequence

from gates.effect import EffectMetric
from reports import numbers
from reports.arms import SIMULATED, SMOKE
from reports.markdown import bullets, code, code_block, escape, heading, table
from reports.summary_document import ArmSummary, DecisionSummary, EffectSummary, SummaryDocument


def short_markdown(summary: SummaryDocument, verdict: Sequence[str] = ()) -> str:
    """The short form. verdict: plain lines on a comparison with an earlier session, shown first."""
    marks = [mark for mark, is_on in ((SIMULATED, summary.is_simulated), (SMOKE, summary.is_smoke)) if is_on]
    parts = [
        heading(": ".join([*marks, escape(summary.title)]), 2),
        code_block("\n".join(verdict)) if verdict else "",
        f"**{escape(summary.headline)}**" if summary.headline else "",
        _arms(summary) if summary.arms else "",
        bullets(_effect(each) for each in summary.effects if each.metric is EffectMetric.TPOT_MEAN),
        bullets(escape(each.sentence) for each in summary.comparisons if summary.kind != "compare"),
        bullets(f"{code(label)} was not measured: {escape(reason)}" for label, reason in summary.failed.items()),
        bullets(escape(caution) for caution in summary.cautions),
        "" if summary.decision is None else _decision(summary.decision),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _decision(made: DecisionSummary) -> str:
    return f"Decision on {code(made.arm)}: **{made.decision}**; {escape(made.reason)}"


def _arms(summary: SummaryDocument) -> str:
    at = "" if summary.anchor_rps is None else f" at {numbers.rate(summary.anchor_rps)}"
    return table(
        ["arm", "capacity", "windows", f"p99 TTFT{at}", f"p99 TPOT{at}", "limited by"],
        [_arm(arm) for arm in summary.arms],
        ["left", "right", "left", "right", "right", "left"],
    )


def _arm(arm: ArmSummary) -> list[str]:
    ttft_s, tpot_s = (None, None) if arm.anchor is None else (arm.anchor.ttft_p99_s, arm.anchor.tpot_p99_s)
    capacity = numbers.rate(arm.capacity_rps)
    ends = [numbers.rate(each, unit=False) for each in (arm.capacity_rps, arm.first_failed_rps) if each is not None]
    tallies = [escape(tally) for tally in arm.tallies if tally.partition(":")[0] in ends]
    return [
        code(arm.label),
        capacity,
        "; ".join(tallies),
        numbers.ms(ttft_s),
        numbers.ms(tpot_s),
        arm.limited_by or "-",
    ]


def _effect(each: EffectSummary) -> str:
    drift = "not measured" if each.drift_share is None else numbers.signed_share(each.drift_share)
    interval = "" if each.interval is None else f" ({numbers.signed_interval(each.interval)})"
    effect = f"{numbers.signed_share(each.share)}{interval}"
    return f"{code(each.arm)}, mean TPOT: {effect}, drift {drift}: {each.finding.said}"
