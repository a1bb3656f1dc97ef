"""`slo-bench kernels`: how long the fused MoE takes under each configuration, and how far that is from the limit.

Every configuration is checked against float32 before it is timed; the times are interleaved, with the card watched.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from reports.kernels import KERNELS_NAME, KernelConditions, KernelsDocument
from reports.run_directory import to_json
from slo_bench.moe.bench import Batch, BenchFacts, Case, Checked, Effort, KernelBench, Layer, Timed
from slo_bench.moe.config_files import file_name, parse_version, read_config
from slo_bench.moe.gpu_bench import GpuPlace, start_bench
from slo_bench.moe.kernel_rows import kernels_document, table_lines, wrong_reason
from slo_bench.moe.kernels_options import KernelsOptions
from slo_bench.moe.limits import weight_sets
from slo_bench.moe.routing import draw
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.space import default_config
from slo_bench.moe.tune_simulated import SimulatedBench, SimulatedKernel
from slo_bench.power.choice import Choice
from slo_bench.power.measuring import SIMULATED, Power, PowerSource, measuring
from slo_bench.power.telemetry import READER
from slo_bench.store import RunStore, free_name, write_text
from traffic.errors import UsageError

HEURISTIC, SHIPPED, TUNED = "heuristic", "shipped", "tuned"

DRAWS = 4
"""Draws of a routing over which the calls of a graph go round, as over the copies of the weights."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where configurations come from: the heuristic of vLLM, or a file; entries: batch size -> launch options."""

    name: str
    path: Path | None
    entries: dict[int, dict[str, int]]


async def kernels(options: KernelsOptions) -> int:
    """Time, write kernels.json, print the table; 0. Raises UsageError and EngineError in one line."""
    shape, quantisation = options.layer()
    routings = options.routings(shape)
    mark = "[SIMULATED] " if options.simulated else ""

    def say(line: str) -> None:
        sys.stdout.write(f"{mark}{line}\n")
        sys.stdout.flush()

    directory = options.runs_dir / (options.label or free_name(options.runs_dir, "kernels"))
    RunStore(directory).check_unused()
    batches = [
        Batch(each.name, size, tuple(draw(each, shape, size, seed=options.seed, repeat=n) for n in range(DRAWS)))
        for size in options.sizes()
        for each in routings
    ]
    async with _opened(options, shape, quantisation, directory) as bench:
        sources = find_sources(options, bench.facts, say)
        layer = Layer(shape, quantisation, weight_sets=weight_sets(shape, quantisation, bench.facts.l2_bytes))
        document = await timed_document(bench, layer, batches, sources, options=options, say=say)
    write_text(directory / KERNELS_NAME, to_json(document))
    for line in table_lines(document):
        say(line)
    say(f"wrote {directory / KERNELS_NAME}")
    return 0


async def timed_document(
    bench: KernelBench,
    layer: Layer,
    batches: Sequence[Batch],
    sources: Sequence[Source],
    *,
    options: KernelsOptions,
    say: Callable[[str], None],
) -> KernelsDocument:
    """Check every configuration, time those that are right, and tell what came out."""
    named = [(source.name, Case(source.entries[batch.tokens], batch.name)) for batch in batches for source in sources]
    say(
        f"{len(named)} cases ({len(options.sizes())} batch sizes x {len(batches) // len(options.sizes())} routings x "
        f"{' and '.join(each.name for each in sources)}) on {bench.facts.device}; what is not in Triton's cache yet is "
        "compiled first"
    )
    await bench.prepare(layer, batches)
    checked = await bench.check([case for _, case in named])
    wrong = wrong_reasons([name for name, _ in named], checked)
    right = [number for number, reason in enumerate(wrong) if reason is None]
    async with measuring(power_source(bench.facts)) as power:
        start_s = time.monotonic()
        effort = Effort(options.rounds, options.calls, is_graph=True)
        made = await bench.time([named[number][1] for number in right], effort) if right else ()
        conditions = conditions_of(power, start_s, time.monotonic())
    timed: list[Timed] = [Timed(case, (), reason) for (_, case), reason in zip(named, wrong, strict=True)]
    for number, each in zip(right, made, strict=True):
        timed[number] = each
    files = {each.name: "vLLM's default" if each.path is None else str(each.path) for each in sources}
    return kernels_document(
        layer,
        batches,
        bench.facts,
        [(name, one, other) for (name, _), one, other in zip(named, checked, timed, strict=True)],
        files=files,
        effort=effort,
        seed=options.seed,
        conditions=conditions,
    )


