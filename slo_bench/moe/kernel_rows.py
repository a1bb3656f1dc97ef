"""From checks and times of kernels to kernels.json and the lines on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from reports.kernels import KernelConditions, KernelRow, KernelsDocument, KernelSetting, KernelTime
from reports.sections.kernels import card_line, us
from slo_bench.moe.bench import Batch, BenchFacts, Checked, Effort, Layer, Timed
from slo_bench.moe.choice import ERROR_FACTOR, middle_of
from slo_bench.moe.limits import Card, card_of
from slo_bench.moe.work import Work, work

MOST_ERROR = 0.1
"""Farther from float32 than this no kernel is right: FP8 costs some hundredths, BF16 some thousandths."""

Row = tuple[str, Checked, Timed]
"""A source of configurations, the check of one of them, and its times."""


def wrong_reason(checked: Checked, heuristic: Checked) -> str | None:
    """Why a configuration is not timed; None where it is right."""
    error = checked.relative_error
    if checked.failure is not None:
        return checked.failure
    if error is None or not math.isfinite(error):
        return "its result is not finite"
    base = heuristic.relative_error
    limit = MOST_ERROR if base is None or not math.isfinite(base) else min(MOST_ERROR, ERROR_FACTOR * base)
    # An error of nothing on both sides, where a rank has no rows, is right too.
    return f"its result is wrong: {error:.3g} from float32, more than {limit:.3g}" if error > limit else None


def kernels_document(
    layer: Layer,
    batches: Sequence[Batch],
    facts: BenchFacts,
    rows: Sequence[Row],
    *,
    files: Mapping[str, str],
    effort: Effort,
    seed: int,
    conditions: KernelConditions,
) -> KernelsDocument:
    """kernels.json: every time, and what the last source changed against the first."""
    card = None if facts.is_simulated else card_of(facts.device)
    works = {
        batch.name: [work(ids, layer.shape, layer.quantisation, rank=layer.rank) for ids in batch.draws]
        for batch in batches
    }
    times = [_time(row, works[row[1].case.batch], layer, card, facts.bandwidth_bps) for row in rows]
    return KernelsDocument(
        rows=_changes(times, list(files)),
        is_simulated=facts.is_simulated,
        setting=KernelSetting(
            layer=f"{layer.shape}, {layer.quantisation}",
            device=facts.device,
            versions=dict(facts.versions),
            files=dict(files),
            rounds=effort.rounds,
            calls=effort.calls,
            weight_sets=layer.weight_sets,
            seed=seed,
            datasheet_bps=None if card is None else card.bandwidth_bps,
            datasheet=None if card is None else card.source,
            measured_bps=facts.bandwidth_bps,
        ),
        conditions=conditions,
        times=times,
    )


def _time(row: Row, works: Sequence[Work], layer: Layer, card: Card | None, measured_bps: float | None) -> KernelTime:
    source, checked, timed = row
    median_s, low_s, high_s = middle_of(timed.times_s)
    moved = fmean(each.least_bytes for each in works)
    reached_bps = None if median_s is None else moved / median_s
    least = [] if card is None else [card.least_s(each, layer.quantisation) for each in works]
    known = [each for each in least if each is not None]
    tokens, routing = timed.case.batch
    return KernelTime(
        tokens=tokens,
        routing=routing,
        source=source,
        entry=dict(timed.case.entry),
        median_s=median_s,
        interval_s=None if low_s is None or high_s is None else (low_s, high_s),
        times_s=list(timed.times_s),
        relative_error=checked.relative_error,
        failure=timed.failure,
        experts_hit=fmean(each.experts_hit for each in works),
        bytes=moved,
        operations=fmean(each.operations for each in works),
        bandwidth_bps=reached_bps,
        datasheet_share=None if reached_bps is None or card is None else reached_bps / card.bandwidth_bps,
        measured_share=None if reached_bps is None or not measured_bps else reached_bps / measured_bps,
        limit_share=fmean(known) / median_s if known and median_s is not None else None,
    )


def _changes(times: Sequence[KernelTime], sources: Sequence[str]) -> list[KernelRow]:
    """The last source against the first, where both were timed; empty where there is one alone."""
    if len(sources) == 1:
        return []
    before = {(each.tokens, each.routing): each for each in times if each.source == sources[0]}
    rows = []
    for after in times:
        first = before[after.tokens, after.routing]
        if after.source == sources[-1] and after.median_s is not None and first.median_s is not None:
            rows.append(
                KernelRow(
                    tokens=after.tokens,
                    routing=after.routing,
                    before_s=first.median_s,
                    after_s=after.median_s,
                    limit_share=after.limit_share,
                )
            )
    return rows


_HEADER = ("tokens", "routing", "source", "us/call", "95 %", "spread", "error", "experts", "MB", "sheet", "measured")


def table_lines(document: KernelsDocument) -> Iterator[str]:
    """What the terminal shows: a line per case, then what the shares are of, and the card meanwhile."""
    cells = [_HEADER, *map(_cells, document.times)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADER))]
    for row in cells:
        yield "  ".join(
            text.ljust(width) if name in ("routing", "source") else text.rjust(width)
            for text, width, name in zip(row, widths, _HEADER, strict=True)
        ).rstrip()
    for each in document.times:
        if each.failure is not None:
            yield f"{each.tokens} tokens, {each.routing}, {each.source}: not timed: {each.failure}"
    setting = document.setting
    if setting is not None:
        sheet, measured = _bandwidth(setting.datasheet_bps), _bandwidth(setting.measured_bps)
        source = "" if setting.datasheet is None else f" ({setting.datasheet})"
        yield f"shares are of the bandwidth by data sheet, {sheet}{source}, and as a long read measured it, {measured}"
    yield card_line(document.conditions)


def _cells(row: KernelTime) -> tuple[str, ...]:
    return (
        str(row.tokens),
        row.routing,
        row.source,
        "-" if row.median_s is None else us(row.median_s),
        "-" if row.interval_s is None else f"{us(row.interval_s[0])} to {us(row.interval_s[1])}",
        _percent(row.spread_share),
        "-" if row.relative_error is None else f"{row.relative_error:.2g}",
        "-" if row.experts_hit is None else f"{row.experts_hit:.0f}",
        "-" if row.bytes is None else f"{row.bytes / 1e6:.4g}",
        _percent(row.datasheet_share, digits=0),
        _percent(row.measured_share, digits=0),
    )


def _percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{share:.{digits}%}"


def _bandwidth(value_bps: float | None) -> str:
    return "not known" if value_bps is None else f"{value_bps / 1e12:.2f} TB/s"
