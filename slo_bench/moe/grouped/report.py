"""The note of a run of the grouped GEMM, and the lines on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from reports import numbers
from reports.markdown import bullets, code, escape, heading, image, table
from reports.sections.kernels import card_line, us
from slo_bench.moe.choice import Ratio, middle_of, ratio
from slo_bench.moe.grouped.document import GroupedDocument, TimeRow
from slo_bench.moe.grouped.estimates import CORRECTED, SCAN, SHIPPED
from slo_bench.moe.grouped.slowest import Change, changes, main_change, rows_of, safest_estimate
from slo_bench.moe.grouped.verdict import Comparison


def note(document: GroupedDocument, figure_name: str) -> str:
    """The whole note."""
    return "\n\n".join(_parts(document, figure_name)) + "\n"


def table_lines(document: GroupedDocument) -> Iterator[str]:
    """What the terminal shows: the main comparison, the verdict, the card."""
    for routing in document.routings:
        change = main_change(document, routing)
        for name, before_s, after_s in change.parts:
            times = f"{_median_us(before_s)} -> {_median_us(after_s)} us"
            yield f"{change.tokens} tokens, {routing}, {name}: {times}, {_ratio_text(ratio(before_s, after_s))}"
    yield f"results: {document.verdict.value}"
    yield card_line(document.conditions)


def _parts(document: GroupedDocument, figure_name: str) -> Iterator[str]:
    setting = document.setting
    mark = "SIMULATED: " if document.is_simulated else ""
    yield heading(f"{mark}Grouped GEMM of {escape(_flashinfer(document))} on {escape(setting.device)}", 1)
    yield _headline(document)
    yield bullets(_what_it_is(document))
    yield heading("The main comparison", 2)
    yield from _main(document)
    yield heading("Ranks", 2)
    yield from _ranks(document)
    yield heading("Other estimates", 2)
    yield from _scan(document)
    yield heading("Over token counts", 2)
    yield image("time of both matrix stages over the tokens of a call, under both estimates", figure_name)
    yield from _sweep(document)
    yield heading("Results", 2)
    yield from _results(document)
    yield heading("Conditions", 2)
    yield bullets(_conditions(document))


def _flashinfer(document: GroupedDocument) -> str:
    return f"FlashInfer {document.setting.versions.get('flashinfer', numbers.NOT_KNOWN)}"


def _headline(document: GroupedDocument) -> str:
    setting = document.setting
    if not document.verdict.is_pass:
        return (
            f"**No result: {document.verdict.value}.** The times below are of work that is not known to be right; no "
            "change of them is a finding."
        )
    both = "; ".join(
        f"{_ratio_text(main_change(document, routing).total)} under {escape(routing)} routing"
        for routing in document.routings
    )
    estimates = [main_change(document, document.routings[0]).shipped.estimate]
    estimates.append(main_change(document, document.routings[0]).corrected.estimate)
    where = [document.where(each) for each in estimates]
    return (
        f"**At {numbers.count(setting.tokens)} tokens, top-{setting.top_k}, {numbers.count(setting.experts)} experts "
        f"on {setting.ep_size} ranks, the corrected estimate ({where[1].estimate} rows per expert, {where[1].branch}) "
        f"in place of the shipped one ({where[0].estimate}, {where[0].branch}) changes both matrix stages of the "
        f"slowest rank by {both}.**"
    )


def _what_it_is(document: GroupedDocument) -> Iterator[str]:
    setting = document.setting
    rows = setting.tokens * setting.top_k / setting.experts
    yield (
        "What was timed: the grouped GEMM alone (`moeGemm`: quantisation of the activations and the matrix product), "
        f"built from the unchanged sources of {escape(_flashinfer(document))}'s wheel. The corrected estimate is a "
        "source backport of what is proposed: it is set through the runner's own functions, after the worst-case "
        "workspace has been sized. The whole fused MoE operator of that release was not run."
    )
    yield (
        "Not in the times: communication between ranks, permutation, activation, finalisation, the gate. Ranks were "
        "emulated one after the other on one GPU."
    )
    yield "No claim for other GPUs, other EP sizes, or serving: no request was served."
    yield (
        f"Layer: H = {numbers.count(setting.hidden)}, I = {numbers.count(setting.intermediate)}, FP8 in blocks of "
        f"128 x 128, random weights; {setting.experts // setting.ep_size} experts per rank, {rows:.3g} rows per expert "
        "on average at the main comparison."
    )
    yield (
        f"Branch on a card of {setting.sms} SMs: below {setting.swap_below} expected rows swapAB, else normal. The "
        f"shipped estimate (tokens) leaves swapAB at {numbers.count(setting.flips_at[SHIPPED])} tokens, the corrected "
        f"one at {numbers.count(setting.flips_at[CORRECTED])}."
    )


def _main(document: GroupedDocument) -> Iterator[str]:
    header = ["routing", "part", "shipped (µs)", "corrected (µs)", "change", "95 % interval"]
    rows = []
    for routing in document.routings:
        change = main_change(document, routing)
        for name, before_s, after_s in change.parts:
            moved = ratio(before_s, after_s)
            cells = [_timing(before_s), _timing(after_s), numbers.signed_share(moved.share), _interval(moved)]
            rows.append([escape(routing), name, *cells])
    yield table(header, rows, ["left", "left", "right", "right", "right", "right"])
    yield "Of the slowest rank under each estimate; routings are never averaged into one number."


def _ranks(document: GroupedDocument) -> Iterator[str]:
    tokens = document.setting.tokens
    header = ["routing", "rank", "rows", "experts hit", "fullest expert", "shipped (µs)", "corrected (µs)"]
    rows = []
    for each in document.ranks:
        if each.tokens != tokens:
            continue
        times = [
            next(row for row in rows_of(document, tokens, each.routing, source) if row.rank == each.rank)
            for source in (SHIPPED, CORRECTED)
        ]
        name = f"{each.rank} (idle)" if each.rows == 0 else str(each.rank)
        counts = [numbers.count(value) for value in (each.rows, each.experts_hit, each.most_rows)]
        rows.append([escape(each.routing), name, *counts, *(us(row.median_s) for row in times)])
    yield table(header, rows, ["left", "right", "right", "right", "right", "right", "right"])
    for routing in document.routings:
        mine = [each for each in document.ranks if each.tokens == tokens and each.routing == routing]
        most, mean = max(each.most_rows for each in mine), fmean(each.rows for each in mine)
        experts = document.setting.experts // document.setting.ep_size
        yield (
            f"{escape(routing)}: {mean / experts:.3g} rows per expert on average, {numbers.count(most)} at the most. "
            "The estimates do not know of the routing."
        )


def _scan(document: GroupedDocument) -> Iterator[str]:
    header = ["routing", "estimate", "branch", "tile FC1", "tile FC2", "FC1 (µs)", "FC2 (µs)", "both (µs)"]
    rows = []
    for routing in document.routings:
        for row in rows_of(document, document.setting.tokens, routing, SCAN):
            where = document.where(row.estimate)
            times = [_median_us(each) for each in (row.fc1_s, row.fc2_s, row.total_s)]
            rows.append([escape(routing), numbers.count(row.estimate), where.branch.value, *where.tiles, *times])
    yield f"The rank of the most rows at {numbers.count(document.setting.tokens)} tokens, under each estimate."
    yield table(header, rows, ["left", "right", "left", "right", "right", "right", "right", "right"])
    safest = safest_estimate(document)
    if safest is not None and document.verdict.is_pass:
        estimate, moved = safest
        changed = "; ".join(f"{_ratio_text(each)} under {escape(routing)} routing" for routing, each in moved.items())
        yield (
            f"The least harm under the routing that it suits least has an estimate of **{numbers.count(estimate)}**: "
            f"against the shipped one {changed}."
        )


def _sweep(document: GroupedDocument) -> Iterator[str]:
    header = ["routing", "tokens", "shipped", "corrected", "shipped (µs)", "corrected (µs)", "change", "95 % interval"]
    rows = [_swept(document, each) for routing in document.routings for each in changes(document, routing)]
    yield table(header, rows, ["left", "right", "left", "left", "right", "right", "right", "right"])
    yield f"Both stages of the slowest rank. Order: {escape(document.setting.order)}."


def _swept(document: GroupedDocument, change: Change) -> list[str]:
    moved = change.total
    return [
        escape(change.routing),
        numbers.count(change.tokens),
        _where(document, change.shipped),
        _where(document, change.corrected),
        us(change.shipped.median_s),
        us(change.corrected.median_s),
        numbers.signed_share(moved.share),
        _interval(moved),
    ]


def _where(document: GroupedDocument, row: TimeRow) -> str:
    return f"{numbers.count(row.estimate)}: {document.where(row.estimate).branch.value}"


def _results(document: GroupedDocument) -> Iterator[str]:
    yield f"Verdict: **{document.verdict.value}**{'' if document.verdict.is_pass else ', which is no pass'}."
    header = ["routing", "stage", "comparison", "inputs", "near", "largest error", "worst row"]
    rows = []
    for routing in document.routings:
        for stage in (1, 2):
            for comparison in Comparison:
                mine = [
                    row
                    for row in document.checks
                    if (row.routing, row.stage, row.comparison) == (routing, stage, comparison)
                ]
                near = numbers.of(sum(row.is_near for row in mine), len(mine))
                errors = [_largest([row.error for row in mine]), _largest([row.worst_row_error for row in mine])]
                cells = [numbers.count(len(mine)), near, *errors]
                rows.append([escape(routing), f"FC{stage}", comparison.value, *cells])
    yield table(header, rows, ["left", "left", "left", "right", "right", "right", "right"])
    equal = numbers.of(sum(row.is_equal for row in document.inputs), len(document.inputs))
    rounding = _largest([row.rounding_error for row in document.inputs])
    yield (
        "Errors are norms of differences over norms. The reference is float32 from the same weights and from "
        "activations rounded to FP8 as the format has it; near is a worst row of at most "
        f"{document.setting.most_apart:g}. Rounding the activations alone costs {rounding}. The same bits under both "
        f"estimates: {equal} inputs."
    )


def _conditions(document: GroupedDocument) -> Iterator[str]:
    setting = document.setting
    yield card_line(document.conditions)
    versions = ", ".join(f"{escape(name)} {escape(version)}" for name, version in setting.versions.items())
    yield (
        f"{setting.warm_ups} warm-ups, {setting.samples} samples between CUDA events, interleaved; L2 was flushed "
        "before each."
    )
    yield f"Versions: {versions}. Seed {setting.seed}."
    for row in document.seen:
        names = (
            ", ".join(map(code, row.kernels)) or "none: the profiler saw nothing, the branch follows from the source"
        )
        yield f"Kernels seen at an estimate of {numbers.count(row.estimate)}: {names}."


def _timing(times_s: Sequence[float]) -> str:
    middle_s, low_s, high_s = middle_of(times_s)
    if middle_s is None or low_s is None or high_s is None:
        return _median_us(times_s)
    return f"{us(middle_s)} ({us(low_s)} to {us(high_s)})"


def _median_us(times_s: Sequence[float]) -> str:
    middle_s = middle_of(times_s)[0]
    return numbers.NOT_MEASURED if middle_s is None else us(middle_s)


def _ratio_text(moved: Ratio) -> str:
    return f"{numbers.signed_share(moved.share)} ({_interval(moved)})"


def _interval(moved: Ratio) -> str:
    return numbers.signed_interval(None if moved.low is None or moved.high is None else (moved.low, moved.high))


def _largest(values: list[float | None]) -> str:
    if None in values:
        return "not finite"
    return f"{max((value for value in values if value is not None), default=0.0):.2g}"
