"""The servers of a comparison: one start of one arm, warmed up, and its blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Protocol, runtime_checkable

from gates.verdict import ProbeVerdict
from reports.effect_document import ArmName
from reports.run_directory import EngineKind, WarmUp
from slo_bench.bench import WARM_AGREEMENT, WARM_UP_REPEAT, Bench, Load
from slo_bench.hosts import Host, RunningHost
from slo_bench.load_workers import load_workers
from slo_bench.power.measuring import Power, measuring
from slo_bench.scrape import watching
from slo_bench.store import RunStore
from slo_bench.surroundings import Surroundings
from traffic.probe import Progress
from traffic.summary import mean

LEAST_RAMP_S = 15.0
"""A server that was empty looks 8 to 35 % faster at first."""

WARM_UP_FACTOR = 1.25
"""Warm-up runs at this multiple of the rate: blocks bunch above it, and their batch shapes should be known."""

MEDIAN = Decimal(50)
"""Percentiles are taken over all blocks, so a single one need not hold enough requests for the objective's own. Limits,
and with them goodput, stay."""

MakeHost = Callable[[int, Path, Callable[[], Collection[int]]], Host]
"""Start number, where its log goes, and the processes of this run's other servers -> host."""

Observe = Callable[[Progress, Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class CompareArm:
    """One arm. changes: what is different in it, in words. host: makes one more server of it.

    around: what is read and known of the machine beside its servers.
    """

    label: str
    kind: EngineKind
    changes: tuple[str, ...]
    host: MakeHost
    around: Surroundings = field(default_factory=Surroundings)


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What one block is. ramp_s: None for twice the mean end-to-end latency of the warm-up, at least 15 s."""

    load: Load
    rate_rps: float | None
    concurrency: int | None
    window_s: float
    ramp_s: float | None
    warm_block_s: float = 30.0
    warm_blocks: int = 6

    @property
    def longest_s(self) -> float:
        """The most that one block can take with the shortest ramp."""
        ramp_s = LEAST_RAMP_S if self.ramp_s is None else self.ramp_s
        return replace(self.load, ramp_s=ramp_s).longest_probe_s(self.window_s)

    @property
    def warm_window_s(self) -> float:
        """How long the schedule of a warm-up block is."""
        return min(self.warm_block_s, self.window_s)

    @property
    def longest_warm_s(self) -> float:
        """The most that one block of warm-up can take."""
        return replace(self.load, ramp_s=0.0).longest_probe_s(self.warm_window_s)


@runtime_checkable
class HasProcesses(Protocol):
    """A host whose server is processes of this machine."""

    def pids(self) -> frozenset[int]:
        """Those that live."""
        ...


class Server:
    """One start of one arm: up, and measured block by block."""

    def __init__(self, arm: ArmName, start: int, directory: Path, bench: Bench, power: Power) -> None:
        self.arm = arm
        self.start = start
        self.directory = directory
        self.bench = bench
        self.power = power
        self.warmed: WarmUp | None = None

    @property
    def running(self) -> RunningHost:
        """What answers."""
        return self.bench.running

    async def warm_up(self, plan: BlockPlan) -> None:
        """Replay one schedule until two blocks agree, at and above the rate to come."""
        block_s = plan.warm_window_s
        if plan.rate_rps is not None:
            self.warmed = await self.bench.warm_up(plan.rate_rps * WARM_UP_FACTOR, block_s, plan.warm_blocks)
        else:
            self.warmed = await self._warm_up_closed(plan.concurrency or 1, block_s, plan.warm_blocks)

    async def _warm_up_closed(self, concurrency: int, block_s: float, most: int) -> WarmUp:
        means: list[float | None] = []
        agree = False
        while len(means) < most and not agree:
            verdict = await self.bench.closed_loop(concurrency, WARM_UP_REPEAT, block_s)
            records = verdict.facts.records
            self.bench.warm_e2e_s = mean([e2e_s for each in records if (e2e_s := each.e2e_s) is not None])
            before, now = means[-1] if means else None, verdict.summary.mean_tpot_s
            agree = before is not None and now is not None and abs(now / before - 1) <= WARM_AGREEMENT
            means.append(now)
        return WarmUp(is_warm=agree, rate_rps=None, block_s=block_s, tpot_mean_s=means)

    async def block(self, plan: BlockPlan, ramp_s: float, repeat: int, observe: Observe) -> ProbeVerdict:
        """Measure one block and leave the server idle."""
        load = self.bench.load
        self.bench.load = replace(load, ramp_s=ramp_s, slo=tuple(replace(each, percentile=MEDIAN) for each in load.slo))
        if plan.rate_rps is not None:
            return await self.bench.window(plan.rate_rps, repeat, plan.window_s, can_end_early=False, observe=observe)
        return await self.bench.closed_loop(
            plan.concurrency or 1, repeat, plan.window_s, observe=lambda progress: observe(progress, ())
        )


def ramp_s(plan: BlockPlan, servers: Sequence[Server]) -> float:
    """The ramp of every block: as asked, else twice the longest mean end-to-end latency of the warm-ups."""
    if plan.ramp_s is not None:
        return plan.ramp_s
    return max(LEAST_RAMP_S, *(2 * (server.bench.warm_e2e_s or 0.0) for server in servers))


@asynccontextmanager
async def started(
    arm: CompareArm, name: ArmName, start: int, *, plan: BlockPlan, directory: Path, others: Sequence[Server]
) -> AsyncIterator[Server]:
    """One more server of an arm, with its documents in `directory`.

    others: servers that are up, whose processes may hold memory of the same GPU.
    """
    store = RunStore(directory)

    def own_pids() -> frozenset[int]:
        hosts = [server.running for server in others]
        return frozenset().union(*(host.pids() for host in hosts if isinstance(host, HasProcesses)))

    host = arm.host(text_start(arm.kind, name, start), store.directory / "engine.log", own_pids)
    async with (
        measuring(arm.around.power) as power,
        host as running,
        watching(running.look()) as scraper,
        load_workers(running, plan.load.workers, plan.load.ray_address) as workers,
    ):
        power.server_is_up()
        bench = await Bench.prepare(running, plan.load, scraper, workers, power=power)
        store.engine(await arm.around.facts(running.facts, power))
        try:
            yield Server(name, start, store.directory, bench, power)
        finally:
            if scraper is not None:
                store.metrics(scraper)
            store.power(power)


def text_start(kind: EngineKind, name: ArmName, start: int) -> int:
    """What a host is told of the servers before it.

    Partners on different servers get the same text, and no repeat runs twice on one, so real servers are all told the
    same. The simulated engine reads no text and draws its noise from it, which no two servers share.
    """
    return 2 * start + (name == "B") if kind == "simulated" else 0
