"""What times the grouped GEMM: the port between the command and a process on a GPU, or a plain model of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slo_bench.moe.grouped.estimates import Tile
from slo_bench.moe.grouped.verdict import Comparison
from slo_bench.moe.shape import MoeShape


@dataclass(frozen=True, slots=True)
class GroupedFacts:
    """What answers. sms: streaming multiprocessors. versions: of flashinfer, nvcc, torch."""

    device: str
    sms: int
    cores: int
    versions: Mapping[str, str]
    uuid: str | None = None
    is_simulated: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """One matrix product of a rank: n columns of its result, k of its rows, and so many experts."""

    n: int
    k: int
    groups: int


def stages_of(shape: MoeShape) -> tuple[Stage, Stage]:
    """FC1, hidden to twice the intermediate columns, and FC2, back to hidden, on one rank."""
    groups = shape.experts // shape.ep_size
    return Stage(2 * shape.columns, shape.hidden, groups), Stage(shape.hidden, shape.columns, groups)


@dataclass(frozen=True, slots=True)
class GroupedCase:
    """Rows of a rank's experts under one estimate. tokens: of the whole call, which size the workspace."""

    tokens: int
    counts: tuple[int, ...]
    estimate: int


@dataclass(frozen=True, slots=True)
class CheckCase:
    """One input under both estimates."""

    tokens: int
    counts: tuple[int, ...]
    shipped: int
    corrected: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Norm of the difference over norm of the base, of everything and of the worst row; None where not finite."""

    error: float | None
    worst_row_error: float | None


@dataclass(frozen=True, slots=True)
class CheckedStage:
    """One stage. is_equal: both estimates gave the same bits. rounding: what FP8 activations cost by themselves."""

    stage: int
    differences: Mapping[Comparison, Difference]
    is_equal: bool
    rounding: Difference


@dataclass(frozen=True, slots=True)
class Checked:
    """Both stages of a case. seen: names of the kernels that ran, by estimate, as a profiler saw them."""

    stages: tuple[CheckedStage, ...]
    seen: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds of both stages, one value per sample."""

    fc1_s: tuple[float, ...]
    fc2_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Effort:
    """How carefully: rounds that are not counted, rounds that are, and what their orders are drawn from."""

    warm_ups: int
    samples: int
    seed: int


class GroupedBench(Protocol):
    """One GPU that emulates a rank at a time. Answers have deadlines; a process that dies is an EngineError."""

    @property
    def facts(self) -> GroupedFacts:
        """What answers."""
        ...

    async def build(self, say: Callable[[str], None]) -> None:
        """The library; once per host."""
        ...

    async def compile(self, stages: Sequence[Stage], estimates: Sequence[int]) -> Sequence[tuple[Tile, Tile]]:
        """Every kernel that these estimates lead to; the tiles of both stages by estimate."""
        ...

    async def prepare(self, shape: MoeShape, *, most_rows: int, seed: int) -> None:
        """A rank's memory, for up to so many rows."""
        ...

    async def check(self, cases: Sequence[CheckCase]) -> Sequence[Checked]:
        """Each case's three comparisons, in the order given."""
        ...

    async def time(self, cases: Sequence[GroupedCase], effort: Effort) -> Sequence[Samples]:
        """Interleaved samples, in the order given."""
        ...

    async def close(self) -> None:
        """The process ends, its memory with it."""
        ...
