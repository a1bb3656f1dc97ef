"""A kernel whose true times are computed, behind the port of a bench: for rehearsals, and to measure the search itself.

Everything that it times says SIMULATED. The model is a roofline with what a tile wastes: rows of half-empty tiles,
weights that are read again by each row of tiles, pipelines too short to hide memory, accumulators that spill. Its
constants are those of no card; only the kind of landscape is meant to be like a real one, quirks included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import astuple

import numpy as np
import numpy.typing as npt

from slo_bench.moe.bench import Batch, BenchFacts, Case, Checked, Compiled, Effort, KernelBench, Layer, Timed
from slo_bench.moe.routing import rows_per_expert
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.space import HOPPER_SHARED_BYTES, KernelConfig
from slo_bench.moe.tune import Machines
from slo_bench.moe.tune_lane import OpenBench
from slo_bench.moe.work import expert_bytes
from traffic.errors import UsageError
from traffic.randomness import stream

DEVICE = "SIMULATED GPU"
VLLM_VERSION = "0.24.0"

_BANDWIDTH_BPS, _OPERATIONS_PS, _LAUNCHES_S = 4.3e12, 1.2e15, 20e-6
_QUIRK, _NOISE, _DRIFT, _DRIFT_S = 0.03, 0.01, 0.01, 300.0
_DISTURBED_SHARE, _DISTURBED_BY = 0.01, 0.3
_SPILL_FROM, _SPILL = 256, 6.0
_PREPARE_S, _CASE_S = 1.0, 3e-3
_COMPILE_S, _HUGE_COMPILE_S = 1.6, 20.0
_WARP = 32


class SimulatedKernel:
    """True times. landscape: what configurations' quirks are drawn from."""

    def __init__(self, shape: MoeShape, quantisation: Quantisation, landscape: int = 0) -> None:
        self.shape, self.quantisation, self.landscape = shape, quantisation, landscape
        self._known: dict[tuple[KernelConfig, tuple[int, str]], float] = {}
        self._rows: dict[tuple[int, str], npt.NDArray[np.int64]] = {}
        self._quirks: dict[KernelConfig, float] = {}

    def true_s(self, config: KernelConfig, batch: Batch) -> float:
        """Seconds per call."""
        key = (config, batch.name)
        if key not in self._known:
            self._known[key] = self._computed_s(config, batch)
        return self._known[key]

    def _computed_s(self, config: KernelConfig, batch: Batch) -> float:
        rows = self._rows_of(batch)
        row_tiles = int((-(-rows // config.block_m)).sum())
        hit = int(np.count_nonzero(rows))
        tile = config.block_m * config.block_n
        # Each further row of tiles of an expert reads its weights again, mostly from a cache.
        weights = expert_bytes(self.shape, self.quantisation) * (hit + 0.1 * (row_tiles - hit))
        hiding = 1 + 0.25 / (config.num_stages - 1) + (0.15 if config.block_k == 64 else 0.0)  # noqa: PLR2004
        memory_s = weights / _BANDWIDTH_BPS * hiding * (1 + 8 / config.block_n)
        operations = 6 * row_tiles * config.block_m * self.shape.columns * self.shape.hidden
        compute_s = operations / (_OPERATIONS_PS * tile / (tile + 6000))
        accumulators = tile / (_WARP * config.num_warps)
        spill = _SPILL if accumulators >= _SPILL_FROM else 1.0
        quirk = self._quirk_of(config)
        order = 0.01 * np.log2(config.group_m) * (1 if batch.tokens < self.shape.experts else -1)
        return float((max(memory_s, compute_s) * spill * np.exp(quirk) * (1 + order)) + _LAUNCHES_S)

    def _rows_of(self, batch: Batch) -> npt.NDArray[np.int64]:
        if batch.name not in self._rows:
            self._rows[batch.name] = rows_per_expert(batch.draws[0], self.shape)
        return self._rows[batch.name]

    def _quirk_of(self, config: KernelConfig) -> float:
        if config not in self._quirks:
            drawn = stream("simulated-kernel", self.landscape, *astuple(config)).normal(0, _QUIRK)
            self._quirks[config] = float(drawn)
        return self._quirks[config]


class SimulatedBench:
    """One simulated GPU. gpu_s: how long it has worked so far; replays are off by a little, a few by a lot."""

    def __init__(self, kernel: SimulatedKernel, number: int = 0, seed: int = 0) -> None:
        self.kernel, self.gpu_s = kernel, 0.0
        self.facts = BenchFacts(
            DEVICE,
            HOPPER_SHARED_BYTES,
            16,
            {"vllm": VLLM_VERSION, "torch": "simulated", "triton": "simulated"},
            bandwidth_bps=_BANDWIDTH_BPS,
            is_simulated=True,
        )
        self._random = stream("simulated-bench", seed, number)
        self._batches: dict[tuple[int, str], Batch] = {}

    async def prepare(self, layer: Layer, batches: Sequence[Batch]) -> None:
        """Remember the batches. Raises UsageError for another layer than the kernel's."""
        if (layer.shape, layer.quantisation) != (self.kernel.shape, self.kernel.quantisation):
            raise UsageError("the simulated kernel is of another layer")
        self._batches = {batch.name: batch for batch in batches}
        await asyncio.sleep(_PREPARE_S)

    async def check(self, cases: Sequence[Case]) -> Sequence[Checked]:
        """Every result is right."""
        return [Checked(case, 0.01) for case in cases]

    async def time(self, cases: Sequence[Case], effort: Effort) -> Sequence[Timed]:
        """Takes as long as the calls would."""
        before_s = self.gpu_s
        timed = [self._timed(case, effort) for case in cases]
        await asyncio.sleep(self.gpu_s - before_s)
        return timed

    def _timed(self, case: Case, effort: Effort) -> Timed:
        true_s = self.kernel.true_s(_config(case.entry), self._batches[case.batch])
        self.gpu_s += _CASE_S + true_s
        if effort.most_s is not None and true_s > effort.most_s:
            return Timed(case, ())
        self.gpu_s += true_s * effort.calls * (effort.rounds + 1)
        drift = 1 + _DRIFT * np.sin(self.gpu_s / _DRIFT_S * 2 * np.pi)
        return Timed(case, tuple(float(each) for each in true_s * drift * self._noise(effort.rounds)))

    def _noise(self, rounds: int) -> npt.NDArray[np.float64]:
        disturbed = self._random.random(rounds) < _DISTURBED_SHARE
        noise: npt.NDArray[np.float64] = np.exp(self._random.normal(0, _NOISE, rounds))
        return noise * (1 + _DISTURBED_BY * disturbed)

    async def close(self) -> None:
        """Nothing to end."""


class SimulatedCompiler:
    """Takes as long as a compiler, large tiles much longer."""

    async def compile(self, entry: Mapping[str, int]) -> Compiled:
        """Always works."""
        config = _config(entry)
        accumulators = config.block_m * config.block_n / (_WARP * config.num_warps)
        took_s = _COMPILE_S + (_HUGE_COMPILE_S if accumulators >= 2 * _SPILL_FROM else accumulators / _SPILL_FROM)
        await asyncio.sleep(took_s)
        return Compiled(entry, took_s)

    async def close(self) -> None:
        """Nothing to end."""


def simulated_machines(shape: MoeShape, quantisation: Quantisation, *, compilers: int, gpus: int = 1) -> Machines:
    """As many GPUs and compilers as wanted, all of one kernel."""
    kernel = SimulatedKernel(shape, quantisation)

    def opener(number: int) -> OpenBench:
        async def opened() -> KernelBench:
            return SimulatedBench(kernel, number)

        return opened

    async def open_compiler() -> SimulatedCompiler:
        return SimulatedCompiler()

    return Machines([opener(number) for number in range(gpus)], open_compiler, compilers)


def _config(entry: Mapping[str, int]) -> KernelConfig:
    return KernelConfig(*(entry[name] for name in KernelConfig(0, 0, 0, 0, 0, 0).entry()))
