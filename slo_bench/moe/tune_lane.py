"""One GPU of a search: its bench, opened again where a configuration has killed it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

from slo_bench.moe.bench import Batch, BenchFacts, Case, Checked, Effort, KernelBench, Layer, Timed
from slo_bench.moe.choice import CALLS as FINAL_CALLS
from slo_bench.moe.choice import ROUNDS as FINAL_ROUNDS
from slo_bench.moe.ladder import CALLS, RUNGS, Step
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tuning_journal import FinalRow, TimedRow, numbers
from traffic.errors import EngineError

OpenBench = Callable[[], Awaitable[KernelBench]]

MOST_DEATHS = 8
"""A bench that dies more often is not the configurations' fault."""

_OVERHEAD_S = 0.05
"""Warming and capturing one case, about."""


class Lane:
    """A bench with the batches of its sizes. A configuration that ends the process is found and called a failure."""

    def __init__(self, open_bench: OpenBench, layer: Layer, batches: Sequence[Batch]) -> None:
        self._open, self._layer, self._batches = open_bench, layer, tuple(batches)
        self._bench: KernelBench | None = None
        self._deaths = 0

    async def start(self) -> BenchFacts:
        """Open the bench and give it its batches."""
        bench = self._bench = await self._open()
        await bench.prepare(self._layer, self._batches)
        return bench.facts

    async def look(self, size: int, step: Step, most_s: float | None) -> tuple[TimedRow, ...]:
        """Time a step of a ladder."""
        effort = Effort(RUNGS[step.rung].rounds, CALLS, is_graph=True, most_s=most_s)
        timed = await self._time([_case(config, size, step.routing) for config in step.configs], effort)
        return tuple(
            TimedRow(config=numbers(config), times_s=each.times_s, failure=each.failure)
            for config, each in zip(step.configs, timed, strict=True)
        )

    async def compare(
        self, size: int, configs: Sequence[KernelConfig], routings: Sequence[str], *, is_checked: bool
    ) -> tuple[FinalRow, ...]:
        """Time finalists in turn under every routing; no times stand for one that failed.

        is_checked: hold their results against float32 too; what gives none, or no finite one, failed.
        """
        errors: dict[KernelConfig, float | None] = {}
        if is_checked:
            checked = await self._bench_now.check([_case(config, size, routings[0]) for config in configs])
            errors = {config: _finite(each) for config, each in zip(configs, checked, strict=True)}
        wrong = {config for config, error in errors.items() if error is None}
        pairs = [(config, routing) for config in configs for routing in routings]
        effort = Effort(FINAL_ROUNDS, FINAL_CALLS, is_graph=True)
        timed = await self._time([_case(config, size, routing) for config, routing in pairs], effort)
        times = {
            pair: () if each.failure or pair[0] in wrong else each.times_s
            for pair, each in zip(pairs, timed, strict=True)
        }
        return tuple(
            FinalRow(
                config=numbers(config),
                times_s={routing: times[config, routing] for routing in routings},
                relative_error=errors.get(config),
            )
            for config in configs
        )

    async def close(self) -> None:
        """The process ends."""
        if self._bench is not None:
            bench, self._bench = self._bench, None
            await bench.close()

    @property
    def _bench_now(self) -> KernelBench:
        if self._bench is None:
            raise EngineError("the kernel bench is not open")
        return self._bench

    async def _time(self, cases: Sequence[Case], effort: Effort) -> Sequence[Timed]:
        try:
            return await self._bench_now.time(cases, effort)
        except EngineError as error:
            self._deaths += 1
            if self._deaths > MOST_DEATHS:
                raise
            await self.close()
            await self.start()
            if len(cases) == 1:
                return [Timed(cases[0], (), failure=f"it ended the process: {error}")]
            half = len(cases) // 2
            return [*await self._time(cases[:half], effort), *await self._time(cases[half:], effort)]


def final_cost_s(default_s: float, finalists: int, routings: int) -> float:
    """Seconds that the end of one batch size takes, about: finalists and default in turn, then the chosen one again."""
    replays_s = FINAL_ROUNDS * FINAL_CALLS * default_s + _OVERHEAD_S
    return (finalists + 1 + 2) * routings * replays_s


def _finite(checked: Checked) -> float | None:
    error = checked.relative_error
    return error if checked.failure is None and error is not None and math.isfinite(error) else None


def _case(config: KernelConfig, size: int, routing: str) -> Case:
    return Case(config.entry(), (size, routing))
