"""The sweep: warm-up, search, repeats, and a run directory that tells it again by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from engines import Act, Scripted, ScriptedHost, answer, blocking, fail, words
from stopping import too_slow_above

from gates.capacity import Capacity, CapacityVerdict, Observation, Strategy, conclude
from gates.slo import DEFAULT_SLO, parse_objective
from gates.validity import MEASURED
from gates.verdict import LimitedBy, Outcome, ProbeVerdict, judge_probe
from reports.requests import read_requests
from reports.rows import probe_row
from reports.run_directory import ProbeRow, SweepDocument, read_document
from slo_bench.bench import Bench, Load
from slo_bench.hosts import RunningHost
from slo_bench.hosts.simulated import SimulatedHost
from slo_bench.modes import Mode
from slo_bench.search import Measure, SearchSettings
from slo_bench.store import RunStore
from slo_bench.sweep import Sweeper, SweepPlan
from traffic.errors import EngineError, InvalidMeasurement
from traffic.probe import Progress
from traffic.step_model import EngineSettings
from traffic.virtual_time import run_virtual
from traffic.workload import CHAT_MIX, fixed_lengths

BRIEF = Mode("brief", 12.0, 2.0, 0.10, 1, 4.0, 2, MEASURED, percentile=Decimal(90))
"""Windows of 12 s judged at p90, so that a sweep takes minutes of virtual time."""

SLO = BRIEF.slo(DEFAULT_SLO)
PLAN = SweepPlan(
    "brief",
    BRIEF,
    Load(fixed_lengths(30, 3), 1.0, 0, SLO, ramp_s=2.0, bounds=MEASURED),
    SearchSettings(resolution_share=0.10, pass_repeats=1, fail_repeats=1),
    None,
)
SIMULATED = replace(PLAN, load=replace(PLAN.load, workload=CHAT_MIX))


@dataclass
class Notes:
    """A view that writes down what it is told."""

    steps: list[Measure] = field(default_factory=list)
    brackets: list[tuple[float | None, float | None]] = field(default_factory=list)
    rows: list[ProbeRow] = field(default_factory=list)
    warmed: int = 0
    looks: int = 0
    on_started: Callable[[], None] = lambda: None

    def warming(self, plan: SweepPlan) -> None:
        assert plan.label == "brief"
        self.warmed += 1

    def started(self, step: Measure, capacity: Capacity) -> None:
        self.steps.append(step)
        self.brackets.append((capacity.capacity_rps, capacity.first_failed_rps))
        self.on_started()

    def progress(self, progress: Progress, over: Sequence[int]) -> None:
        self.looks += progress.in_flight >= 0 and len(over) == len(SLO)

    def measured(self, verdict: ProbeVerdict, row: ProbeRow) -> None:
        assert verdict.outcome == row.outcome
        self.rows.append(row)


async def sweep(
    running: RunningHost, directory: Path, plan: SweepPlan = PLAN, view: Notes | None = None
) -> tuple[Sweeper, SweepDocument]:
    bench = await Bench.prepare(running, plan.load)
    sweeper = Sweeper(bench, plan, RunStore(directory), view or Notes())
    return sweeper, await sweeper.run()


def scripted(act: Act, directory: Path, plan: SweepPlan = PLAN, view: Notes | None = None) -> SweepDocument:
    return run_virtual(sweep(ScriptedHost(Scripted(act)), directory, plan, view))[1]


def simulated(
    directory: Path,
    plan: SweepPlan = SIMULATED,
    then: Callable[[Sweeper], Coroutine[Any, Any, SweepDocument]] | None = None,
    view: Notes | None = None,
) -> SweepDocument:
    async def main() -> SweepDocument:
        async with SimulatedHost(EngineSettings()) as running:
            sweeper, document = await sweep(running, directory, plan, view)
            return document if then is None else await then(sweeper)

    return run_virtual(main())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of one simulated sweep."""
    directory = tmp_path_factory.mktemp("sweep") / "brief"
    simulated(directory)
    return directory


