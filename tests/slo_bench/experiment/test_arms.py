"""Arms in order: what was measured before a stop is taken as it is, also inside an arm."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from stopping import PLAN, RECORD, Watching, decision, hosted, scripted

from reports.run_directory import ExperimentDocument, RunDocument, SweepDocument, read_document
from slo_bench.earlier import LATER_STARTS
from slo_bench.experiment.arms import Arm, Experiment, Progress, run_experiment
from slo_bench.hosts import Host
from traffic.virtual_time import run_virtual


def arms(starts: list[tuple[str, int]]) -> list[Arm]:
    """Two arms, the second with a faster server; starts: which were started, and with which number."""

    def host(label: str, limit: int) -> Callable[[int], Host]:
        def start(number: int) -> Host:
            starts.append((label, number))
            return hosted(scripted(number, limit=limit))

        return start

    return [Arm(replace(RECORD, label=label), host(label, limit)) for label, limit in (("a", 12), ("b", 17))]


def run(directory: Path, starts: list[tuple[str, int]], view: Watching | None = None) -> Progress:
    """Begin, or go on with what the directory holds."""
    made = Experiment("two", "Two arms", arms(starts), None, PLAN)
    goes_on = directory.exists()
    return run_virtual(run_experiment(made, directory, view or Watching(), lambda _: None, goes_on=goes_on))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was on disk before each window, in folders 1, 2, ...; the whole experiment is `whole`."""
    folder = tmp_path_factory.mktemp("experiment")

    def keep(number: int) -> None:
        shutil.copytree(folder / "whole", folder / str(number))

    run(folder / "whole", [], Watching(keep))
    return folder


def sweep(directory: Path, arm: str) -> SweepDocument:
    return read_document(directory / "arms" / arm / "sweep.json", SweepDocument)


@pytest.mark.process
def test_an_experiment_that_ends_before_any_window_comes_to_the_same_decision(stages: Path, tmp_path: Path) -> None:
    in_first = len(sweep(stages / "whole", "a").probes)
    windows = in_first + len(sweep(stages / "whole", "b").probes)
    for number in range(2, windows + 1):
        directory = tmp_path / str(number)
        shutil.copytree(stages / str(number), directory)
        starts: list[tuple[str, int]] = []
        view = Watching()
        progress = run(directory, starts, view)
        assert len(view.steps) == windows - number + 1
        for arm in ("a", "b"):
            assert decision(progress.found[arm]) == decision(sweep(stages / "whole", arm)), (number, arm)
        if number <= in_first:
            assert starts == [("a", LATER_STARTS), ("b", 1)]
        elif number == in_first + 1:  # its run.json was there, so it had begun
            assert starts == [("b", 1 + LATER_STARTS)]
        told = read_document(directory / "experiment.json", ExperimentDocument)
        assert told.started_utc == read_document(directory / "arms" / "a" / "run.json", RunDocument).started_utc


@pytest.mark.process
def test_an_arm_stopped_inside_its_anchor_windows_measures_only_those_that_are_missing(
    stages: Path, tmp_path: Path
) -> None:
    before, rows = sweep(stages / "whole", "a").probes, sweep(stages / "whole", "b").probes
    assert [row.purpose for row in rows[-2:]] == ["anchor", "anchor"]
    shutil.copytree(stages / str(len(before) + len(rows)), tmp_path / "two")
    view = Watching()
    run(tmp_path / "two", [], view)
    assert [(step.rate_rps, step.repeat) for step in view.steps] == [(rows[-1].rate_rps, rows[-1].repeat)]
    found = sweep(tmp_path / "two", "b").probes
    assert [row.server_start for row in found] == [0] * (len(rows) - 1) + [1]
