"""How good and how cheap the search of `slo-bench tune` is, on a simulated kernel whose true times are known.

    python benchmarks/tuner.py --seeds 20

Each seed is another landscape of 1,248 configurations and another noise. For every batch size: whether the true time of
the choice is within 1 % of the best true time among all configurations that are truly no slower than the default under
any routing; whether a choice is truly slower than the default under some routing, and by how much. And the GPU's time
against that of timing every configuration as carefully as the finalists are, in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slo_bench.moe.bench import Batch, KernelBench, Layer
from slo_bench.moe.choice import CALLS, ROUNDS
from slo_bench.moe.routing import concentrated, draw, uniform
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.space import candidates, default_config
from slo_bench.moe.tune import Machines, Tuner
from slo_bench.moe.tune_search import Search, Space
from slo_bench.moe.tune_simulated import SimulatedBench, SimulatedCompiler, SimulatedKernel
from traffic.virtual_time import run_virtual

SHAPE, FP8 = MoeShape(128, 768, 2048, 8), Quantisation("fp8_w8a8", (128, 128))
SIZES = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
ROUTINGS = (uniform(SHAPE), concentrated(SHAPE))
WITHIN = 1.01


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one size. excess: true time over the best true time, less 1. slower: the worst true ratio to the default."""

    tokens: int
    excess: float
    slower: float
    possible: float


def space_of() -> Space:
    defaults = {size: default_config(size, SHAPE, FP8, (0, 24)) for size in SIZES}
    names = tuple(each.name for each in ROUTINGS)
    return Space(SHAPE, SIZES, names, defaults, {}, candidates(FP8, defaults.values()))


def batches_of(space: Space) -> dict[int, list[Batch]]:
    return {
        size: [Batch(routing.name, size, (draw(routing, SHAPE, size, seed=0),)) for routing in ROUTINGS]
        for size in space.sizes
    }


def one(
    seed: int, batches: Mapping[int, Sequence[Batch]], budget_s: float | None
) -> tuple[list[Outcome], float, float]:
    """Outcomes, the GPU's seconds, and the whole search's under virtual time."""
    space, kernel = space_of(), SimulatedKernel(SHAPE, FP8, seed)
    bench = SimulatedBench(kernel, seed=seed)

    async def open_bench() -> KernelBench:
        return bench

    async def open_compiler() -> SimulatedCompiler:
        return SimulatedCompiler()

    machines = Machines([open_bench], open_compiler, 14)
    tuned = run_virtual(Tuner(Search(space), machines, Layer(SHAPE, FP8), batches, budget_s=budget_s).run())
    outcomes = []
    for size, choice in tuned.choices.items():
        default = {batch.routing: kernel.true_s(space.defaults[size], batch) for batch in batches[size]}
        able = [
            config
            for config in space.configs
            if all(kernel.true_s(config, batch) <= default[batch.routing] for batch in batches[size])
        ]
        first = batches[size][0]
        best_s = min(kernel.true_s(config, first) for config in able)
        ratios = [kernel.true_s(choice.config, batch) / default[batch.routing] - 1 for batch in batches[size]]
        excess = kernel.true_s(choice.config, first) / best_s - 1
        outcomes.append(Outcome(size, excess, max(ratios), 1 - best_s / default[first.routing]))
    return outcomes, bench.gpu_s, tuned.spent_s


def exhaustive_s(batches: Mapping[int, Sequence[Batch]]) -> float:
    """The GPU's seconds for every configuration under every routing with the finalists' rounds, overheads left out."""
    kernel = SimulatedKernel(SHAPE, FP8)
    total_s = sum(
        kernel.true_s(config, batch) for each in batches.values() for batch in each for config in space_of().configs
    )
    return total_s * CALLS * ROUNDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=None, help="budget of each search")
    options = parser.parse_args()
    begun_s = time.perf_counter()
    batches = batches_of(space_of())
    every: list[Outcome] = []
    spent: list[tuple[float, float]] = []
    for seed in range(options.seeds):
        outcomes, gpu_s, whole_s = one(seed, batches, None if options.minutes is None else 60 * options.minutes)
        every += outcomes
        spent.append((gpu_s, whole_s))
    print("SIMULATED  tokens  within 1 %  mean excess  worst excess  possible gain  worst true change against default")
    for size in SIZES:
        mine = [each for each in every if each.tokens == size]
        good = sum(each.excess <= WITHIN - 1 for each in mine)
        mean = sum(each.excess for each in mine) / len(mine)
        gain = sum(each.possible for each in mine) / len(mine)
        print(
            f"{size:17}  {good:4} of {len(mine):3}  {mean:10.2%}  {max(each.excess for each in mine):11.2%}  "
            f"{gain:12.1%}  {max(each.slower for each in mine):+9.2%}"
        )
    good = sum(each.excess <= WITHIN - 1 for each in every)
    gpu_s, whole_s = (sum(each) / len(spent) for each in zip(*spent, strict=True))
    full_s = exhaustive_s(batches)
    print(f"{good} of {len(every)} choices within 1 % of the best ({good / len(every):.1%})")
    print(f"GPU: {gpu_s:.0f} s of a search of {whole_s:.0f} s")
    print(f"exhaustive: {full_s:.0f} s of the GPU, {full_s / gpu_s:.0f} times as much")
    print(f"{time.perf_counter() - begun_s:.0f} s")


if __name__ == "__main__":
    main()
