"""A run that was stopped goes on: whatever it left behind, the decision is that of a run that was not stopped."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from stopping import BRIEF, PLAN, RECORD, SLO, Quiet, Watching, decision, hosted, scripted

from gates.capacity import Strategy
from reports.run_directory import EngineDocument, RunDocument, SweepDocument, read_document
from slo_bench.earlier import read_earlier
from slo_bench.run import run_sweep
from slo_bench.store import RunStore
from slo_bench.sweep import Sweeper, SweepPlan
from traffic.errors import EngineError
from traffic.virtual_time import run_virtual

ANCHOR_RPS = 9.0

Then = Callable[[Sweeper, SweepDocument], Awaitable[SweepDocument]]


class Refusing(AbstractAsyncContextManager[Quiet]):
    """A host whose server does not answer."""

    async def __aenter__(self) -> Quiet:
        raise EngineError("nobody listens")

    async def __aexit__(self, *_: object) -> None:
        """Nothing was started."""


async def at_the_anchor(sweeper: Sweeper, _: SweepDocument) -> SweepDocument:
    return await sweeper.anchor(ANCHOR_RPS)


async def run(
    directory: Path,
    *,
    plan: SweepPlan = PLAN,
    host: Quiet | None = None,
    view: Watching | None = None,
    then: Then | None = at_the_anchor,
) -> SweepDocument:
    """Begin, or go on with what the directory holds."""
    store = RunStore(directory)
    earlier = read_earlier(directory, SLO) if store.has_begun else None
    server = host or scripted(0 if earlier is None else earlier.server_start)
    return await run_sweep(hosted(server), plan, store, view or Watching(), record=RECORD, earlier=earlier, then=then)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a whole run had on disk before each of its windows, in folders 1, 2, ...; the run itself is `whole`."""
    folder = tmp_path_factory.mktemp("stages")

    def keep(number: int) -> None:
        shutil.copytree(folder / "whole", folder / str(number))

    run_virtual(run(folder / "whole", view=Watching(keep)))
    return folder


def kept(stages: Path) -> Iterator[Path]:
    yield from (each for each in sorted(stages.iterdir()) if each.name.isdecimal())


@pytest.mark.process
def test_a_run_that_ends_before_any_of_its_windows_comes_to_the_same_decision(stages: Path, tmp_path: Path) -> None:
    whole = read_document(stages / "whole" / "sweep.json", SweepDocument)
    assert [row.purpose for row in whole.probes][-2:] == ["anchor", "anchor"]
    assert len(list(kept(stages))) == len(whole.probes) >= 7
    for stage in kept(stages):
        directory = tmp_path / stage.name
        shutil.copytree(stage, directory)
        view = Watching()
        found = run_virtual(run(directory, view=view))
        assert decision(found) == decision(whole), stage.name
        assert len(view.steps) == len(whole.probes) - int(stage.name) + 1
        assert [row.server_start for row in found.probes] == [
            int(number >= int(stage.name)) for number in range(1, len(whole.probes) + 1)
        ]
        assert (found.capacity_estimate_rps, found.proven_fail_rps) == (
            whole.capacity_estimate_rps,
            whole.proven_fail_rps,
        )


