"""The sweep: search, repeats, and the answer, written down after every window."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from gates.capacity import (
    MOST_AT_ONE_RATE,
    Capacity,
    CapacityVerdict,
    Observation,
    Strategy,
    conclude,
    concluded,
    pooled_tally,
)
from gates.draw import LongDraw, long_draw
from gates.estimate import capacity_estimate
from gates.margin import Proof, WindowSample, proof, proofs, window_sample
from gates.referee import RateSoFar
from gates.verdict import ProbeVerdict
from reports.rows import cause_row, probe_row, sweep_document
from reports.run_directory import CauseRow, ProbeRow, SweepDocument, WarmUp
from slo_bench import economical
from slo_bench.bench import IDLE_LIMIT_S, Bench, Load
from slo_bench.doctor.ceiling import ClientLimit
from slo_bench.earlier import Earlier
from slo_bench.modes import Mode
from slo_bench.search import Measure, SearchSettings, longest_search, next_step, possible_searches
from slo_bench.store import RunStore
from traffic.clock import running_clock
from traffic.errors import InvalidMeasurement
from traffic.probe import Progress

TRIES = 3
"""An invalid window is measured again, with fresh text, twice at most, before the sweep gives up."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Everything a sweep needs to know before it starts.

    client_limit_rps: the highest rate that this client can send, where that ends the search; None where it does not.
    """

    label: str
    mode: Mode
    load: Load
    search: SearchSettings
    max_minutes: float | None
    client_limit_rps: float | None = None

    def within(self, limit: ClientLimit) -> SweepPlan:
        """The plan with no rate above what this client can send. Raises UsageError when its start is."""
        search = limit.cap(self.search)
        is_lower = search.ceiling_rps < self.search.ceiling_rps
        return replace(self, search=search, client_limit_rps=search.ceiling_rps if is_lower else None)

    @property
    def warm_up_rps(self) -> float:
        """Warm-up runs above the first rates: two growth steps over the start."""
        return min(self.search.start_rps * self.search.growth**2, self.search.ceiling_rps)

    def window_s(self, rate_rps: float) -> float:
        """The measured seconds at a rate."""
        return self.mode.window_s(rate_rps, self.load.slo)

    @property
    def economy(self) -> economical.Economy:
        """What the economical strategy needs beside the search's settings."""
        slo = self.load.slo
        return economical.Economy(slo, self.window_s, lambda rate_rps: self.mode.short_window_s(rate_rps, slo))

    @property
    def most_windows(self) -> int:
        """The most windows that the search may take, contradictions by noise aside."""
        is_economical = self.mode.strategy is Strategy.ECONOMICAL
        return economical.MOST_WINDOWS if is_economical else longest_search(self.search)

    def longest_minutes(self, *, start_passes: bool) -> float:
        """The longest time of a search without contradictions, warm-up and every drain limit included.

        start_passes: that the start rate does. Below it windows grow, since a percentile needs its requests.
        """
        start_rps = min(self.search.start_rps, self.search.ceiling_rps)
        block_s = self.load.longest_probe_s(self.mode.warm_block_s)
        searches = possible_searches(self.search)
        if self.mode.strategy is Strategy.ECONOMICAL:
            searches = [[start_rps] * economical.MOST_WINDOWS, economical.slowest_search(self.search)]
        searches_s = (
            sum(self.load.longest_probe_s(self.window_s(rate_rps)) for rate_rps in rates)
            + block_s * len({rate_rps for rate_rps in rates if rate_rps > self.warm_up_rps})
            for rates in searches
            if not start_passes or min(rates) >= start_rps
        )
        minutes = (self.mode.warm_blocks * block_s + max(searches_s)) / 60
        return minutes if self.max_minutes is None else min(minutes, self.max_minutes)


class View(Protocol):
    """Somebody who watches a sweep."""

    def warming(self, plan: SweepPlan) -> None:
        """Warm-up begins."""
        ...

    def started(self, step: Measure, capacity: Capacity) -> None:
        """A window begins; `capacity` holds the bracket so far."""
        ...

    def progress(self, progress: Progress, over: Sequence[int]) -> None:
        """A quarter second of a running probe; over: requests over each limit so far."""
        ...

    def measured(self, verdict: ProbeVerdict, row: ProbeRow) -> None:
        """A window was judged."""
        ...


