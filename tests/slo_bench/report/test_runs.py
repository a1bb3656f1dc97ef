"""What a set of directories is: an experiment, a comparison, sweeps side by side, or a mistake in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gates.effect import EffectMetric
from reports.arms import BlockComparison, Experiment
from slo_bench.report.runs import read_runs
from traffic.errors import UsageError

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "v1"
LEVERS = SAMPLES / "levers"


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def arms(tmp_path: Path) -> list[Path]:
    """Three sweeps in folders of their own, in the order of measurement."""
    labels = ("default", "faster", "default-2")
    return [Path(shutil.copytree(LEVERS / "arms" / label, tmp_path / label)) for label in labels]


def together(directories: list[Path]) -> Experiment:
    found = read_runs(directories)
    assert isinstance(found, Experiment)
    return found


def test_an_experiment_is_read_as_it_is() -> None:
    assert together([LEVERS]).document.title == "A faster step against the default"


def test_one_sweep_is_an_experiment_of_one_arm() -> None:
    found = together([SAMPLES / "sweep-smoke"])
    assert (found.document.title, found.document.arms, found.drift_arm) == ("sweep-smoke", ["sweep-smoke"], None)
    assert found.document.anchor_rps == found.baseline.sweep.capacity_rps


def test_several_sweeps_have_the_first_as_baseline_and_the_repeat_of_it_as_drift_arm(arms: list[Path]) -> None:
    found = together(arms)
    assert found.document.baseline == "default"
    assert found.document.drift_arm == "default-2"
    assert [arm.label for arm in found.compared] == ["faster"]
    assert found.effect(found.compared[0], EffectMetric.TPOT_MEAN).n_pairs == 2


def test_a_last_sweep_with_other_settings_is_no_drift_arm(arms: list[Path]) -> None:
    assert together(arms[:2]).drift_arm is None
    change(arms[2] / "engine.json", version="0.33.0")
    assert together(arms).drift_arm is None


def test_of_somebody_elses_server_only_the_label_says_that_nothing_was_changed(arms: list[Path]) -> None:
    for directory in arms:
        change(directory / "run.json", engine="attached")
    assert together(arms).document.drift_arm == "default-2"
    change(arms[2] / "run.json", label="after")
    assert together(arms).drift_arm is None


def test_equal_labels_become_the_folders_names(arms: list[Path]) -> None:
    for directory in arms:
        change(directory / "run.json", label="nightly")
    assert together(arms).document.arms == ["default", "faster", "default-2"]
    again = shutil.copytree(arms[0], arms[0].parent / "more" / "default")
    change(again / "run.json", label="nightly")
    assert together([arms[0], again]).document.arms == ["default-1", "default-2"]


def test_a_comparison_is_found_in_its_run_and_in_its_own_folder(tmp_path: Path) -> None:
    folder = LEVERS / "compare" / "default--faster"
    assert isinstance(read_runs([folder]), BlockComparison)
    shutil.copytree(LEVERS / "compare", tmp_path / "compare")
    shutil.copy(LEVERS / "arms" / "default" / "run.json", tmp_path)
    change(tmp_path / "run.json", kind="compare")
    found = read_runs([tmp_path])
    assert isinstance(found, BlockComparison)
    assert found.directory == tmp_path / "compare" / "default--faster"
    shutil.rmtree(tmp_path / "compare")
    with pytest.raises(UsageError, match="ended before its first pair"):
        read_runs([tmp_path])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "vllm"}, "has the engine vllm"),
        ({"seed": 1}, "has the seed 1"),
        ({"config": {"workload": "fixed", "mode": "smoke"}}, "has the workload fixed"),
    ],
    ids=["engine", "seed", "load"],
)
def test_sweeps_that_have_no_partners_are_not_put_together(
    arms: list[Path], changes: dict[str, Any], said: str
) -> None:
    change(arms[1] / "run.json", **changes)
    with pytest.raises(UsageError, match=said):
        read_runs(arms)


def test_a_run_is_no_arm_beside_itself(arms: list[Path]) -> None:
    with pytest.raises(UsageError, match="is given twice"):
        read_runs([arms[0], arms[1], arms[0]])


def test_an_experiment_is_not_put_beside_a_sweep(arms: list[Path]) -> None:
    with pytest.raises(UsageError, match="of the kind experiment: only sweeps are put together"):
        read_runs([arms[0], LEVERS])


def test_what_is_no_run_directory_is_told_in_one_line(tmp_path: Path, arms: list[Path]) -> None:
    file = tmp_path / "file"
    file.touch()
    (arms[0] / "engine.json").unlink()
    (arms[1] / "sweep.json").write_text("{half")
    (arms[2] / "sweep.json").unlink()
    change(arms[2] / "run.json", status="interrupted", reason="stopped by a signal")
    for directory, said in (
        (tmp_path / "none", "does not exist"),
        (file, "is no folder"),
        (tmp_path, "is no run directory"),
        (arms[0], "engine.json does not exist"),
        (arms[1], "sweep.json cannot be read"),
        (arms[2], "holds no window, its run is interrupted: stopped by a signal"),
    ):
        with pytest.raises(UsageError, match=said) as refused:
            read_runs([directory])
        assert "\n" not in str(refused.value)