@pytest.mark.process
def test_it_says_how_often_and_when_it_was_resumed_and_keeps_its_first_start(stages: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brief"
    shutil.copytree(stages / "3", directory)
    before = read_document(directory / "run.json", RunDocument)

    def die(_: int) -> None:
        raise EngineError("the server is gone")

    with pytest.raises(EngineError, match="gone"):
        run_virtual(run(directory, view=Watching(die)))
    after = read_document(directory / "run.json", RunDocument)
    assert (after.status, after.started_utc, len(after.resumed_utc)) == ("failed", before.started_utc, 1)
    found = run_virtual(run(directory))
    last = read_document(directory / "run.json", RunDocument)
    assert (last.status, len(last.resumed_utc), last.resumed_utc[:1]) == ("done", 2, after.resumed_utc)
    assert {row.server_start for row in found.probes} == {0, 2}
    assert [each.server_start for each in found.earlier_warm_ups] == [0]
    assert found.warm_up is not None
    assert found.warm_up.server_start == 2


@pytest.mark.process
def test_files_of_each_server_start_are_kept(stages: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brief"
    shutil.copytree(stages / "3", directory)
    (directory / "engine.log").write_text("the first server's")
    run_virtual(run(directory))
    assert (directory / "starts" / "0" / "engine.log").read_text() == "the first server's"
    assert read_document(directory / "starts" / "0" / "engine.json", EngineDocument).start == 0
    assert read_document(directory / "engine.json", EngineDocument).start == 1


@pytest.mark.process
def test_no_prompt_of_the_first_part_is_sent_again(tmp_path: Path) -> None:
    first, second = scripted(needs_text=True), scripted(start=1, needs_text=True)

    def die(number: int) -> None:
        if number == 3:
            raise EngineError("the server is gone")

    with pytest.raises(EngineError):
        run_virtual(run(tmp_path / "brief", host=first, view=Watching(die)))
    run_virtual(run(tmp_path / "brief", host=second))
    sent = [{each.messages for each in host.engine.received} for host in (first, second)]
    assert len(sent[0]) > 100
    assert not sent[0] & sent[1]


def test_a_window_without_its_row_is_measured_again_and_its_file_stays(stages: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brief"
    shutil.copytree(stages / "3", directory)
    orphan = directory / "probes" / "03-12.50.parquet"
    shutil.copy(stages / "whole" / "probes" / "01-8.00.parquet", orphan)
    held = orphan.read_bytes()
    found = run_virtual(run(directory))
    assert decision(found) == decision(read_document(stages / "whole" / "sweep.json", SweepDocument))
    assert orphan.read_bytes() == held
    named = [row.requests_file for row in found.probes]
    assert "probes/03-12.50.parquet" not in named
    assert named[2] is not None
    assert named[2].startswith("probes/04-")
    assert len(set(named)) == len(named)


@pytest.mark.process
def test_half_written_files_are_removed(stages: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brief"
    shutil.copytree(stages / "3", directory)
    halves = [directory / ".sweep.json.partial", directory / "probes" / ".03-12.50.parquet.partial"]
    for half in halves:
        half.write_bytes(b"PAR1 and no")
    found = run_virtual(run(directory))
    assert decision(found) == decision(read_document(stages / "whole" / "sweep.json", SweepDocument))
    assert not any(half.exists() for half in halves)


@pytest.mark.process
def test_a_run_that_stopped_in_its_warm_up_goes_on(stages: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brief"
    directory.mkdir()
    for name in ("run.json", "engine.json"):
        shutil.copy(stages / "1" / name, directory / name)
    found = run_virtual(run(directory))
    assert decision(found) == decision(read_document(stages / "whole" / "sweep.json", SweepDocument))
    assert found.earlier_warm_ups == []


def test_time_that_runs_out_in_the_second_warm_up_loses_nothing(stages: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brief"
    shutil.copytree(stages / "4", directory)
    before = read_document(directory / "sweep.json", SweepDocument)
    found = run_virtual(run(directory, plan=replace(PLAN, max_minutes=0.01), then=None))
    assert (found.probes, found.tallies) == (before.probes, before.tallies)


@pytest.mark.process
def test_an_interrupted_run_says_so_and_goes_on(stages: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brief"

    async def interrupted() -> None:
        task = asyncio.create_task(run(directory))
        await asyncio.sleep(60.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(interrupted())
    assert read_document(directory / "run.json", RunDocument).status == "interrupted"
    assert read_document(directory / "sweep.json", SweepDocument).probes
    found = run_virtual(run(directory))
    assert decision(found) == decision(read_document(stages / "whole" / "sweep.json", SweepDocument))


def test_a_server_that_never_answers_again_is_written_down(stages: Path, tmp_path: Path) -> None:
    directory = tmp_path / "brief"
    shutil.copytree(stages / "2", directory)

    async def main() -> SweepDocument:
        earlier = read_earlier(directory, SLO)
        return await run_sweep(Refusing(), PLAN, RunStore(directory), Watching(), record=RECORD, earlier=earlier)

    with pytest.raises(EngineError):
        run_virtual(main())
    run_document = read_document(directory / "run.json", RunDocument)
    assert (run_document.status, run_document.reason) == ("failed", "nobody listens")
    assert len(read_document(directory / "sweep.json", SweepDocument).probes) == 1


@pytest.mark.process
def test_the_economical_strategy_goes_on_too(tmp_path: Path) -> None:
    plan = replace(PLAN, mode=replace(BRIEF, strategy=Strategy.ECONOMICAL))

    def keep(number: int) -> None:
        if number in (2, 3):
            shutil.copytree(tmp_path / "whole", tmp_path / f"stage-{number}")

    whole = run_virtual(run(tmp_path / "whole", plan=plan, view=Watching(keep), then=None))
    for number in (2, 3):
        view = Watching()
        found = run_virtual(run(tmp_path / f"stage-{number}", plan=plan, view=view, then=None))
        assert decision(found) == decision(whole)
        assert len(view.steps) == len(whole.probes) - number + 1
