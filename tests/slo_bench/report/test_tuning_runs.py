"""A search for MoE kernels beside the sweeps that used its file: one note that tells what it took."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reports.arms import Experiment
from reports.kernels import KERNELS_NAME, KernelsDocument
from reports.run_directory import RunDocument, read_document
from reports.tuning_document import read_tuning
from slo_bench.bare_run.names import KNOWN
from slo_bench.cli import main
from slo_bench.report.runs import read_runs
from traffic.errors import UsageError

MODEL = "Qwen/Qwen3-30B-A3B-FP8"
LABELS = ("moe-default", "moe-tuning", "moe-tuned", "moe-default-2")
MORE = {
    "moe-default": {"MODE": "smoke"},
    "moe-tuning": {"TUNE_MOE": "1", "TUNE_MINUTES": "3"},
    "moe-tuned": {"MODE": "smoke", "TUNED_MOE_DIR": "~/moe-tuned"},
    "moe-default-2": {"MODE": "smoke"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run directories of the four published labels, on a machine that simulates."""
    home = tmp_path_factory.mktemp("home")
    (home / ".config" / "slo-bench").mkdir(parents=True)
    machine = 'engine = "simulated"\ntune = { batch_size = ["64"] }\n'
    (home / ".config" / "slo-bench" / "machine.toml").write_text(machine)
    for label in LABELS:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(home)
            patch.setenv("HOME", str(home))
            for name in frozenset().union(*KNOWN.values()):
                patch.delenv(name, raising=False)
            for name, value in {"MODEL": MODEL, "LABEL": label, **MORE[label]}.items():
                patch.setenv(name, value)
            assert main(["run"]) == 0
    return {label: home / "runs" / label for label in LABELS}


def test_the_four_published_runs_make_one_note_with_the_minutes_of_the_search(
    tmp_path: Path, runs: dict[str, Path]
) -> None:
    assert main(["report", *map(str, runs.values()), "--output", str(tmp_path / "note.md")]) == 0
    note = (tmp_path / "note.md").read_text()
    minutes = read_tuning(runs["moe-tuning"]).document.minutes
    told = re.search(r"`moe-tuning` searched (\S+) minutes", note)
    assert told is not None
    assert minutes is not None
    assert float(told[1]) == pytest.approx(minutes, abs=0.5)
    assert "SIMULATED" in note.splitlines()[0]
    assert "moe-tuned" in note


def test_the_search_is_no_arm_and_the_last_sweep_is_the_drift_arm(runs: dict[str, Path]) -> None:
    found = read_runs(list(runs.values()))
    assert isinstance(found, Experiment)
    assert [arm.label for arm in found.arms] == ["moe-default", "moe-tuned", "moe-default-2"]
    assert (found.document.baseline, found.document.drift_arm) == ("moe-default", "moe-default-2")
    (tuning,) = found.tunings
    assert tuning.label == "moe-tuning"


def test_a_tuned_sweep_that_is_the_last_is_an_arm_of_its_own_and_no_repeat_of_the_default(
    runs: dict[str, Path],
) -> None:
    found = read_runs([runs[label] for label in ("moe-default", "moe-tuning", "moe-tuned")])
    assert isinstance(found, Experiment)
    assert found.document.drift_arm is None
    assert [arm.label for arm in found.compared] == ["moe-tuned"]
    swapped = read_runs([runs[label] for label in ("moe-tuned", "moe-default")])
    assert isinstance(swapped, Experiment)
    assert swapped.document.drift_arm is None


def test_the_tuned_folder_stands_in_the_configuration_with_the_mark_and_nowhere_else(runs: dict[str, Path]) -> None:
    configs = {
        label: read_document(runs[label] / "run.json", RunDocument).config
        for label in ("moe-default", "moe-tuned", "moe-default-2")
    }
    home = runs["moe-tuned"].parents[1]
    assert configs["moe-tuned"]["simulated_tuned_moe_dir"] == f"SIMULATED {home / 'moe-tuned'}"
    assert configs["moe-tuned"]["tuned_moe_dir"] is None
    assert not any("simulated_tuned_moe_dir" in configs[label] for label in ("moe-default", "moe-default-2"))


def test_where_the_search_stands_among_the_directories_changes_nothing(runs: dict[str, Path]) -> None:
    found = read_runs([runs[label] for label in ("moe-tuning", "moe-default", "moe-tuned", "moe-default-2")])
    assert isinstance(found, Experiment)
    assert found.document.baseline == "moe-default"


def test_the_sweep_that_used_the_file_has_its_kernel_times(runs: dict[str, Path]) -> None:
    kernels = [read_document(runs[label] / KERNELS_NAME, KernelsDocument) for label in ("moe-tuning", "moe-tuned")]
    assert kernels[0] == kernels[1]
    assert not (runs["moe-default"] / KERNELS_NAME).exists()


def test_a_search_alone_is_told_in_one_line(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs["moe-tuning"])]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (f"slo-bench: {runs['moe-tuning']} is a search: give it beside the sweeps that used its file\n")


def test_a_search_that_came_to_no_end_is_told_in_one_line(tmp_path: Path, runs: dict[str, Path]) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text((runs["moe-tuning"] / "run.json").read_text())
    with pytest.raises(UsageError, match="begun holds no finished search, its run is done") as refused:
        read_runs([runs["moe-default"], tmp_path / "begun"])
    assert "\n" not in str(refused.value)