def wrong_reasons(names: Sequence[str], checked: Sequence[Checked]) -> list[str | None]:
    """Why each case is not timed; None where it is right."""
    heuristic = {each.case.batch: each for name, each in zip(names, checked, strict=True) if name == HEURISTIC}
    return [wrong_reason(each, heuristic[each.case.batch]) for each in checked]


def find_sources(options: KernelsOptions, facts: BenchFacts, say: Callable[[str], None]) -> list[Source]:
    """The heuristic, the file that vLLM ships and a tuned one, as far as they are there; the rest is said.

    Raises UsageError where a folder that was named has no such file.
    """
    shape, quantisation = options.layer()
    version = parse_version(facts.versions["vllm"])
    sizes = options.sizes()
    defaults = {size: default_config(size, shape, quantisation, version).entry() for size in sizes}
    found = [Source(HEURISTIC, None, defaults)]
    name = file_name(shape, quantisation, facts.device, version)
    for source, folder in ((SHIPPED, facts.config_folder), (TUNED, options.tuned_folder())):
        if folder is None:
            continue
        if (folder / name).is_file():
            config = read_config(folder / name)
            found.append(Source(source, folder / name, {size: _entry(config.nearest(size)) for size in sizes}))
        elif folder == options.folder:
            raise UsageError(f"{folder} has no {name}: tune this layer on this GPU, or leave --folder out")
        else:
            say(f"no {source} file: {folder} has no {name}")
    return found


def _entry(entry: object) -> dict[str, int]:
    if not isinstance(entry, dict) or not all(type(value) is int for value in entry.values()):
        raise UsageError(f"an entry of the MoE file has options that are no whole numbers: {entry}")
    return entry


def power_source(facts: BenchFacts) -> PowerSource:
    """Where this GPU's clocks and heat are read, or why nowhere."""
    if facts.is_simulated:
        return PowerSource(reason=SIMULATED)
    if facts.uuid is None:
        return PowerSource(reason="the GPU's UUID is not known")
    return PowerSource((*READER, *Choice(named=(facts.uuid,)).arguments()), idle_s=0.0)


def conditions_of(power: Power, start_s: float, end_s: float) -> KernelConditions:
    """The card between two moments of CLOCK_MONOTONIC."""
    if power.not_measured is not None:
        return KernelConditions(not_measured=power.not_measured)
    span = power.between(start_s, end_s)
    if span.sm_clock_median_mhz is None:
        return KernelConditions(not_measured="the timing was over before the driver was read")
    return KernelConditions(
        sm_clock_median_mhz=span.sm_clock_median_mhz,
        temperature_max_c=span.temperature_max_c,
        mean_w=span.mean_w,
        held_down=None if span.held_down is None else dict(span.held_down),
    )


@asynccontextmanager
async def _opened(
    options: KernelsOptions, shape: MoeShape, quantisation: Quantisation, directory: Path
) -> AsyncIterator[KernelBench]:
    """A bench for as long as it is needed. Its log is the run's engine.log."""
    if options.simulated:
        bench: KernelBench = SimulatedBench(SimulatedKernel(shape, quantisation), seed=options.seed)
    else:
        bench = await start_bench(GpuPlace(options.vllm_python or Path(sys.executable), directory), "engine")
    try:
        yield bench
    finally:
        await bench.close()
