"""A short sweep on a scripted server, to be stopped and resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from engines import Act, Scripted, ScriptedHost, answer, words

from gates.capacity import Capacity
from gates.slo import DEFAULT_SLO, parse_objective
from gates.validity import MEASURED
from gates.verdict import ProbeVerdict
from reports.run_directory import ProbeRow, SweepDocument
from slo_bench.bench import Load
from slo_bench.hosts import EngineFacts
from slo_bench.modes import Mode
from slo_bench.run import RunRecord
from slo_bench.search import Measure, SearchSettings
from slo_bench.sweep import SweepPlan
from traffic.probe import Progress
from traffic.records import Flight, Request
from traffic.workload import fixed_lengths

BRIEF = Mode("brief", 12.0, 2.0, 0.15, 1, 4.0, 2, MEASURED)
SLO = tuple(replace(each, percentile=parse_objective("ttft:p90:1").percentile) for each in DEFAULT_SLO)
PLAN = SweepPlan(
    "brief",
    BRIEF,
    Load(fixed_lengths(30, 3), 1.0, 0, SLO, ramp_s=2.0, bounds=MEASURED),
    SearchSettings(resolution_share=0.15, pass_repeats=1, fail_repeats=1),
    None,
)
RECORD = RunRecord("brief", "attached", 0, {"mode": "brief"})


@dataclass
class Watching:
    """A view that calls back before each window."""

    before_window: Callable[[int], None] = lambda _: None
    steps: list[Measure] = field(default_factory=list)

    def warming(self, plan: SweepPlan) -> None:
        """Nothing to see."""

    def started(self, step: Measure, capacity: Capacity) -> None:
        assert capacity.tallies is not None
        self.steps.append(step)
        self.before_window(len(self.steps))

    def progress(self, progress: Progress, over: Sequence[int]) -> None:
        """Nothing to see."""

    def measured(self, verdict: ProbeVerdict, row: ProbeRow) -> None:
        assert verdict.outcome == row.outcome


def too_slow_above(limit: float) -> Act:
    """Answers in a second, and not in time while more than that many are in flight."""
    open_now = 0

    async def act(request: Request, flight: Flight) -> None:
        nonlocal open_now
        open_now += 1
        try:
            await answer(ttft_s=0.98 if open_now <= limit else 2.04)(request, flight)
        finally:
            open_now -= 1

    return act


class Quiet(ScriptedHost):
    """A scripted host that shows no counts."""

    def look(self) -> None:
        return None


@asynccontextmanager
async def hosted(host: Quiet) -> AsyncIterator[Quiet]:
    """The host as a context manager."""
    yield host


def scripted(start: int = 0, *, limit: int = 12, needs_text: bool = False) -> Quiet:
    """A server that is too slow with more than `limit` requests in flight."""
    facts = EngineFacts("attached", "scripted", None, None, start=start)
    return Quiet(Scripted(too_slow_above(limit)), facts=facts, needs_text=needs_text, count=words)


def decision(document: SweepDocument) -> tuple[object, ...]:
    """What a sweep is run for."""
    anchors = [(row.rate_rps, row.repeat, row.outcome) for row in document.probes if row.purpose == "anchor"]
    return (
        document.capacity_rps,
        document.first_failed_rps,
        document.verdict,
        document.tallies,
        anchors,
    )
