"""What stands in an experiment's way is told in one line, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_bench.experiment.command import ExperimentOptions, experiment
from traffic.errors import UsageError
from traffic.virtual_time import run_virtual

PLAN = """
drift = false

[[arm]]
label = "only"
engine = "simulated"
"""


def refusal(tmp_path: Path, *, resume: bool) -> str:
    path = tmp_path / "two.toml"
    path.write_text(PLAN)
    options = ExperimentOptions(plan=path, runs_dir=tmp_path / "runs", resume=resume)
    with pytest.raises(UsageError) as refused:
        run_virtual(experiment(options))
    return str(refused.value)


def test_where_nothing_is_nothing_is_resumed(tmp_path: Path) -> None:
    assert "there is nothing to resume in" in refusal(tmp_path, resume=True)


def test_a_run_of_its_own_is_no_experiment(tmp_path: Path) -> None:
    (tmp_path / "runs" / "two").mkdir(parents=True)
    (tmp_path / "runs" / "two" / "run.json").write_text("{}")
    assert "holds a run of its own and no experiment" in refusal(tmp_path, resume=True)


def test_an_unfinished_experiment_in_the_way_could_go_on(tmp_path: Path) -> None:
    (tmp_path / "runs" / "two" / "arms").mkdir(parents=True)
    assert "holds this experiment, unfinished: go on with --resume" in refusal(tmp_path, resume=False)
    (tmp_path / "runs" / "two" / "note.md").write_text("# done")
    assert "exists already" in refusal(tmp_path, resume=False)
