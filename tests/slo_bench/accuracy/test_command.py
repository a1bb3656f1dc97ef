"""`slo-bench gate`, and the gate of sweeps and experiments, from the outside, on the simulated engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gates.accuracy import AccuracyOutcome
from gates.capacity import CapacityVerdict
from reports.gates_document import GatesDocument
from reports.run_directory import ExperimentDocument, RunDocument, SweepDocument, read_document
from reports.text_document import read_text
from slo_bench.cli import main

BRIEF = ["--duration", "20", "--ramp", "3", "--repeats", "1", "--resolution", "0.2"]


@pytest.fixture
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 30 items that lies beside the runs."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "items.jsonl"
    rows = [{"question": f"What is {n} + {n}?", "answer": f"{n} + {n} is {2 * n}\n#### {2 * n}"} for n in range(30)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def engine(items: Path, wrong_above: int | None = None) -> list[str]:
    limit = [] if wrong_above is None else ["--simulated", f"wrong_above_in_flight={wrong_above}"]
    return ["--engine", "simulated", "--simulated", f"answers={items}", "--gsm8k-file", str(items), *limit]


def gates(directory: Path) -> GatesDocument:
    return read_document(directory / "gates.json", GatesDocument)


@pytest.mark.process
def test_what_is_right_alone_passes_and_fails_in_a_crowd(
    items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crooked = ["gate", *engine(items, 4)]
    assert main([*crooked, "--concurrency", "1", "--label", "alone", "--accuracy-floor", "0.9"]) == 0
    assert main([*crooked, "--concurrency", "40", "--label", "crowd", "--against", "runs/alone"]) == 1
    said = capsys.readouterr().err
    assert "30 of 30 right, 100.0 %" in said
    assert "accuracy gate: fail: worse than the first arm" in said
    alone, crowd = (gates(tmp_path / "runs" / label) for label in ("alone", "crowd"))
    assert (alone.outcome, alone.right, crowd.outcome, crowd.right) == ("pass", 30, "fail", 4)
    run = read_document(tmp_path / "runs" / "crowd" / "run.json", RunDocument)
    assert (run.kind, run.status, run.engine) == ("gate", "done", "simulated")


@pytest.mark.process
def test_answers_that_are_all_cut_are_inconclusive(items: Path, tmp_path: Path) -> None:
    assert main(["gate", *engine(items), "--token-budget", "256", "--label", "x", "--accuracy-floor", "0.5"]) == 0
    rows = [{"question": f"What is {n} + {n}?", "answer": "so " * 300 + "#### 1"} for n in range(30)]
    items.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    assert main(["gate", *engine(items), "--token-budget", "256", "--label", "cut", "--accuracy-floor", "0.5"]) == 3
    found = gates(tmp_path / "runs" / "cut")
    assert (found.outcome, found.cut_off) == (AccuracyOutcome.INCONCLUSIVE, 30)
    assert {row.finish_reason for row in found.items} == {"length"}


def test_random_weights_are_not_applicable_and_start_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gate", "--model", "m", "--label", "x", "--", "--load-format", "dummy"]) == 0
    assert "accuracy gate: not applicable: random weights" in capsys.readouterr().err
    assert gates(tmp_path / "runs" / "x").outcome is AccuracyOutcome.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["gate"], "no engine"),
        (["gate", "--model", "m", "--against", "nowhere"], "does not exist"),
        (["gate", "--model", "m", "--gsm8k-file", "none.jsonl"], "--gsm8k-file none.jsonl does not exist"),
    ],
)
def test_what_cannot_be_asked_is_exit_code_2_before_anything_is_started(
    argv: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert word in capsys.readouterr().err.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_sweep_whose_gate_fails_claims_no_capacity_and_keeps_its_windows(
    items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    floor = ["--accuracy-floor", "0.9"]
    assert main(["sweep", *engine(items), *BRIEF, *floor, "--label", "right"]) == 0
    assert main(["sweep", *engine(items, 20), *BRIEF, *floor, "--label", "wrong"]) == 1
    assert "capacity: none claimed; the accuracy gate failed" in capsys.readouterr().err
    right, wrong = (
        read_document(tmp_path / "runs" / label / "sweep.json", SweepDocument) for label in ("right", "wrong")
    )
    assert right.capacity_rps is not None
    assert (wrong.verdict, wrong.capacity_rps) == (CapacityVerdict.GATE_FAILED, None)
    assert (wrong.withheld_capacity_rps, wrong.probes) == (right.capacity_rps, right.probes)
    asked = gates(tmp_path / "runs" / "wrong").asked
    assert asked is not None
    assert asked.concurrency > 20  # it is the crowd at capacity that shows the fault


@pytest.mark.process
def test_a_gate_that_does_not_fit_the_context_is_refused_before_load_starts(
    items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--simulated", "max_model_len=600", "--length-scale", "0.02"]
    assert main(["sweep", *engine(items), *short, *BRIEF, "--label", "x"]) == 2
    assert "GSM8K answers need at least 256 tokens" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.process
def test_an_experiment_holds_each_arm_against_the_first_and_a_failed_one_has_no_capacity(
    items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f"""
        label = "crowd"
        [all]
        engine = "simulated"
        gsm8k_file = "{items}"
        duration = 20
        ramp = 3
        repeats = 1
        resolution = 0.2
        [[arm]]
        label = "base"
        simulated = ["answers={items}"]
        [[arm]]
        label = "kernel"
        simulated = ["answers={items}", "wrong_above_in_flight=4"]
        """,
        encoding="utf-8",
    )
    assert main(["experiment", str(plan)]) == 1
    directory = tmp_path / "runs" / "crowd"
    assert read_document(directory / "experiment.json", ExperimentDocument).anchor_rps is not None
    arms = {label: gates(directory / "arms" / label) for label in ("base", "kernel", "base-2")}
    assert {label: each.outcome.value for label, each in arms.items()} == {
        "base": "not judged",
        "kernel": "fail",
        "base-2": "pass",
    }
    sweeps = {label: read_document(directory / "arms" / label / "sweep.json", SweepDocument) for label in arms}
    assert sweeps["kernel"].capacity_rps is None
    assert sweeps["base-2"].capacity_rps is not None
    text = read_text(directory / "arms" / "kernel")
    assert text is not None
    assert text.not_measured == "the engine gives no prompt_logprobs"
    assert "SIMULATED" in capsys.readouterr().err

    assert main(["experiment", str(plan), "--gate", "none", "--runs-dir", "ungated"]) == 0
    assert not list((tmp_path / "ungated").rglob("gates.json"))
