"""A kernel whose true times are known: a bench and compilers that take the time they would take, and nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slo_bench.moe.bench import Batch, BenchFacts, Case, Checked, Compiled, Effort, Layer, Timed
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.space import KernelConfig, candidates, default_config
from slo_bench.moe.tune import Machines
from slo_bench.moe.tune_search import Space
from traffic.errors import EngineError
from traffic.randomness import stream

SHAPE = MoeShape(128, 768, 2048, 8)
FP8 = Quantisation("fp8_w8a8", (128, 128))
ROUTINGS = ("uniform", "concentrated-8-1")
DEVICE = "NVIDIA H200"


def config_of(entry: Mapping[str, int]) -> KernelConfig:
    return KernelConfig(*entry.values())


def truth_s(config: KernelConfig, tokens: int, routing: str) -> float:
    """Small tiles suit few rows; a narrow tile suits one routing and not the other; nothing else matters much."""
    rows = tokens * 8 if routing == "uniform" else tokens * 64
    fit = abs(math.log2(config.block_m / min(256, max(16, rows / 32))))
    columns = abs(math.log2(config.block_n / (64 if routing == "uniform" else 128)))
    rest = 0.01 * abs(config.num_stages - 4) + 0.02 * (config.num_warps == 8) + 0.005 * math.log2(config.group_m)
    depth = 0.1 * (config.block_k == 64)
    return (30e-6 + 2e-7 * tokens) * (1 + 0.2 * fit + 0.08 * columns + rest + depth)


@dataclass
class MadeUp:
    """What a test may turn, and what it can see afterwards.

    noise: the largest share by which a replay is off. kills: configurations that end the process that runs them.
    """

    noise: float = 0.0
    truth: Callable[[KernelConfig, int, str], float] = truth_s
    kills: frozenset[KernelConfig] = frozenset()
    uncompilable: frozenset[KernelConfig] = frozenset()
    wrong: frozenset[KernelConfig] = frozenset()
    compile_s: float = 2.0
    gpu_s: float = 0.0
    replays: int = 0
    opened: int = 0
    is_open: int = 0
    cases: list[Case] = field(default_factory=list)

    def machines(self, *, compilers: int = 14, gpus: int = 1) -> Machines:
        return Machines([self.open_bench] * gpus, self.open_compiler, compilers)

    async def open_bench(self) -> MadeUpBench:
        self.opened += 1
        self.is_open += 1
        return MadeUpBench(self, self.opened)

    async def open_compiler(self) -> MadeUpCompiler:
        self.is_open += 1
        return MadeUpCompiler(self)


class MadeUpBench:
    def __init__(self, made_up: MadeUp, number: int) -> None:
        self.made_up = made_up
        self.facts = BenchFacts(DEVICE, 232_448, 16, {"vllm": "0.24.0", "triton": "3.6.0"}, is_simulated=True)
        self.known: set[tuple[int, str]] = set()
        self.random = stream("made-up-kernel", number)

    async def prepare(self, _layer: Layer, batches: Sequence[Batch]) -> None:
        self.known = {batch.name for batch in batches}

    async def check(self, cases: Sequence[Case]) -> Sequence[Checked]:
        return [Checked(case, 0.5 if config_of(case.entry) in self.made_up.wrong else 0.01) for case in cases]

    async def time(self, cases: Sequence[Case], effort: Effort) -> Sequence[Timed]:
        before_s = self.made_up.gpu_s
        timed = [self._timed(case, effort) for case in cases]
        await asyncio.sleep(self.made_up.gpu_s - before_s)
        if any(config_of(case.entry) in self.made_up.kills for case in cases):
            raise EngineError("the bench ended with code -11")
        return timed

    def _timed(self, case: Case, effort: Effort) -> Timed:
        assert case.batch in self.known
        self.made_up.cases.append(case)
        true_s = self.made_up.truth(config_of(case.entry), *case.batch)
        self.made_up.gpu_s += 0.002 + true_s
        if effort.most_s is not None and true_s > effort.most_s:
            return Timed(case, ())
        self.made_up.replays += effort.rounds
        self.made_up.gpu_s += true_s * (effort.rounds + 1) * effort.calls
        off = self.random.uniform(-self.made_up.noise, self.made_up.noise, effort.rounds)
        return Timed(case, tuple(true_s * (1 + float(each)) for each in off))

    async def close(self) -> None:
        self.made_up.is_open -= 1


class MadeUpCompiler:
    def __init__(self, made_up: MadeUp) -> None:
        self.made_up = made_up

    async def compile(self, entry: Mapping[str, int]) -> Compiled:
        await asyncio.sleep(self.made_up.compile_s)
        failure = "out of shared memory" if config_of(entry) in self.made_up.uncompilable else None
        return Compiled(entry, self.made_up.compile_s, failure)

    async def close(self) -> None:
        self.made_up.is_open -= 1


def space(
    sizes: Sequence[int] = (16, 256),
    *,
    configs: Sequence[KernelConfig] | None = None,
    routings: tuple[str, ...] = ROUTINGS,
    shipped: Mapping[int, KernelConfig] | None = None,
) -> Space:
    defaults = {size: default_config(size, SHAPE, FP8, (0, 24)) for size in sizes}
    tried = (
        candidates(FP8, defaults.values()) if configs is None else tuple(dict.fromkeys([*defaults.values(), *configs]))
    )
    return Space(SHAPE, tuple(sizes), routings, defaults, shipped or {}, tried)


def batches(of: Space) -> dict[int, list[Batch]]:
    return {size: [Batch(routing, size, ()) for routing in of.routings] for size in of.sizes}


def best_choice(of: Space, tokens: int, truth: Callable[[KernelConfig, int, str], float] = truth_s) -> float:
    """The shortest true time under the first routing among all that are no slower than the default under any."""
    base = {routing: truth(of.defaults[tokens], tokens, routing) for routing in of.routings}
    able = (config for config in of.configs if all(truth(config, tokens, each) <= base[each] for each in of.routings))
    return min(truth(config, tokens, of.routings[0]) for config in able)