def test_a_sweep_finds_a_capacity_between_its_ends(measured: Path) -> None:
    found = read_document(measured / "sweep.json", SweepDocument)
    assert (found.verdict, found.engine, found.seed, found.label) == (CapacityVerdict.FOUND, "simulated", 0, "brief")
    assert found.capacity_rps is not None
    assert found.first_failed_rps is not None
    assert 8.0 < found.capacity_rps < found.first_failed_rps < 20.0
    assert found.resolution_share is not None
    assert found.resolution_share <= 0.10
    assert found.limited_by is LimitedBy.TPOT
    assert found.is_smoke
    assert found.slo == ["ttft:p90:2000", "tpot:p90:50"]


def test_every_row_follows_from_its_own_file(measured: Path) -> None:
    found = read_document(measured / "sweep.json", SweepDocument)
    slo = [parse_objective(text) for text in found.slo]
    assert len(found.probes) == len(list((measured / "probes").iterdir())) >= 6
    for row in found.probes:
        assert row.requests_file is not None
        verdict = judge_probe(read_requests(measured / row.requests_file), slo)
        assert probe_row(verdict, purpose=row.purpose, requests_file=row.requests_file) == row


def test_the_answer_follows_from_the_files_of_the_probes_alone(measured: Path) -> None:
    found = read_document(measured / "sweep.json", SweepDocument)
    verdicts = [
        judge_probe(read_requests(path), [parse_objective(text) for text in found.slo])
        for path in sorted((measured / "probes").iterdir())
    ]
    seen = [
        Observation(each.facts.window.rate_rps, each.facts.window.repeat, each.outcome.passed)
        for each in verdicts
        if each.outcome is not None and each.facts.window.rate_rps is not None
    ]
    again = conclude(seen, found.verdict)
    assert (again.capacity_rps, again.first_failed_rps) == (found.capacity_rps, found.first_failed_rps)
    assert again.resolution_share == found.resolution_share
    assert [str(each) for each in again.tallies] == found.tallies
    assert list(again.contradictions) == found.contradictions_rps
    told = [(row.n, row.n_tpot, row.over_ttft, row.over_tpot, row.misses, row.failed) for row in found.probes]
    counted = [
        (
            each.summary.n,
            each.results[1].n,
            each.results[0].over,
            each.results[1].over,
            each.misses,
            each.summary.failed,
        )
        for each in verdicts
    ]
    assert told == counted


@pytest.mark.process
def test_the_same_seed_finds_the_same(measured: Path, tmp_path: Path) -> None:
    simulated(tmp_path / "again")
    assert (tmp_path / "again" / "sweep.json").read_bytes() == (measured / "sweep.json").read_bytes()


def test_another_seed_measures_another_draw(measured: Path, tmp_path: Path) -> None:
    plan = replace(SIMULATED, load=replace(SIMULATED.load, seed=1), search=replace(SIMULATED.search, highest_rps=8.0))
    other = simulated(tmp_path / "other", plan)
    first = read_document(measured / "sweep.json", SweepDocument)
    assert other.seed == 1
    assert other.probes[0].n != first.probes[0].n


def test_the_view_sees_each_step_with_the_bracket_so_far(tmp_path: Path) -> None:
    notes = Notes()
    found = scripted(too_slow_above(12), tmp_path / "brief", view=notes)
    assert notes.warmed == 1
    assert [each.rate_rps for each in notes.steps] == [row.rate_rps for row in found.probes]
    assert notes.rows == found.probes
    assert notes.brackets[0] == (None, None)
    assert notes.brackets[1][0] == 8.0 or notes.brackets[1][1] == 8.0
    assert notes.looks > 20


