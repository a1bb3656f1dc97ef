"""The kernel against its limit, and its share of a decode step: about a minute on the GPU that will serve."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from reports.kernels import KernelsDocument
from slo_bench.moe.advising.bound import AdviceDocument, bounds_of, judged
from slo_bench.moe.advising.steps import CONTEXT, Step, StepBench, StepTimes, open_models
from slo_bench.moe.advising.truncated import Depth, depth_of, read_config
from slo_bench.moe.bench import Batch, BenchFacts, KernelBench, Layer
from slo_bench.moe.gpu_bench import GpuPlace, start_bench
from slo_bench.moe.kernels import DRAWS, Source, find_sources, timed_document
from slo_bench.moe.kernels_options import KernelsOptions
from slo_bench.moe.limits import weight_sets
from slo_bench.moe.routing import concentrated, draw, uniform
from slo_bench.moe.tune_files import searched_sizes
from traffic.errors import EngineError, UsageError

SIZES = (1, 16, 64, 128, 256)
"""Decode batches, in requests."""

_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found, and on what."""

    document: AdviceDocument
    facts: BenchFacts


async def measure(
    options: KernelsOptions,
    place: GpuPlace,
    say: Callable[[str], None],
    *,
    served: Sequence[int] = (),
    slope: float | None = None,
) -> Measured:
    """Measure on this GPU. served: batch sizes that the server runs, where known. Raises UsageError and EngineError."""
    shape, _ = options.layer()
    depth, no_steps = _depth(options)
    say("starting, on the GPU: the kernel" + ("" if depth is None else ", and two models of a few layers"))
    begun_s = time.monotonic()
    async with AsyncExitStack() as stack:
        bench, models = await _opened(place, stack, has_models=depth is not None)
        imported_s = time.monotonic()
        if models is not None and depth is not None:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slo-bench-")))
            await models.load(_model_folder(options), scratch, depth, SIZES)
        kernels, used = await _kernels(bench, options, say)
        source = used.name
        steps = [] if models is None else await _steps(models, say)
        took_s = time.monotonic() - imported_s
        facts = bench.facts
    names = {False: uniform(shape).name, True: concentrated(shape).name}
    by_name = {(each.step.tokens, names[each.step.is_concentrated]): each for each in steps}
    rows = bounds_of(kernels.times, source, by_name, depth)
    if not rows:
        reason = next((each.failure for each in kernels.times if each.failure is not None), "it has no times")
        raise UsageError(f"the kernel cannot be timed on {facts.device}: {reason}")
    searched = frozenset[int]() if used.path is None else searched_sizes(used.path)
    verdict, sentence = judged(rows, source, served, searched)
    document = AdviceDocument(
        source=source,
        verdict=verdict,
        sentence=sentence,
        bounds=rows,
        layers=None if depth is None else depth.layers,
        moe_layers=None if depth is None else depth.moe_layers,
        context_tokens=None if depth is None else CONTEXT,
        steps=[_step_row(*name, one) for name, one in by_name.items()],
        no_steps=no_steps,
        tpot_slope=slope,
        took_s=took_s,
        imports_s=imported_s - begun_s,
        kernels=kernels,
    )
    return Measured(document, facts)


def _step_row(tokens: int, routing: str, times: StepTimes) -> dict[str, int | str | list[float]]:
    by_layers = {f"layers_{count}_s": list(rounds_s) for count, rounds_s in times.by_layers.items()}
    return {"tokens": tokens, "routing": routing, **by_layers}


def kernel_options(layer: dict[str, object]) -> KernelsOptions:
    """Of the kernel's timing: both extremes of routing. layer: the options that name the layer."""
    return KernelsOptions.model_validate({**layer, "batch_size": [str(size) for size in SIZES], "rounds": _ROUNDS})


def place_for(python: Path | None, folder: Path) -> GpuPlace:
    """Processes under that interpreter, with their logs in the folder."""
    return GpuPlace(python or Path(sys.executable), folder)


def _model_folder(options: KernelsOptions) -> Path:
    return Path(options.model or "").expanduser()


def _depth(options: KernelsOptions) -> tuple[Depth | None, str | None]:
    """The model's depth, or why no steps are measured."""
    if options.model is None:
        return None, "that takes --model FOLDER"
    if options.tensor_parallel_size * options.data_parallel_size > 1 or options.enable_expert_parallel:
        return None, "a step of several ranks cannot be measured on one GPU"
    folder = _model_folder(options)
    if not folder.is_dir():
        return None, "that takes the model's whole folder, not its config.json"
    return depth_of(read_config(folder)), None


async def _opened(place: GpuPlace, stack: AsyncExitStack, *, has_models: bool) -> tuple[KernelBench, StepBench | None]:
    """All processes at once, each ended with the stack. Raises EngineError."""

    async def kernel() -> KernelBench:
        bench = await start_bench(place)
        stack.push_async_callback(bench.close)
        return bench

    async def both_models() -> StepBench | None:
        if not has_models:
            return None
        models = await open_models(place)
        stack.push_async_callback(models.close)
        return models

    try:
        async with asyncio.TaskGroup() as group:
            bench, models = group.create_task(kernel()), group.create_task(both_models())
    except* (UsageError, EngineError) as errors:
        raise errors.exceptions[0] from None
    return bench.result(), models.result()


async def _kernels(
    bench: KernelBench, options: KernelsOptions, say: Callable[[str], None]
) -> tuple[KernelsDocument, Source]:
    """Times with the heuristic and with what the server runs, and the latter."""
    shape, quantisation = options.layer()
    batches = [
        Batch(
            each.name, size, tuple(draw(each, shape, size, seed=options.seed, repeat=number) for number in range(DRAWS))
        )
        for size in options.sizes()
        for each in options.routings(shape)
    ]
    found = find_sources(options, bench.facts, say)
    layer = Layer(shape, quantisation, weight_sets=weight_sets(shape, quantisation, bench.facts.l2_bytes))
    named = found if len(found) == 1 else [found[0], found[-1]]
    return await timed_document(bench, layer, batches, named, options=options, say=say), found[-1]


async def _steps(models: StepBench, say: Callable[[str], None]) -> list[StepTimes]:
    say(f"decode steps of {', '.join(map(str, SIZES))} requests, from two models of a few layers")
    return await models.time([Step(size, is_same) for size in SIZES for is_same in (False, True)])
