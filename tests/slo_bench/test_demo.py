"""The demo finds what was hidden, and does not claim what it cannot see."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.run_directory import ExperimentDocument, SweepDocument, TruthDocument, read_document
from slo_bench.cli import main

LABELS = ["moe-default", "moe-tuned", "moe-same", "moe-default-2"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert main(["demo", "--runs-dir", str(runs)]) == 0
    return runs / "demo-1"


def test_four_arms_share_one_anchor_rate_and_have_all_windows_there(demo: Path) -> None:
    document = read_document(demo / "experiment.json", ExperimentDocument)
    assert document.arms == LABELS
    for label in LABELS:
        sweep = read_document(demo / "arms" / label / "sweep.json", SweepDocument)
        whole = {row.repeat for row in sweep.probes if row.rate_rps == document.anchor_rps and row.is_whole}
        assert whole == {0, 1, 2}


def test_the_hidden_truth_is_what_was_promised(demo: Path) -> None:
    truth = read_document(demo / "truth.json", TruthDocument)
    effects = {arm.label: arm.true_tpot_effect_share for arm in truth.arms}
    assert effects["moe-tuned"] == pytest.approx(-0.03, abs=0.003)
    assert effects["moe-same"] == 0.0
    assert truth.drift_share == pytest.approx(-0.026, abs=0.004)


def test_a_plain_comparison_is_wrong_about_the_arm_without_a_difference(demo: Path) -> None:
    truth = read_document(demo / "truth.json", TruthDocument)
    claims = {arm.label: arm.plain_claim_share for arm in truth.arms}
    assert claims["moe-same"] is not None
    assert claims["moe-same"] < -0.02


def test_the_note_says_simulated_first_and_does_not_call_the_equal_arm_different(demo: Path) -> None:
    note = (demo / "note.md").read_text()
    assert note.startswith("# SIMULATED")
    row = next(line for line in note.splitlines() if line.startswith("| `moe-same` | nothing"))
    assert "within drift" in row or "below resolution" in row
    assert "Truth beside finding" in note


def test_a_second_demo_gets_its_own_directory(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert "demo-N" in capsys.readouterr().out
    assert demo.name == "demo-1"
