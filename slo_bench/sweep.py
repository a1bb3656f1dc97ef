"""The sweep: search, repeats, and the answer, written down after every window."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gates.capacity import Capacity, CapacityVerdict, Observation, conclude
from gates.estimate import capacity_estimate
from gates.margin import Proof, WindowSample, proof, proofs, window_sample
from gates.verdict import ProbeVerdict
from reports.rows import cause_row, probe_row, sweep_document
from reports.run_directory import CauseRow, ProbeRow, SweepDocument, WarmUp
from slo_bench.bench import IDLE_LIMIT_S, Bench, Load
from slo_bench.doctor.ceiling import ClientLimit
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
    def most_windows(self) -> int:
        """The most windows that the search may take, contradictions by noise aside."""
        return longest_search(self.search)

    def longest_minutes(self, *, start_passes: bool) -> float:
        """The longest time of a search without contradictions, warm-up and every drain limit included.

        start_passes: that the start rate does. Below it windows grow, since a percentile needs its requests.
        """
        start_rps = min(self.search.start_rps, self.search.ceiling_rps)
        block_s = self.load.longest_probe_s(self.mode.warm_block_s)
        searches_s = (
            sum(self.load.longest_probe_s(self.window_s(rate_rps)) for rate_rps in rates)
            + block_s * len({rate_rps for rate_rps in rates if rate_rps > self.warm_up_rps})
            for rates in possible_searches(self.search)
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
    """One sweep on one running engine."""

    def __init__(self, bench: Bench, plan: SweepPlan, store: RunStore, view: View) -> None:
        self.bench = bench
        self.plan = plan
        self.store = store
        self.view = view
        self.seen: list[Observation] = []
        self.windows: list[WindowSample] = []  # the valid ones, those at the anchor too
        self.rows: list[ProbeRow] = []
        self.causes: list[CauseRow] = []
        self.warm: WarmUp | None = None
        self.warmed_rps = 0.0

    async def run(self) -> SweepDocument:
        """Warm up, search and repeat. Raises InvalidMeasurement when a window stays invalid."""
        clock = running_clock()
        minutes = self.plan.max_minutes
        end_s = None if minutes is None else clock.now_s() + minutes * 60
        try:
            async with asyncio.timeout_at(end_s) as limit:
                await self._warm_up()
                while isinstance(step := next_step(self.plan.search, self.seen), Measure):
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
            if not any(row.is_whole for row in known):
                await self._valid_window(Measure(rate_rps, repeat), is_anchor=True)
                document = self._write(self._verdict())
        return document

    async def _warm_up(self) -> None:
        self.view.warming(self.plan)
        mode = self.plan.mode
        self.warmed_rps = self.plan.warm_up_rps
        self.warm = await self.bench.warm_up(self.warmed_rps, mode.warm_block_s, mode.warm_blocks)

    async def _observe(self, step: Measure) -> None:
        if step.rate_rps > self.warmed_rps:
            # Batch shapes above the warmed rate would be met for the first time inside a measured window.
            await self.bench.warm_up(step.rate_rps, self.plan.mode.warm_block_s, 1)
            self.warmed_rps = step.rate_rps
        verdict = await self._valid_window(step, is_anchor=False)
        assert verdict.outcome is not None  # noqa: S101 - only valid windows come back
        self.seen.append(Observation(step.rate_rps, step.repeat, verdict.outcome.passed))
        self._write(self._verdict())

    async def _valid_window(self, step: Measure, *, is_anchor: bool) -> ProbeVerdict:
        verdict: ProbeVerdict | None = None
        for _ in range(TRIES):
            self.view.started(step, conclude(self.seen, CapacityVerdict.UNFINISHED))
            verdict = await self.bench.window(
                step.rate_rps,
                step.repeat,
                self.plan.window_s(step.rate_rps),
                can_end_early=not is_anchor,
                observe=self.view.progress,
            )
            row = probe_row(
                verdict,
                purpose="anchor" if is_anchor else "search",
                requests_file=self.store.requests(verdict.facts),
                is_proven=self._is_proven(verdict) if verdict.is_valid else None,
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

    def _is_proven(self, verdict: ProbeVerdict) -> bool | None:
        """Keeps a valid window; whether those of its rate so far prove its outcome, None where they are too few."""
        assert verdict.outcome is not None  # noqa: S101 - it is valid
        window = window_sample(verdict)
        self.windows.append(window)
        proven = proof(self.plan.load.slo, [each for each in self.windows if each.rate_rps == window.rate_rps])
        return None if proven is None else proven is (Proof.PASS if verdict.outcome.passed else Proof.FAIL)

    def _verdict(self) -> CapacityVerdict:
        step = next_step(self.plan.search, self.seen)
        return CapacityVerdict.UNFINISHED if isinstance(step, Measure) else step.verdict

    def _write(self, verdict: CapacityVerdict) -> SweepDocument:
        document = sweep_document(
            label=self.plan.label,
            engine=self.bench.running.facts.kind,
            seed=self.plan.load.seed,
            slo=self.plan.load.slo,
            is_smoke=self.plan.mode.is_smoke,
            capacity=conclude(self.seen, verdict),
            warm_up=self.warm,
            probes=self.rows,
            causes=self.causes,
            client_limit_rps=self.plan.client_limit_rps,
            estimate=capacity_estimate(self.plan.load.slo, self.windows),
            proofs=proofs(self.plan.load.slo, self.windows),
        )
        self.store.sweep(document)
        return document
