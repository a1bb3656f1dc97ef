"""From what was found to grouped.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.kernels import KernelConditions
from slo_bench.moe.grouped.bench import Checked, GroupedCase, GroupedFacts, Samples
from slo_bench.moe.grouped.document import (
    CheckRow,
    EstimateRow,
    GroupedDocument,
    GroupedSetting,
    InputRow,
    RankRow,
    SeenRow,
    Source,
    TimeRow,
)
from slo_bench.moe.grouped.estimates import Tile, branch, flips_at, swap_below
from slo_bench.moe.grouped.options import Plan
from slo_bench.moe.grouped.ranks import RankRows
from slo_bench.moe.grouped.verdict import MOST_APART, verdict

ORDER = "token counts ascending in one process; every case has a runner of its own, so nothing of a larger call is left"

_DIGITS = 9
"""Of seconds: a nanosecond is finer than events are."""


@dataclass(frozen=True, slots=True)
class TimedCase:
    """Samples of one rank under one estimate."""

    routing: str
    rank: int
    source: Source
    case: GroupedCase
    samples: Samples


@dataclass(frozen=True, slots=True)
class Found:
    """What a run found. batches: (tokens, routing, ranks). tiles: by estimate, ascending.

    checked: every rank that has rows.
    """

    batches: Sequence[tuple[int, str, Sequence[RankRows]]]
    tiles: Sequence[tuple[Tile, Tile]]
    checked: Sequence[tuple[str, RankRows, Checked]]
    timed: Sequence[TimedCase]
    conditions: KernelConditions


def grouped_document(plan: Plan, facts: GroupedFacts, found: Found) -> GroupedDocument:
    """grouped.json."""
    checks = [row for routing, rank, checked in found.checked for row in _checks(plan.tokens, routing, rank, checked)]
    return GroupedDocument(
        is_simulated=facts.is_simulated,
        verdict=verdict(checks),
        setting=_setting(plan, facts),
        conditions=found.conditions,
        ranks=[
            RankRow(
                tokens=tokens,
                routing=routing,
                rank=each.rank,
                rows=each.rows,
                experts_hit=each.experts_hit,
                most_rows=each.most_rows,
            )
            for tokens, routing, ranks in found.batches
            for each in ranks
        ],
        estimates=[
            EstimateRow(estimate=each, branch=branch(each, facts.sms), tiles=(str(fc1), str(fc2)))
            for each, (fc1, fc2) in zip(plan.all_estimates, found.tiles, strict=True)
        ],
        times=[_time(each) for each in found.timed],
        checks=checks,
        inputs=[
            row for routing, rank, checked in found.checked for row in _inputs(plan.tokens, routing, rank, checked)
        ],
        seen=_seen(plan, found.checked),
    )


def _setting(plan: Plan, facts: GroupedFacts) -> GroupedSetting:
    shape = plan.shape
    return GroupedSetting(
        hidden=shape.hidden,
        intermediate=shape.columns,
        experts=shape.experts,
        top_k=shape.top_k,
        ep_size=shape.ep_size,
        tokens=plan.tokens,
        device=facts.device,
        sms=facts.sms,
        swap_below=swap_below(facts.sms),
        flips_at=flips_at(shape, facts.sms),
        versions=dict(facts.versions),
        warm_ups=plan.effort.warm_ups,
        samples=plan.effort.samples,
        seed=plan.effort.seed,
        most_apart=MOST_APART,
        order=ORDER,
    )


def _checks(tokens: int, routing: str, rank: RankRows, checked: Checked) -> list[CheckRow]:
    return [
        CheckRow(
            tokens=tokens,
            routing=routing,
            rank=rank.rank,
            stage=stage.stage,
            comparison=comparison,
            error=difference.error,
            worst_row_error=difference.worst_row_error,
        )
        for stage in checked.stages
        for comparison, difference in stage.differences.items()
    ]


def _inputs(tokens: int, routing: str, rank: RankRows, checked: Checked) -> list[InputRow]:
    return [
        InputRow(
            tokens=tokens,
            routing=routing,
            rank=rank.rank,
            stage=stage.stage,
            is_equal=stage.is_equal,
            rounding_error=stage.rounding.error,
        )
        for stage in checked.stages
    ]


def _seen(plan: Plan, checked: Sequence[tuple[str, RankRows, Checked]]) -> list[SeenRow]:
    rows = []
    for source, estimate in plan.estimates(plan.tokens).items():
        names = {name for _, _, each in checked for name in each.seen.get(source, ())}
        rows.append(SeenRow(estimate=estimate, kernels=sorted(names)))
    return rows


def _time(timed: TimedCase) -> TimeRow:
    return TimeRow(
        tokens=timed.case.tokens,
        routing=timed.routing,
        rank=timed.rank,
        source=timed.source,
        estimate=timed.case.estimate,
        fc1_s=[round(each, _DIGITS) for each in timed.samples.fc1_s],
        fc2_s=[round(each, _DIGITS) for each in timed.samples.fc2_s],
    )
