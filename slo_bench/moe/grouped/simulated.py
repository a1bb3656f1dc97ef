"""A plain model of the grouped GEMM behind the port of a bench: everything runs without a GPU, and says SIMULATED.

A stage takes as long as its memory or its waves of tiles, whichever is longer, and a launch. Its constants are those of
no card; the branch and the tile are FlashInfer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from slo_bench.moe.grouped.bench import (
    CheckCase,
    Checked,
    CheckedStage,
    Difference,
    Effort,
    GroupedCase,
    GroupedFacts,
    Samples,
    Stage,
    stages_of,
)
from slo_bench.moe.grouped.estimates import CORRECTED, SHIPPED, Branch, Tile, branch, tile
from slo_bench.moe.grouped.verdict import Comparison
from slo_bench.moe.shape import MoeShape
from traffic.errors import UsageError
from traffic.randomness import stream

DEVICE = "SIMULATED GPU"

_BANDWIDTH_BPS, _SM_OPERATIONS_PS, _LAUNCHES_S = 4.0e12, 3.8e12, 8e-6
_NOISE = 0.005
_NEAR = Difference(0.001, 0.002)


class SimulatedGroupedBench:
    """Every result is right; times are off by a little."""

    def __init__(self, seed: int, sms: int = 132) -> None:
        self.facts = GroupedFacts(DEVICE, sms, 16, {"flashinfer": "simulated"}, is_simulated=True)
        self._random = stream("simulated-grouped", seed)
        self._stages: tuple[Stage, Stage] | None = None

    async def build(self, say: Callable[[str], None]) -> None:
        """Nothing to build."""

    async def compile(self, stages: Sequence[Stage], estimates: Sequence[int]) -> Sequence[tuple[Tile, Tile]]:
        """The tiles by our own account of FlashInfer's rule."""
        sms = self.facts.sms
        first, second = ([tile(each, stage.n, stage.groups, sms) for each in estimates] for stage in stages)
        return list(zip(first, second, strict=True))

    async def prepare(self, shape: MoeShape, *, most_rows: int, seed: int) -> None:  # noqa: ARG002 - as a GPU's bench
        """Remember the layer."""
        self._stages = stages_of(shape)

    async def check(self, cases: Sequence[CheckCase]) -> Sequence[Checked]:
        """Every result is right."""
        near = dict.fromkeys(Comparison, _NEAR)
        stages = tuple(CheckedStage(number, near, is_equal=False, rounding=Difference(0.02, 0.03)) for number in (1, 2))
        return [Checked(stages, {SHIPPED: (), CORRECTED: ()}) for _ in cases]

    async def time(self, cases: Sequence[GroupedCase], effort: Effort) -> Sequence[Samples]:
        """Takes as long as the calls would."""
        if self._stages is None:
            raise UsageError("the simulated rank is not prepared")
        made = []
        for case in cases:
            true_s = [self.true_s(stage, case) for stage in self._stages]
            await asyncio.sleep(sum(true_s) * (effort.warm_ups + effort.samples))
            fc1, fc2 = (each * np.exp(self._random.normal(0, _NOISE, effort.samples)) for each in true_s)
            made.append(Samples(tuple(map(float, fc1)), tuple(map(float, fc2))))
        return made

    def true_s(self, stage: Stage, case: GroupedCase) -> float:
        """Seconds of a stage."""
        sms = self.facts.sms
        shape = tile(case.estimate, stage.n, stage.groups, sms)
        is_swapped = branch(case.estimate, sms) is Branch.SWAPPED
        deep, wide = (shape.columns, shape.rows) if is_swapped else (shape.rows, shape.columns)
        blocks = sum(-(-count // deep) for count in case.counts) * -(-stage.n // wide)
        hit = sum(1 for count in case.counts if count)
        again = sum(max(0, -(-count // deep) - 1) for count in case.counts)  # weights read again, mostly from a cache
        memory_s = stage.n * stage.k * (hit + 0.1 * again) / _BANDWIDTH_BPS
        waves_s = -(-blocks // sms) * 2 * deep * wide * stage.k / _SM_OPERATIONS_PS
        return max(memory_s, waves_s) + _LAUNCHES_S

    async def close(self) -> None:
        """Nothing to end."""
