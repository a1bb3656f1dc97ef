"""`slo-bench kernels --backend flashinfer-grouped-gemm` from its options to grouped.json, a note and a figure."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from reports.figure_style import figure_bytes
from reports.run_directory import to_json
from slo_bench.moe.bench import BenchFacts
from slo_bench.moe.grouped.bench import CheckCase, Checked, GroupedBench, GroupedCase, Samples, stages_of
from slo_bench.moe.grouped.document import GROUPED_NAME, GroupedDocument, Source
from slo_bench.moe.grouped.export import export_script
from slo_bench.moe.grouped.figure import figure
from slo_bench.moe.grouped.gpu_bench import grouped_place, start_grouped
from slo_bench.moe.grouped.options import Plan, plan_of
from slo_bench.moe.grouped.ranks import RankRows, fullest, ranks_of
from slo_bench.moe.grouped.report import note, table_lines
from slo_bench.moe.grouped.rows import Found, TimedCase, grouped_document
from slo_bench.moe.grouped.simulated import SimulatedGroupedBench
from slo_bench.moe.kernels import conditions_of, power_source
from slo_bench.moe.kernels_options import KernelsOptions
from slo_bench.power.measuring import measuring
from slo_bench.store import RunStore, free_name, write_text, write_whole

NOTE_NAME, FIGURE_NAME = "grouped.md", "grouped.svg"

_USUAL_SMS = 132
"""Of H100 SXM and H200: what a script is written for before a card is known."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one call under one routing, as ranks get them."""

    tokens: int
    routing: str
    ranks: tuple[RankRows, ...]


async def grouped(options: KernelsOptions) -> int:
    """Compare, time, write; 0, or 1 where the results are no pass. Raises UsageError and EngineError in one line."""
    mark = "[SIMULATED] " if options.simulated else ""

    def say(line: str) -> None:
        sys.stdout.write(f"{mark}{line}\n")
        sys.stdout.flush()

    if options.export_script is not None:
        write_text(options.export_script, export_script(plan_of(options, _USUAL_SMS)))
        say(f"wrote {options.export_script}; --dry-run says what it would do")
        return 0
    directory = options.runs_dir / (options.label or free_name(options.runs_dir, "kernels"))
    RunStore(directory).check_unused()
    plan_of(options, _USUAL_SMS)  # a mistake is told before a process starts
    async with _opened(options, directory) as bench:
        plan = plan_of(options, bench.facts.sms)
        document = await measured(bench, plan, say)
    write_text(directory / GROUPED_NAME, to_json(document))
    picture = figure_bytes(figure(document), "svg")
    write_whole(directory / FIGURE_NAME, lambda temporary: temporary.write_bytes(picture))
    write_text(directory / NOTE_NAME, note(document, FIGURE_NAME))
    for line in table_lines(document):
        say(line)
    say(f"wrote {directory / NOTE_NAME}, its figure and {GROUPED_NAME}")
    return 0 if document.verdict.is_pass else 1


async def measured(bench: GroupedBench, plan: Plan, say: Callable[[str], None]) -> GroupedDocument:
    """Build, compile, compare, time."""
    batches = list(_batches(plan))
    versions = ", ".join(f"{name} {version}" for name, version in bench.facts.versions.items())
    say(f"{bench.facts.device}, {bench.facts.sms} SMs, {versions}")
    await bench.build(say)
    tiles = await bench.compile(stages_of(plan.shape), plan.all_estimates)
    most_rows = plan.sweep[-1] * plan.shape.top_k
    await bench.prepare(plan.shape, most_rows=most_rows, seed=plan.effort.seed)
    mains = [batch for batch in batches if batch.tokens == plan.tokens]
    checked = await _checked(bench, plan, mains)
    say(f"compared {len(checked)} inputs; timing {len(plan.sweep)} token counts, ascending")
    async with measuring(power_source(_power_facts(bench))) as power:
        start_s = time.monotonic()
        timed = [each for batch in batches for each in await _swept(bench, plan, batch)]
        for batch in mains:
            timed += await _scanned(bench, plan, batch)
        conditions = conditions_of(power, start_s, time.monotonic())
    found = Found([(each.tokens, each.routing, each.ranks) for each in batches], tiles, checked, timed, conditions)
    return grouped_document(plan, bench.facts, found)


def _batches(plan: Plan) -> Iterator[Batch]:
    """Ascending in tokens, the routings of one count side by side."""
    for tokens in plan.sweep:
        for routing in plan.routings:
            yield Batch(tokens, routing.name, ranks_of(plan.ids(routing, tokens), plan.shape))


async def _checked(bench: GroupedBench, plan: Plan, batches: list[Batch]) -> list[tuple[str, RankRows, Checked]]:
    """Every rank that has rows, under every routing."""
    inputs = [(batch.routing, each) for batch in batches for each in batch.ranks if each.rows]
    estimates = plan.estimates(plan.tokens)
    cases = [CheckCase(plan.tokens, each.counts, estimates["shipped"], estimates["corrected"]) for _, each in inputs]
    answers = await bench.check(cases)
    return [(routing, each, answer) for (routing, each), answer in zip(inputs, answers, strict=True)]


async def _swept(bench: GroupedBench, plan: Plan, batch: Batch) -> list[TimedCase]:
    """Every rank under both estimates, interleaved; idle ranks too."""
    named = [
        (each.rank, source, GroupedCase(batch.tokens, each.counts, estimate))
        for each in batch.ranks
        for source, estimate in plan.estimates(batch.tokens).items()
    ]
    return await _timed(bench, plan, batch, named)


async def _scanned(bench: GroupedBench, plan: Plan, batch: Batch) -> list[TimedCase]:
    """The rank of the most rows under every estimate, interleaved."""
    rank = fullest(batch.ranks)
    named: list[tuple[int, Source, GroupedCase]] = [
        (rank.rank, "scan", GroupedCase(batch.tokens, rank.counts, estimate)) for estimate in plan.scan
    ]
    return await _timed(bench, plan, batch, named)


async def _timed(
    bench: GroupedBench, plan: Plan, batch: Batch, named: Sequence[tuple[int, Source, GroupedCase]]
) -> list[TimedCase]:
    samples: list[Samples] = list(await bench.time([case for _, _, case in named], plan.effort))
    return [
        TimedCase(batch.routing, rank, source, case, each)
        for (rank, source, case), each in zip(named, samples, strict=True)
    ]


def _power_facts(bench: GroupedBench) -> BenchFacts:
    facts = bench.facts
    return BenchFacts(facts.device, 0, facts.cores, facts.versions, is_simulated=facts.is_simulated, uuid=facts.uuid)


@asynccontextmanager
async def _opened(options: KernelsOptions, directory: Path) -> AsyncIterator[GroupedBench]:
    """A bench for as long as it is needed."""
    if options.simulated:
        bench: GroupedBench = SimulatedGroupedBench(options.seed)
    else:
        place = grouped_place(options.vllm_python or Path(sys.executable), directory)
        bench = await start_grouped(place, options.flashinfer)
    try:
        yield bench
    finally:
        await bench.close()
