"""A GroupedBench that is a process on a GPU, under an interpreter that has torch (`gpu/`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slo_bench.moe.gpu_bench import GpuPlace, Worker
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
from slo_bench.moe.grouped.estimates import Tile
from slo_bench.moe.grouped.verdict import Comparison
from slo_bench.moe.shape import MoeShape
from traffic.errors import UsageError

PROGRAM = Path(__file__).with_name("gpu") / "__main__.py"

_BLOCK = 128


@dataclass(frozen=True, slots=True)
class GroupedLimits:
    """Seconds of silence before the process counts as stuck. build_s: of the longest source, on a busy machine."""

    facts_s: float = 400.0
    build_s: float = 1000.0
    compile_s: float = 300.0
    measure_s: float = 180.0


async def start_grouped(
    place: GpuPlace, flashinfer: Path | None, limits: GroupedLimits | None = None
) -> GpuGroupedBench:
    """A process whose card and versions are known. Its log is engine.log.

    Raises UsageError where nvcc, FlashInfer or a Hopper card is missing, EngineError where the process dies.
    """
    limits = limits or GroupedLimits()
    worker = await Worker.start(place, "engine", is_compiler=False)
    try:
        said = await worker.ask("facts", limits.facts_s, flashinfer=None if flashinfer is None else str(flashinfer))
        return GpuGroupedBench(worker, limits, GroupedFacts(**said))
    except BaseException:
        await worker.close()
        raise


def grouped_place(python: Path, log_folder: Path) -> GpuPlace:
    """Where the process of the grouped GEMM runs."""
    return replace(GpuPlace(python, log_folder), program=PROGRAM)


class GpuGroupedBench:
    """One GPU that emulates a rank at a time."""

    def __init__(self, worker: Worker, limits: GroupedLimits, facts: GroupedFacts) -> None:
        self._worker, self._limits, self._facts = worker, limits, facts

    @property
    def facts(self) -> GroupedFacts:
        """What answers."""
        return self._facts

    async def build(self, say: Callable[[str], None]) -> None:
        """The library, built where this host has none of these sources and this compiler."""
        say("building FlashInfer's grouped GEMM, unless this host has it: some minutes, once")
        said = await self._worker.ask("build", self._limits.build_s)
        say(f"{'built' if said['is_new'] else 'found'} {said['key']} in the cache folder")

    async def compile(self, stages: Sequence[Stage], estimates: Sequence[int]) -> Sequence[tuple[Tile, Tile]]:
        """Every kernel that these estimates lead to; FlashInfer's own tiles."""
        told = [(stage.n, stage.k, stage.groups) for stage in stages]
        said = await self._worker.ask("compile", self._limits.compile_s, stages=told, estimates=list(estimates))
        first, second = ([Tile(rows, columns) for rows, columns, _ in tiles] for tiles in said["tiles"])
        return list(zip(first, second, strict=True))

    async def prepare(self, shape: MoeShape, *, most_rows: int, seed: int) -> None:
        """A rank's memory. Raises UsageError for a layer that FlashInfer cannot take."""
        if shape.columns % _BLOCK or shape.hidden % _BLOCK:
            raise UsageError(
                f"FP8 blocks need N and K that {_BLOCK} divides, and they are {shape.columns}, {shape.hidden}"
            )
        await self._worker.ask(
            "prepare",
            self._limits.measure_s,
            hidden=shape.hidden,
            intermediate=shape.columns,
            groups=stages_of(shape)[0].groups,
            top_k=shape.top_k,
            most_rows=most_rows,
            seed=seed,
        )

    async def check(self, cases: Sequence[CheckCase]) -> Sequence[Checked]:
        """Each case's three comparisons, in the order given."""
        said = await self._worker.ask("check", self._limits.measure_s, cases=[asdict(case) for case in cases])
        return [_checked(each) for each in said["checked"]]

    async def time(self, cases: Sequence[GroupedCase], effort: Effort) -> Sequence[Samples]:
        """Interleaved samples, in the order given."""
        said = await self._worker.ask(
            "time", self._limits.measure_s, cases=[asdict(case) for case in cases], **asdict(effort)
        )
        return [Samples(tuple(fc1_s), tuple(fc2_s)) for fc1_s, fc2_s in said["times_s"]]

    async def close(self) -> None:
        """The process ends, its memory with it."""
        await self._worker.close()


def _checked(said: Mapping[str, Any]) -> Checked:
    stages = tuple(
        CheckedStage(
            stage["stage"],
            {
                Comparison.SHIPPED_REFERENCE: Difference(**stage["shipped_reference"]),
                Comparison.CORRECTED_REFERENCE: Difference(**stage["corrected_reference"]),
                Comparison.CORRECTED_SHIPPED: Difference(**stage["corrected_shipped"]),
            },
            is_equal=stage["is_equal"],
            rounding=Difference(**stage["rounding"]),
        )
        for stage in said["stages"]
    )
    return Checked(stages, {name: tuple(kernels) for name, kernels in said["seen"].items()})
