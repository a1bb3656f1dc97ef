"""What times configurations of the fused MoE kernel: the port between the commands and a process on a GPU.

The commands import no torch: what they need of a GPU they ask of a KernelBench, which is a process of its own under
vLLM's interpreter, or computes times from a model of the kernel and says SIMULATED wherever it appears.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from slo_bench.moe.routing import Ids
from slo_bench.moe.shape import MoeShape, Quantisation


@dataclass(frozen=True, slots=True)
class BenchFacts:
    """What answers. device: as the driver names it. shared_bytes: shared memory that one block of threads can have.

    versions: of vllm, torch, triton, by name. bandwidth_bps: bytes/s that a long read of memory reached, measured;
    None where nothing measured it. is_simulated: times come from a model of the kernel, not from a GPU. uuid: of the
    GPU. l2_bytes: its level-2 cache. config_folder: where this vLLM keeps the files that it ships.
    """

    device: str
    shared_bytes: int
    cores: int
    versions: Mapping[str, str]
    bandwidth_bps: float | None = None
    is_simulated: bool = False
    uuid: str | None = None
    l2_bytes: int | None = None
    config_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """What is to be timed: one rank's MoE layer. weight_sets: copies that calls rotate over, so that L2 stays cold."""

    shape: MoeShape
    quantisation: Quantisation
    rank: int = 0
    weight_sets: int = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one step and where they go. draws: expert ids of shape (tokens, top-k) each; calls rotate over them."""

    routing: str
    tokens: int
    draws: tuple[Ids, ...] = field(repr=False)

    @property
    def name(self) -> tuple[int, str]:
        """What tells batches apart."""
        return self.tokens, self.routing


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration, as a file's entry, on one batch that the bench was given (by its name)."""

    entry: Mapping[str, int]
    batch: tuple[int, str]


@dataclass(frozen=True, slots=True)
class Effort:
    """How carefully: every round takes all cases once, in an order of its own; a time is a mean over some calls.

    calls: at the least; there are never fewer than copies of the weights. is_graph: calls are captured as a CUDA graph
    first, as a server runs them; plain calls cost less to begin with, and their time has the launches in it. most_s: a
    case whose first calls take longer each is not called again and has no times.
    """

    rounds: int
    calls: int
    is_graph: bool
    most_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds per call, one value for each round that was made; failure: why the configuration cannot run, or None."""

    case: Case
    times_s: tuple[float, ...]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """How far a case's result is from a float32 reference: norm of the difference over norm of the reference."""

    case: Case
    relative_error: float | None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """One configuration made ready: seconds that it took; failure: why it cannot be compiled, or None."""

    entry: Mapping[str, int]
    took_s: float
    failure: str | None = None


class KernelBench(Protocol):
    """One GPU that checks and times. Answers have deadlines; a process that dies is an EngineError."""

    @property
    def facts(self) -> BenchFacts:
        """What answers."""
        ...

    async def prepare(self, layer: Layer, batches: Sequence[Batch]) -> None:
        """Weights and inputs; batches that were given before are forgotten."""
        ...

    async def check(self, cases: Sequence[Case]) -> Sequence[Checked]:
        """Each case's result against float32, in the order given."""
        ...

    async def time(self, cases: Sequence[Case], effort: Effort) -> Sequence[Timed]:
        """Interleaved times: clocks that drift meet every case alike. In the order given."""
        ...

    async def close(self) -> None:
        """The process ends, its memory with it."""
        ...


class KernelCompiler(Protocol):
    """One process that compiles into the cache on disk and launches nothing."""

    async def compile(self, entry: Mapping[str, int]) -> Compiled:
        """Every specialisation of the kernel that the layer's batches need under this configuration."""
        ...

    async def close(self) -> None:
        """The process ends; a compilation under way is lost."""
        ...