def test_the_answer_so_far_is_on_disk_before_the_next_window_begins(tmp_path: Path) -> None:
    directory, counts = tmp_path / "brief", []

    def look() -> None:
        path = directory / "sweep.json"
        counts.append(len(read_document(path, SweepDocument).probes) if path.exists() else 0)

    found = scripted(
        answer(), directory, replace(PLAN, search=replace(PLAN.search, highest_rps=10.0)), Notes(on_started=look)
    )
    assert counts == list(range(len(found.probes)))


def test_a_server_that_carries_everything_is_at_least_the_highest_rate(tmp_path: Path) -> None:
    found = scripted(answer(), tmp_path / "brief", replace(PLAN, search=replace(PLAN.search, highest_rps=10.0)))
    assert (found.verdict, found.capacity_rps, found.first_failed_rps) == (CapacityVerdict.AT_LEAST, 10.0, None)
    assert found.tallies == ["8.00: 1 of 1", "10.00: 2 of 2"]
    assert (found.resolution_share, found.limited_by) == (None, None)


def test_a_server_that_carries_nothing_has_no_capacity(tmp_path: Path) -> None:
    found = scripted(answer(tpot_s=0.2), tmp_path / "brief")
    assert (found.verdict, found.capacity_rps, found.limited_by) == (CapacityVerdict.NONE, None, LimitedBy.TPOT)
    assert found.first_failed_rps == pytest.approx(0.125)


