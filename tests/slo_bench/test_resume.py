"""Which stored run may go on, and what is said of one that may not."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reports.run_directory import RunDocument, read_document, to_json
from slo_bench.cli import main

SHORT = ["--duration", "20", "--ramp", "3", "--repeats", "0", "--max-request-rate", "8"]
SWEEP = ["sweep", "--engine", "simulated", "--label", "x", *SHORT]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder of one simulated sweep that came to its end."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(SWEEP) == 0
    return folder / "runs"


@pytest.fixture
def runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "runs"))


def unfinished(runs: Path, **changes: object) -> None:
    """Make it a run that was killed."""
    path = runs / "x" / "run.json"
    stored = read_document(path, RunDocument)
    path.write_text(to_json(stored.model_copy(update={"status": "running", "ended_utc": None, **changes})))


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the program says when it refuses, with nothing changed on disk."""
    before = contents(Path())
    assert main(argv) == 2
    assert contents(Path()) == before
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


def test_a_finished_run_gives_its_answer_again(runs: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "--resume"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "[SIMULATED] x is done: nothing is left to measure"
    assert "capacity: at least 8.00 req/s" in said[1]
    assert contents(runs) == contents(finished)


@pytest.mark.process
def test_a_killed_simulated_run_comes_to_the_same_bytes(
    runs: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished(runs)
    (runs / "x" / "sweep.json").unlink()
    (runs / "x" / "probes" / "07-99.00.parquet").write_bytes(b"of a search that went another way")
    (runs / "x" / ".sweep.json.partial").write_text("{")
    assert main([*SWEEP, "--resume"]) == 0
    assert "runs again from its start" in capsys.readouterr().err
    assert contents(runs) == contents(finished)


@pytest.mark.process
def test_a_run_that_was_killed_before_run_json_begins(
    runs: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(runs / "x")
    (runs / "x").mkdir()
    (runs / "x" / ".run.json.partial").write_text("{")
    assert main([*SWEEP, "--resume"]) == 0
    assert "capacity" in capsys.readouterr().err
    assert contents(runs) == contents(finished)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--seed", "3"], "seed was 0, is 3"),
        (["--duration", "30"], "duration was 20.0, is 30.0"),
        (["--simulated", "max_num_seqs=8"], 'simulated was [], is ["max_num_seqs=8"]'),
        (["--tpot-p99-ms", "40"], "tpot_p99_ms was null, is 40.0"),
    ],
)
def test_another_configuration_is_refused_with_the_difference(
    runs: Path, more: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished(runs)
    said = refusal([*SWEEP, *more, "--resume"], capsys)
    assert said.startswith("slo-bench: x cannot be resumed: ")
    assert reason in said


def test_another_engine_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished(runs)
    argv = ["sweep", "--base-url", "http://127.0.0.1:1", "--label", "x", *SHORT, "--resume"]
    assert "engine was simulated, is attached" in refusal(argv, capsys)


def test_another_machine_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = read_document(runs / "x" / "run.json", RunDocument).environment
    unfinished(runs, environment={**here, "cpus": 96})
    assert "cpus was 96, is " in refusal([*SWEEP, "--resume"], capsys)


@pytest.mark.process
def test_how_long_it_may_take_is_no_part_of_what_is_measured(runs: Path) -> None:
    unfinished(runs)
    assert main([*SWEEP, "--resume", "--max-minutes", "60", "--yes"]) == 0


def test_where_nothing_is_nothing_is_resumed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(runs)
    assert "there is nothing to resume in runs/x: leave --resume out" in refusal([*SWEEP, "--resume"], capsys)


def test_the_run_that_goes_on_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.is_dir()
    argv = [word for word in SWEEP if word not in ("--label", "x")]
    assert "--resume needs the --label" in refusal([*argv, "--resume"], capsys)


def test_a_folder_of_something_else_is_no_sweep(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "x" / "run.json").unlink()
    assert "runs/x is no sweep, it has no run.json" in refusal([*SWEEP, "--resume"], capsys)
    (runs / "x" / "arms").mkdir()
    assert "slo-bench experiment PLAN.toml --resume" in refusal([*SWEEP, "--resume"], capsys)


def test_a_comparison_is_no_sweep(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished(runs, kind="compare")
    assert "is no sweep but a compare" in refusal([*SWEEP, "--resume"], capsys)


def test_a_damaged_document_is_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "x" / "run.json").write_text('{"schema_version": 1')
    assert "run.json cannot be read" in refusal([*SWEEP, "--resume"], capsys)


def test_an_unfinished_run_in_the_way_is_one_that_could_go_on(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "exists already" in refusal(SWEEP, capsys)
    unfinished(runs)
    assert "holds an unfinished run of this configuration: go on with --resume" in refusal(SWEEP, capsys)
    said = refusal([*SWEEP, "--seed", "3"], capsys)
    assert "exists already" in said
    assert "--resume" not in said


def test_a_dry_run_changes_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished(runs)
    before = contents(runs)
    assert main([*SWEEP, "--resume", "--dry-run"]) == 0
    assert "windows of 20 s" in capsys.readouterr().err
    assert contents(runs) == before


@pytest.mark.process
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_run_whose_last_line_tells_how_it_goes_on(tmp_path: Path, signum: signal.Signals) -> None:
    program = [str(Path(sys.executable).with_name("slo-bench"))]
    argv = ["sweep", "--engine", "simulated", "--mode", "full", "--max-request-rate", "13"]
    process = subprocess.Popen([*program, *argv], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        deadline_s = time.monotonic() + 30
        while not (tmp_path / "runs/sweep-1/sweep.json").exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        process.send_signal(signum)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + signum
    command = " ".join([*argv, "--label", "sweep-1", "--resume"])
    assert said.splitlines()[-1] == (
        f"slo-bench: stopped by {signum.name}; what was measured is kept; go on with: slo-bench {command}"
    )
    assert json.loads((tmp_path / "runs/sweep-1/run.json").read_text())["status"] == "interrupted"
    assert subprocess.run([*program, *command.split()], cwd=tmp_path, check=False).returncode == 0
    assert json.loads((tmp_path / "runs/sweep-1/run.json").read_text())["status"] == "done"
