"""The program from the outside: exit codes, one line on a mistake, nothing half-written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import slo_bench
from reports.cost import CostDocument
from reports.power_document import PowerDocument
from reports.run_directory import ProbeRow, SweepDocument, read_document
from slo_bench.cli import COMMANDS, main

QUICK = ["--duration", "20", "--ramp", "3", "--repeats", "1", "--resolution", "0.2"]
PROGRAM = [str(Path(sys.executable).with_name("slo-bench"))]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_lists_every_command_and_each_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in text
        assert command.summary in text
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
    assert main([]) == 2


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"slo-bench {slo_bench.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["fly"], "no command 'fly'"),
        (["sweep"], "--engine simulated"),
        (["sweep", "--engine", "simulated", "--label", "a/b"], "label"),
        (["sweep", "--engine", "simulated", "--mode", "fast"], "'smoke', 'quick' or 'full'"),
        (["sweep", "--engine", "simulated", "--workload", "poems"], "'chat-mix', 'fixed'"),
        (["sweep", "--engine", "simulated", "--sweep-start", "0"], "above 0"),
        (["sweep", "--engine", "simulated", "--sweep-start", "-3"], "above 0"),
        (["sweep", "--engine", "simulated", "--max-request-rate", "0"], "above 0"),
        (["sweep", "--engine", "simulated", "--sweep-growth", "1"], "above 1"),
        (["sweep", "--engine", "simulated", "--slo", "ttft:99:2000"], "ttft:p99:2000"),
        (["sweep", "--engine", "simulated", "--length-scale", "3"], "--length-scale 1.728"),
        (["sweep", "--engine", "simulated", "--simulated", "speed=3"], "names are"),
        (["sweep", "--engine", "simulated", "--runs-dir", "/proc/none"], "cannot write"),
        (["sweep", "--engine", "simulated", "--runs-dir", "file"], "not a folder"),
        (["sweep", "--engine", "simulated", "--label", "used"], "exists already"),
        (["probe", "--engine", "simulated", "--request-rate", "0"], "greater than 0"),
        (["probe", "--engine", "simulated", "--request-rate", "1", "--concurrency", "1"], "either"),
        (["probe", "--engine", "simulated", "--request-rate", "8", "--output", "runs"], "is a folder"),
        (["simulate", "--port", "0"], "--port"),
        (["simulate", "--", "--max-num-seqs", "4"], "no arguments after --"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "runs" / "used").mkdir(parents=True)
    (tmp_path / "runs" / "used" / "sweep.json").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(argv) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("slo-bench: ")
    assert word in said[-1]
    assert "Traceback" not in "".join(said)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unreachable_url_is_exit_code_4_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--base-url", "http://127.0.0.1:9", "--label", "gone", "--gate", "none"]) == 4
    assert "cannot reach http://127.0.0.1:9" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_tells_windows_and_minutes_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--engine", "simulated", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "at most 20 windows of 120 s" in said
    assert "minutes" in said
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_ends_with_capacity_repeats_resolution_limit_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--engine", "simulated", "--label", "x", "--usd-per-hour", "3.6", *QUICK]) == 0
    said = capsys.readouterr().err.strip().splitlines()
    last = said[-7:]
    assert all(line.startswith("[SIMULATED] ") for line in last)
    assert "capacity: " in last[0]
    assert " of 2; " in last[0]
    assert "resolution" in last[0]
    assert "limited by tpot" in last[1]
    assert "cause: " in last[2]
    assert "of the misses" in last[3]
    assert last[4].endswith("power: not measured: the engine is simulated")
    assert "cost: $" in last[5]
    assert last[6].endswith("files: runs/x")
    assert "at most $" in said[0]
    directory = tmp_path / "runs" / "x"
    assert read_document(directory / "sweep.json", SweepDocument).capacity_rps is not None
    cost = read_document(directory / "cost.json", CostDocument)
    assert (cost.usd_per_hour, cost.gpus) == (3.6, None)
    assert cost.per_million_output_usd is not None
    power = read_document(directory / "power.json", PowerDocument)
    assert (power.source, power.not_measured) == (None, "the engine is simulated")
    assert not (directory / "power.parquet").exists()


@pytest.mark.process
def test_the_same_seed_gives_the_same_bytes_times_of_day_included(tmp_path: Path) -> None:
    for runs in ("one", "two"):
        assert (
            main(
                [
                    "sweep",
                    "--engine",
                    "simulated",
                    "--label",
                    "x",
                    "--runs-dir",
                    runs,
                    *QUICK,
                    "--max-request-rate",
                    "9",
                ]
            )
            == 0
        )
    files = [path.relative_to(tmp_path / "one") for path in sorted((tmp_path / "one").rglob("*")) if path.is_file()]
    assert len(files) > 4
    for file in files:
        if file.name != "run.json":  # it holds the command line, which names the folder
            assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


@pytest.mark.process
def test_no_passing_rate_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--engine", "simulated", "--slo", "ttft:p99:1", *QUICK, "--max-minutes", "600"]) == 1
    assert "capacity: none" in capsys.readouterr().err


@pytest.mark.process
def test_a_cap_that_passes_is_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["sweep", "--engine", "simulated", "--sweep-start", "4", "--max-request-rate", "4.5", *QUICK]
    assert main(argv) == 0
    assert "capacity: at least 4.50 req/s" in capsys.readouterr().err


@pytest.mark.process
def test_time_that_runs_out_is_exit_code_5_and_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--engine", "simulated", "--label", "x", *QUICK, "--max-minutes", "4"]) == 5
    assert "unfinished" in capsys.readouterr().err
    assert read_document(tmp_path / "runs/x/sweep.json", SweepDocument).probes


def test_a_probe_prints_one_row_of_json_and_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["probe", "--engine", "simulated", "--request-rate", "8", "--duration", "30", "--json"]
    assert main([*argv, "--output", "row.json"]) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "row.json").read_text()
    assert ProbeRow.model_validate_json(printed).rate_rps == 8.0


def test_a_failing_probe_is_exit_code_1_and_an_invalid_one_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--engine", "simulated", "--request-rate", "16", "--duration", "30"]) == 1
    assert main(["probe", "--engine", "simulated", "--request-rate", "2", "--duration", "10"]) == 3
    assert "too few for a p99" in capsys.readouterr().err


def test_a_closed_loop_is_named_so_and_claims_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["probe", "--engine", "simulated", "--concurrency", "16", "--duration", "60", "--ramp", "5", "--json"]
    assert main(argv) == 0
    output = capsys.readouterr()
    row = json.loads(output.out)
    assert (row["rate_rps"], row["concurrency"]) == (None, 16)
    assert "[closed loop]" in output.err
    assert "16 in flight" in output.err


@pytest.mark.process
def test_it_works_in_a_folder_with_packages_of_the_same_names(tmp_path: Path) -> None:
    for name in ("cloud", "reports", "traffic", "gates", "slo_bench"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    dry = ["sweep", "--engine", "simulated", "--dry-run"]
    for program in (PROGRAM, [sys.executable, "-P", "-m", "slo_bench"]):
        run = subprocess.run([*program, *dry], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stderr
    (tmp_path / "slo_bench" / "__init__.py").unlink()
    (tmp_path / "slo_bench").rmdir()
    run = subprocess.run(
        [sys.executable, "-m", "slo_bench", *dry], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.process
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_with_its_code_and_keeps_what_was_measured(
    signum: signal.Signals, code: int, tmp_path: Path
) -> None:
    argv = [*PROGRAM, "sweep", "--engine", "simulated", "--label", "x", "--mode", "full"]
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " pass " in line:
                process.send_signal(signum)
                break
        rest = process.stderr.read()
        assert process.wait(timeout=30) == code, rest
    assert "what was measured is kept" in rest
    assert "Traceback" not in rest
    assert json.loads((tmp_path / "runs/x/run.json").read_text())["status"] == "interrupted"
    assert read_document(tmp_path / "runs/x/sweep.json", SweepDocument).probes