def test_a_server_that_only_fails_ends_in_a_clean_answer(tmp_path: Path) -> None:  # R14
    found = scripted(fail(0.05), tmp_path / "brief")
    assert (found.verdict, found.limited_by) == (CapacityVerdict.NONE, LimitedBy.FAILURES)
    assert found.warm_up is not None
    assert not found.warm_up.is_warm
    text = (tmp_path / "brief" / "sweep.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


@pytest.mark.process
def test_rates_above_the_warmed_one_are_warmed_first(tmp_path: Path) -> None:
    host = ScriptedHost(Scripted(answer()))
    plan = replace(PLAN, search=replace(PLAN.search, highest_rps=20.0, pass_repeats=0))
    _, found = run_virtual(sweep(host, tmp_path / "brief", plan))
    assert plan.warm_up_rps == 12.5
    assert [row.rate_rps for row in found.probes] == [8.0, 10.0, 12.5, 15.625, 19.5312, 20.0]
    assert len(host.waits) == 2 + len(found.probes) + 3  # two blocks, the windows, a block for each rate above 12.5


def test_warm_up_never_goes_above_the_highest_rate() -> None:
    assert replace(PLAN, search=replace(PLAN.search, highest_rps=9.0)).warm_up_rps == 9.0


def test_when_the_time_is_up_the_bracket_so_far_is_the_answer(tmp_path: Path) -> None:
    host = ScriptedHost(Scripted(answer()))
    _, found = run_virtual(sweep(host, tmp_path / "brief", replace(PLAN, max_minutes=1.0)))
    assert found.verdict is CapacityVerdict.UNFINISHED
    assert found.capacity_rps is not None
    assert found.first_failed_rps is None
    assert host.engine.open == 0
    assert read_document(tmp_path / "brief" / "sweep.json", SweepDocument) == found


def test_a_sweep_that_had_no_time_for_one_window_has_no_answer(tmp_path: Path) -> None:
    found = scripted(answer(), tmp_path / "brief", replace(PLAN, max_minutes=0.01))
    assert (found.verdict, found.capacity_rps, found.probes) == (CapacityVerdict.UNFINISHED, None, [])


def test_a_window_that_stays_invalid_ends_the_sweep_with_cause_and_remedy(tmp_path: Path) -> None:
    host = ScriptedHost(Scripted(blocking(0.05, answer())), needs_text=True, count=words)
    with pytest.raises(
        InvalidMeasurement,
        match=r"at 8 req/s is invalid 3 times: send lag p99 .* ms is above 10 ms: raise --load-workers",
    ):
        run_virtual(sweep(host, tmp_path / "brief"))
    found = read_document(tmp_path / "brief" / "sweep.json", SweepDocument)
    assert [(row.outcome, row.is_valid) for row in found.probes] == [(None, False)] * 3
    assert found.capacity_rps is None
    texts = [each.messages for each in host.engine.received]
    assert len(set(texts)) == len(texts)


def test_an_invalid_window_is_measured_again_and_is_no_observation(tmp_path: Path) -> None:
    host = ScriptedHost(Scripted(answer()))
    notes = Notes()

    def spoil_the_first_window() -> None:
        host.engine.act = blocking(0.05, answer()) if len(notes.steps) == 1 else answer()

    notes.on_started = spoil_the_first_window
    plan = replace(PLAN, search=replace(PLAN.search, highest_rps=8.0))
    _, found = run_virtual(sweep(host, tmp_path / "brief", plan, notes))
    assert [(row.repeat, row.outcome) for row in found.probes] == [(0, None), (0, Outcome.PASS), (1, Outcome.PASS)]
    assert found.tallies == ["8.00: 2 of 2"]


def test_an_engine_that_dies_leaves_what_was_measured(tmp_path: Path) -> None:
    host = ScriptedHost(Scripted(answer()))
    notes = Notes()

    def die_in_the_third_window() -> None:
        if len(notes.steps) == 3:
            host.death = EngineError("the server exited with 137")

    notes.on_started = die_in_the_third_window
    with pytest.raises(EngineError, match="exited with 137"):
        run_virtual(sweep(host, tmp_path / "brief", view=notes))
    found = read_document(tmp_path / "brief" / "sweep.json", SweepDocument)
    assert [row.rate_rps for row in found.probes] == [8.0, 10.0]
    assert (found.verdict, found.capacity_rps) == (CapacityVerdict.UNFINISHED, 10.0)


def test_a_timeout_of_somebody_else_is_not_the_end_of_our_time(tmp_path: Path) -> None:
    host = ScriptedHost(Scripted(answer()), death=TimeoutError("the connection timed out"))
    with pytest.raises(TimeoutError, match="the connection timed out"):
        run_virtual(sweep(host, tmp_path / "brief"))


def test_the_anchor_rate_is_measured_whole_with_all_repeats_and_changes_no_answer(
    measured: Path, tmp_path: Path
) -> None:
    found = simulated(tmp_path / "brief", then=lambda sweeper: sweeper.anchor(14.0))
    anchors = [row for row in found.probes if row.purpose == "anchor"]
    assert [(row.rate_rps, row.repeat) for row in anchors] == [(14.0, 0), (14.0, 1)]
    assert all(row.is_whole and row.window_s == pytest.approx(12.0) for row in anchors)
    searched = read_document(measured / "sweep.json", SweepDocument)
    assert (found.capacity_rps, found.tallies) == (searched.capacity_rps, searched.tallies)


def test_an_anchor_at_a_low_rate_has_windows_long_enough_for_its_percentile(tmp_path: Path) -> None:
    async def main() -> SweepDocument:
        plan = replace(PLAN, search=replace(PLAN.search, highest_rps=8.0))
        sweeper, _ = await sweep(ScriptedHost(Scripted(answer())), tmp_path / "brief", plan)
        return await sweeper.anchor(0.4)

    anchors = [row for row in run_virtual(main()).probes if row.purpose == "anchor"]
    assert [(row.is_valid, row.is_whole) for row in anchors] == [(True, True), (True, True)]
    assert [row.window_s for row in anchors] == pytest.approx([PLAN.window_s(0.4)] * 2)


@pytest.mark.process
def test_whole_windows_of_the_search_are_not_measured_again_for_the_anchor(tmp_path: Path) -> None:
    async def at_capacity(sweeper: Sweeper) -> SweepDocument:
        capacity_rps = conclude(sweeper.seen, CapacityVerdict.FOUND).capacity_rps
        assert capacity_rps is not None
        return await sweeper.anchor(capacity_rps)

    found = simulated(tmp_path / "brief", then=at_capacity)
    assert {row.purpose for row in found.probes} == {"search"}


ECONOMICAL = replace(SIMULATED, mode=replace(BRIEF, duration_s=60.0, strategy=Strategy.ECONOMICAL))


@pytest.fixture(scope="module")
def economical(tmp_path_factory: pytest.TempPathFactory) -> SweepDocument:
    """An economical sweep with windows of 60 s, and the anchor at its start rate."""
    directory = tmp_path_factory.mktemp("economical") / "brief"
    return simulated(directory, ECONOMICAL, then=lambda sweeper: sweeper.anchor(8.0))


@pytest.mark.process
def test_an_economical_sweep_says_so_and_judges_windows_of_a_rate_together(economical: SweepDocument) -> None:
    assert (economical.strategy, economical.verdict) == (Strategy.ECONOMICAL, CapacityVerdict.FOUND)
    searched = [row for row in economical.probes if row.purpose == "search"]
    assert [searched[0].rate_rps, searched[0].window_s] == [8.0, pytest.approx(40.0)]
    assert [row.repeat for row in searched] == list(range(len(searched)))
    for rate_rps, holds in ((economical.capacity_rps, True), (economical.first_failed_rps, False)):
        results = [row.objectives for row in searched if row.rate_rps == rate_rps]
        together = [[(each.over, each.n) for each in same] for same in zip(*results, strict=True)]
        pooled = [[sum(part) for part in zip(*same, strict=True)] for same in together]
        assert all(over <= int(n * 0.10 + 1e-9) for over, n in pooled) is holds


@pytest.mark.process
def test_an_anchor_is_measured_at_full_length_though_the_search_had_a_short_window_there(
    economical: SweepDocument,
) -> None:
    anchors = [row for row in economical.probes if row.purpose == "anchor"]
    assert [(row.rate_rps, row.repeat) for row in anchors] == [(8.0, 0), (8.0, 1)]
    assert all(row.is_whole and row.window_s == pytest.approx(60.0) for row in anchors)


@pytest.mark.process
def test_an_economical_sweep_has_an_estimate_near_its_capacity(economical: SweepDocument) -> None:
    assert economical.capacity_rps is not None
    assert economical.capacity_estimate_rps == pytest.approx(economical.capacity_rps, rel=0.15)


@pytest.mark.process
def test_an_economical_sweep_takes_no_longer_than_was_announced(economical: SweepDocument) -> None:
    searched = [row for row in economical.probes if row.purpose == "search"]
    assert len(searched) <= ECONOMICAL.most_windows
    assert sum(row.load_s for row in searched) / 60 < ECONOMICAL.longest_minutes(start_passes=True)


def test_what_was_loaded_and_saved_is_summed(measured: Path) -> None:
    found = read_document(measured / "sweep.json", SweepDocument)
    assert found.load_s == pytest.approx(sum(row.load_s for row in found.probes))
    assert found.saved_s == pytest.approx(sum(row.saved_s for row in found.probes))


def test_a_sweep_that_is_interrupted_leaves_nothing_running(tmp_path: Path) -> None:
    host = ScriptedHost(Scripted(answer()))

    async def main() -> None:
        task = asyncio.create_task(sweep(host, tmp_path / "brief"))
        await asyncio.sleep(20.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
    assert host.engine.open == 0


def test_a_simulated_sweep_takes_no_longer_than_was_announced(measured: Path) -> None:
    found = read_document(measured / "sweep.json", SweepDocument)
    assert len(found.probes) <= SIMULATED.most_windows
    assert found.load_s / 60 < SIMULATED.longest_minutes(start_passes=False)
    assert replace(SIMULATED, max_minutes=1.5).longest_minutes(start_passes=True) == 1.5
