"""Whether `slo-bench tune` chose as well as timing every configuration would have, on a GPU.

    python benchmarks/exhaustive.py FOLDER --batch-size 1 64 128 --output exhaustive.json

FOLDER holds the tuned file and what the search left beside it. What is not in Triton's cache yet is compiled first, on
all cores but two. For each batch size every configuration of the space is timed once under the routing that decides;
the fastest are timed again under both routings, and those that are slower than vLLM's default under the other one are
left out, as a choice of the tuner must be. The ten best that remain, the choice and the default are then timed
interleaved, 40 rounds. What counts is the choice's median over the best median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from slo_bench.moe.bench import Batch, Case, Effort, KernelBench, Layer
from slo_bench.moe.choice import MARGIN_SHARE, ratio
from slo_bench.moe.config_files import file_name, parse_version, read_config
from slo_bench.moe.gpu_bench import GpuPlace, start_bench, start_compiler
from slo_bench.moe.limits import weight_sets
from slo_bench.moe.routing import concentrated, draw, uniform
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.space import KernelConfig, candidates, default_config
from slo_bench.moe.tune_files import shipped_entry
from slo_bench.moe.tune_simulated import SimulatedBench, SimulatedKernel
from slo_bench.store import write_text
from traffic.virtual_time import run_virtual

SHAPE, FP8 = MoeShape(128, 768, 2048, 8), Quantisation("fp8_w8a8", (128, 128))
EVEN, HOT = uniform(SHAPE), concentrated(SHAPE)
DRAWS = 4
WAVE = 90
BEST = 10
ROUNDS = 40
HOPELESS = 4.0


@dataclass(frozen=True, slots=True)
class Found:
    """Of one size; times in seconds per call under the routing that decides, medians of the last, interleaved timing.

    excess_share: the choice over the best, less 1, with its 95 % interval from the rounds. free_best: the fastest of
    all in its first look, whatever it does under the other routing.
    """

    tokens: int
    timed: int
    failed: int
    choice: dict[str, int]
    choice_s: float
    best: dict[str, int]
    best_s: float
    excess_share: float
    interval_share: tuple[float | None, float | None]
    default_s: float
    choice_hot_s: float
    default_hot_s: float
    ten_s: list[float]
    free_best: dict[str, int]
    free_best_look_s: float
    took_s: float


async def one_size(bench: KernelBench, tokens: int, configs: Sequence[KernelConfig], choice: KernelConfig) -> Found:
    """Everything once, the fastest with care, the ten best and the choice in turn."""
    begun_s = time.monotonic()
    version = parse_version(bench.facts.versions["vllm"])
    default = default_config(tokens, SHAPE, FP8, version).clamped(FP8)
    even, hot = (EVEN.name, HOT.name)

    async def times(
        wanted: Sequence[KernelConfig], routings: Sequence[str], effort: Effort
    ) -> dict[str, list[list[float]]]:
        cases = [Case(each.entry(), (tokens, routing)) for routing in routings for each in wanted]
        timed = [list(each.times_s) for each in await bench.time(cases, effort)]
        return {name: timed[number * len(wanted) : (number + 1) * len(wanted)] for number, name in enumerate(routings)}

    (reference,) = (await times([default], [even], Effort(5, 10, is_graph=True)))[even]
    looks = await times(configs, [even], Effort(1, 4, is_graph=True, most_s=HOPELESS * median(reference)))
    seen = sorted((look[0], number) for number, look in enumerate(looks[even]) if look)
    ranked = [configs[number] for _, number in seen]
    allowed: list[tuple[float, KernelConfig]] = []
    for start in range(0, len(ranked), WAVE):
        if len(allowed) >= BEST:
            break
        wave = [default, *(each for each in ranked[start : start + WAVE] if each != default)]
        again = await times(wave, (even, hot), Effort(6, 10, is_graph=True))
        limit_s = median(again[hot][0]) * (1 + MARGIN_SHARE)
        allowed += [
            (median(one), config)
            for config, one, other in zip(wave, again[even], again[hot], strict=True)
            if one and other and median(other) <= limit_s
        ]
    ten = [config for _, config in sorted(allowed, key=lambda pair: pair[0])][:BEST]
    last = list(dict.fromkeys([choice, default, *ten]))
    final = await times(last, (even, hot), Effort(ROUNDS, 10, is_graph=True))
    medians = {config: median(one) for config, one in zip(last, final[even], strict=True)}
    best = min(ten, key=medians.__getitem__)
    over = ratio(tuple(final[even][last.index(best)]), tuple(final[even][0]))
    return Found(
        tokens=tokens,
        timed=len(configs),
        failed=sum(not look for look in looks[even]),
        choice=choice.entry(),
        choice_s=medians[choice],
        best=best.entry(),
        best_s=medians[best],
        excess_share=medians[choice] / medians[best] - 1,
        interval_share=(over.low, over.high),
        default_s=medians[default],
        choice_hot_s=median(final[hot][0]),
        default_hot_s=median(final[hot][last.index(default)]),
        ten_s=[medians[config] for config in ten],
        free_best=ranked[0].entry(),
        free_best_look_s=seen[0][0],
        took_s=time.monotonic() - begun_s,
    )


async def compile_all(place: GpuPlace, configs: Sequence[KernelConfig], sizes: Sequence[int]) -> None:
    """Everything into the cache: one after another in the process that times, it would take most of an hour."""
    left = sorted(configs, key=lambda each: each.accumulators)  # the longest are taken first
    batches = [Batch(EVEN.name, size, (draw(EVEN, SHAPE, size, seed=0),)) for size in sizes]

    async def work(number: int) -> None:
        compiler = await start_compiler(place, Layer(SHAPE, FP8), batches, f"compiler-{number}")
        try:
            while left:
                await compiler.compile(left.pop().entry())
        finally:
            await compiler.close()

    async with asyncio.TaskGroup() as group:
        for number in range(max(1, len(os.sched_getaffinity(0)) - 2)):
            group.create_task(work(number))


async def measure(folder: Path, sizes: Sequence[int], place: GpuPlace | None, output: Path) -> None:
    """Each size in turn; what is done is written down before the next begins. place: None for the simulated kernel."""
    bench: KernelBench
    if place is None:
        bench = SimulatedBench(SimulatedKernel(SHAPE, FP8), seed=1)
    else:
        bench = await start_bench(place, "exhaustive")
    try:
        facts = bench.facts
        version = parse_version(facts.versions["vllm"])
        name = file_name(SHAPE, FP8, facts.device, version)
        tuned = read_config(folder / name)
        defaults = [default_config(size, SHAPE, FP8, version).clamped(FP8) for size in sizes]
        entries = {size: shipped_entry(tuned, size) for size in sizes}
        choices = {size: each.clamped(FP8) for size, each in entries.items() if each is not None}
        configs = candidates(FP8, [*defaults, *choices.values()], shared_bytes=facts.shared_bytes)
        if place is not None:
            begun_s = time.monotonic()
            await compile_all(place, configs, sizes)
            took_s = time.monotonic() - begun_s
            print(f"{len(configs)} configurations are in the cache after {took_s:.0f} s", flush=True)
        found: list[Found] = []
        for size in sizes:
            # Each size alone: fewer batches leave more memory to copies of the weights.
            batches = [
                Batch(each.name, size, tuple(draw(each, SHAPE, size, seed=0, repeat=number) for number in range(DRAWS)))
                for each in (EVEN, HOT)
            ]
            await bench.prepare(Layer(SHAPE, FP8, weight_sets=weight_sets(SHAPE, FP8, facts.l2_bytes)), batches)
            one = await one_size(bench, size, configs, choices[size])
            found.append(one)
            write_text(output, json.dumps([asdict(each) for each in found], indent=1) + "\n")
            low, high = one.interval_share
            interval = "" if low is None or high is None else f" ({low:+.2%} to {high:+.2%})"
            print(
                f"{size:>5} tokens: chosen {one.choice_s * 1e6:.2f} us, best of {one.timed} {one.best_s * 1e6:.2f} us: "
                f"{one.excess_share:+.2%}{interval}; default {one.default_s * 1e6:.2f} us; {one.took_s:.0f} s",
                flush=True,
            )
    finally:
        await bench.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 64, 128])
    parser.add_argument("--vllm-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--output", type=Path, default=Path("exhaustive.json"))
    parser.add_argument("--simulated", action="store_true", help="times from a model of the kernel")
    options = parser.parse_args()
    place = None if options.simulated else GpuPlace(options.vllm_python, options.output.resolve().parent)
    run = run_virtual if options.simulated else asyncio.run
    run(measure(options.folder, options.batch_size, place, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