class Sweeper:
    """One sweep on one running engine. earlier: what was measured before it was stopped, on other server starts."""

    def __init__(
        self, bench: Bench, plan: SweepPlan, store: RunStore, view: View, earlier: Earlier | None = None
    ) -> None:
        self.bench = bench
        self.plan = plan
        self.store = store
        self.view = view
        self.earlier = earlier
        self.server_start = 0 if earlier is None else earlier.server_start
        self.seen: list[Observation] = []
        self.searched: list[WindowSample] = []  # the same windows, with their margins
        self.windows: list[WindowSample] = []  # those and the ones at the anchor
        self._step: tuple[int, Measure | Capacity] | None = None
        self.rows: list[ProbeRow] = []
        self.causes: list[CauseRow] = []
        self.warm: WarmUp | None = None
        self.earlier_warm_ups: list[WarmUp] = []
        self.warmed_rps = 0.0

    async def run(self) -> SweepDocument:
        """Warm up, search and repeat. Raises InvalidMeasurement when a window stays invalid."""
        clock = running_clock()
        minutes = self.plan.max_minutes
        end_s = None if minutes is None else clock.now_s() + minutes * 60
        try:
            async with asyncio.timeout_at(end_s) as limit:
                await self._warm_up()
                while isinstance(step := self._next(), Measure):
                    await self._observe(step)
        except TimeoutError:
            if not limit.expired():
                raise
            await self.bench.running.wait_idle(IDLE_LIMIT_S)
            return self._write(CapacityVerdict.UNFINISHED)
        return self._write(step.verdict)

    async def anchor(self, rate_rps: float) -> SweepDocument:
        """Measure the anchor rate at full length with all repeats, where the search has not done so."""
        document = self._write(self._verdict())
        for repeat in range(1 + self.plan.search.pass_repeats):
            known = [row for row in self.rows if row.rate_rps == rate_rps and row.repeat == repeat and row.is_valid]
            if not any(row.is_whole and row.window_s >= self.plan.window_s(rate_rps) - 1e-6 for row in known):
                await self._valid_window(Measure(rate_rps, repeat), is_anchor=True)
                document = self._write(self._verdict())
        return document

    async def _warm_up(self) -> None:
        self.view.warming(self.plan)
        mode = self.plan.mode
        self.warmed_rps = self.plan.warm_up_rps
        try:
            if self.earlier is not None:  # what was in flight when it stopped may still keep a server busy
                await self.bench.running.wait_idle(IDLE_LIMIT_S)
            warm = await self.bench.warm_up(self.warmed_rps, mode.warm_block_s, mode.warm_blocks)
            self.warm = warm.model_copy(update={"server_start": self.server_start})
        finally:
            self._recall()  # not before: margins are read with the lengths that the warm-up corrects

    def _recall(self) -> None:
        """Count what the earlier part measured, as if it had just been seen."""
        if self.earlier is None or self.earlier.sweep is None:
            return
        before = self.earlier.sweep
        self.rows, self.causes = list(before.probes), list(before.causes)
        self.earlier_warm_ups = [*before.earlier_warm_ups, *([] if before.warm_up is None else [before.warm_up])]
        for row, verdict in self.earlier.windows():
            self._keep(verdict)
            if row.purpose == "search":
                self._count(verdict)

    async def _observe(self, step: Measure) -> None:
        if step.rate_rps > self.warmed_rps:
            # Batch shapes above the warmed rate would be met for the first time inside a measured window.
            await self.bench.warm_up(step.rate_rps, self.plan.mode.warm_block_s, 1)
            self.warmed_rps = step.rate_rps
        verdict = await self._valid_window(step, is_anchor=False)
        self._count(verdict)
        self._write(self._verdict())

    def _count(self, verdict: ProbeVerdict) -> None:
        """The window that was kept last is one of the search."""
        assert verdict.outcome is not None  # noqa: S101 - only valid windows come here
        window = self.windows[-1]
        self.seen.append(Observation(window.rate_rps, window.repeat, verdict.outcome.passed))
        self.searched.append(window)

    async def _valid_window(self, step: Measure, *, is_anchor: bool) -> ProbeVerdict:
        verdict: ProbeVerdict | None = None
        for _ in range(TRIES):
            self.view.started(step, self._capacity(CapacityVerdict.UNFINISHED))
            verdict = await self.bench.window(
                step.rate_rps,
                step.repeat,
                self.plan.window_s(step.rate_rps) if step.duration_s is None else step.duration_s,
                can_end_early=not is_anchor,
                so_far=None if is_anchor else self._so_far(step.rate_rps),
                observe=self.view.progress,
            )
            row = probe_row(
                verdict,
                purpose="anchor" if is_anchor else "search",
                requests_file=self.store.requests(verdict.facts),
                is_proven=self._is_proven(verdict) if verdict.is_valid else None,
                server_start=self.server_start,
                power=self.bench.power(verdict),
            )
            self.rows.append(row)
            self.view.measured(verdict, row)
            if verdict.is_valid:
                if (why := self.bench.explain(verdict)) is not None:
                    self.causes.append(cause_row(why, verdict.facts.window))
                return verdict
            self._write(self._verdict())
        assert verdict is not None  # noqa: S101 - TRIES is positive
        raise InvalidMeasurement(
            f"the window at {step.rate_rps:g} req/s is invalid {TRIES} times: {'; '.join(verdict.invalid_reasons)}"
        )

    def _keep(self, verdict: ProbeVerdict) -> WindowSample:
        """What a valid window tells of its rate."""
        window = window_sample(verdict, self._long)
        self.windows.append(window)
        return window

    def _is_proven(self, verdict: ProbeVerdict) -> bool | None:
        """Keeps a valid window; whether those of its rate so far prove its outcome, None where they are too few."""
        assert verdict.outcome is not None  # noqa: S101 - it is valid
        window = self._keep(verdict)
        proven = proof(self.plan.load.slo, [each for each in self.windows if each.rate_rps == window.rate_rps])
        return None if proven is None else proven is (Proof.PASS if verdict.outcome.passed else Proof.FAIL)

    @cached_property
    def _long(self) -> LongDraw | None:
        load = self.bench.load
        return long_draw(load.workload, load.arrivals, load.length_scale)

    @property
    def _is_economical(self) -> bool:
        return self.plan.mode.strategy is Strategy.ECONOMICAL

    def _next(self) -> Measure | Capacity:
        """What to measure next, or the answer; asked more than once about the same windows."""
        if self._step is None or self._step[0] != len(self.seen):
            search = self.plan.search
            if self._is_economical:
                self._step = len(self.seen), economical.next_step(search, self.plan.economy, self.searched)
            else:
                self._step = len(self.seen), next_step(search, self.seen)
        return self._step[1]

    def _capacity(self, verdict: CapacityVerdict) -> Capacity:
        if self._is_economical:
            return concluded(pooled_tally(self.searched), verdict)
        return conclude(self.seen, verdict)

    def _so_far(self, rate_rps: float) -> RateSoFar | None:
        """What the referee should know of a rate whose windows are judged together."""
        if not self._is_economical:
            return None
        windows = [each for each in self.searched if each.rate_rps == rate_rps]
        return RateSoFar(windows, max(0, MOST_AT_ONE_RATE - len(windows) - 1))

    def _verdict(self) -> CapacityVerdict:
        step = self._next()
        return CapacityVerdict.UNFINISHED if isinstance(step, Measure) else step.verdict

    def _write(self, verdict: CapacityVerdict) -> SweepDocument:
        document = sweep_document(
            label=self.plan.label,
            engine=self.bench.running.facts.kind,
            seed=self.plan.load.seed,
            slo=self.plan.load.slo,
            is_smoke=self.plan.mode.is_smoke,
            capacity=self._capacity(verdict),
            warm_up=self.warm,
            earlier_warm_ups=self.earlier_warm_ups,
            probes=self.rows,
            causes=self.causes,
            client_limit_rps=self.plan.client_limit_rps,
            estimate=capacity_estimate(self.plan.load.slo, self.windows),
            proofs=proofs(self.plan.load.slo, self.windows),
            strategy=self.plan.mode.strategy,
        )
        self.store.sweep(document)
        return document
