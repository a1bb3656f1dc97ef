"""What a decode step takes on the GPU, measured of two truncated models in processes under vLLM's interpreter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from slo_bench.moe.advising.truncated import FEWER, MORE, Depth, write_truncated
from slo_bench.moe.gpu_bench import GpuPlace, Worker
from traffic.errors import EngineError, UsageError

CONTEXT = 256
"""Tokens of each request. Longer ones have more attention in a step, and the kernel a smaller share."""

_KV_BYTES = 6 << 30
_ROUNDS, _REPLAYS = 5, 20
_LOAD_S, _STEP_S = 300.0, 120.0
_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_DEEP_GEMM": os.environ.get("VLLM_USE_DEEP_GEMM", "0"),
    "VLLM_DEEP_GEMM_WARMUP": "skip",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""The engine in the process itself. Nothing is compiled ahead for shapes that are not measured, nor a sampler; and the
dense products' kernels, unless the environment wants them, are not built from source, which takes minutes at first."""


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step. is_concentrated: all tokens are the same, and so are their experts; else tokens are random."""

    tokens: int
    is_concentrated: bool


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step on the GPU. by_layers: layers of a model -> one value a round, over all visits to it."""

    step: Step
    by_layers: dict[int, tuple[float, ...]]

    @property
    def layer_s(self) -> float:
        """What one more layer takes."""
        return (median(self.by_layers[MORE]) - median(self.by_layers[FEWER])) / (MORE - FEWER)

    def whole_s(self, layers: int) -> float:
        """A step of a model of so many layers, without logits and sampling."""
        return median(self.by_layers[FEWER]) + (layers - FEWER) * self.layer_s


class StepBench:
    """Both models, each in a process of its own on the same GPU; one of them works at a time."""

    def __init__(self, workers: dict[int, Worker]) -> None:
        self._workers = workers

    async def load(self, model: Path, scratch: Path, depth: Depth, sizes: Sequence[int]) -> None:
        """Build both engines, at the same time. scratch: an empty folder. Raises UsageError and EngineError."""
        asked = {
            layers: {
                "model": str(write_truncated(model, layers, scratch / str(layers))),
                "sizes": list(sizes),
                "context": CONTEXT,
                "vocabulary": depth.vocabulary,
                "kv_bytes": _KV_BYTES,
            }
            for layers in self._workers
        }
        await _all(worker.ask("load", _LOAD_S, **asked[layers]) for layers, worker in self._workers.items())

    async def time(self, steps: Sequence[Step]) -> list[StepTimes]:
        """In the order given. Models are visited to and fro, so that a drift of the clock meets both alike."""
        asked = [{"tokens": step.tokens, "is_concentrated": step.is_concentrated} for step in steps]
        seen: dict[int, list[list[float]]] = {layers: [[] for _ in steps] for layers in self._workers}
        for layers in (*self._workers, *reversed(self._workers)):
            answer = await self._workers[layers].ask("steps", _STEP_S, steps=asked, rounds=_ROUNDS, replays=_REPLAYS)
            for rounds_s, more_s in zip(seen[layers], answer["times_s"], strict=True):
                rounds_s.extend(more_s)
        return [
            StepTimes(step, {layers: tuple(seen[layers][number]) for layers in seen})
            for number, step in enumerate(steps)
        ]

    async def close(self) -> None:
        """Both processes end."""
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))


async def open_models(place: GpuPlace) -> StepBench:
    """Both processes, with vLLM imported. Raises EngineError."""
    workers: dict[int, Worker] = {}
    try:
        for layers in (FEWER, MORE):
            workers[layers] = await Worker.start(place, f"model-{layers}", is_compiler=False, settings=_SETTINGS)
        await _all(worker.ask("facts", place.limits.facts_s, measures_bandwidth=False) for worker in workers.values())
    except BaseException:
        await asyncio.gather(*(worker.close() for worker in workers.values()))
        raise
    return StepBench(workers)


async def _all(awaitables: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Until all are done; the first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in awaitables:
                group.create_task(each)
    except* (UsageError, EngineError) as errors:
        raise errors.exceptions[0] from None
