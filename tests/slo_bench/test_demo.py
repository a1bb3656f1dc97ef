"""The demo finds what was hidden, and does not claim what it cannot see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reports.run_directory import ExperimentDocument, SweepDocument, TruthDocument, read_document
from slo_bench.cli import COMMANDS
from slo_bench.config import DemoOptions
from slo_bench.demo import ARMS, demo, quiet_tpot_s
from slo_bench.modes import mode_named
from traffic.virtual_time import run_virtual

LABELS = ["moe-default", "moe-tuned", "moe-same", "moe-default-2"]
PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "lab-notes" / "0001-demo"
SHORT = replace(
    mode_named("quick"),
    duration_s=20,
    ramp_s=5,
    resolution_share=0.25,
    repeats=1,
    warm_block_s=8,
    warm_blocks=2,
)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo of short windows, with its note kept in a second place."""
    runs = tmp_path_factory.mktemp("runs")
    assert run_virtual(demo(DemoOptions(runs_dir=runs, lab_notes=runs / "notes"), SHORT)) == 0
    return runs


@pytest.mark.process
def test_four_arms_share_one_anchor_rate_and_have_all_windows_there(short: Path) -> None:
    directory = short / "demo-1"
    document = read_document(directory / "experiment.json", ExperimentDocument)
    assert document.arms == LABELS
    for label in LABELS:
        sweep = read_document(directory / "arms" / label / "sweep.json", SweepDocument)
        whole = {row.repeat for row in sweep.probes if row.rate_rps == document.anchor_rps and row.is_whole}
        assert whole == {0, 1}


@pytest.mark.process
def test_the_note_says_simulated_first_and_puts_truth_beside_finding(short: Path) -> None:
    note = (short / "demo-1" / "note.md").read_text()
    assert note.startswith("# SIMULATED")
    assert "Truth beside finding" in note


@pytest.mark.process
def test_every_link_of_the_kept_note_leads_to_a_file_and_no_rows_are_kept(short: Path) -> None:
    note = (short / "notes" / "0001-demo.md").read_text()
    links = [part.partition(")")[0] for part in note.split("](")[1:]]
    assert links
    assert [link for link in links if not (short / "notes" / link).exists()] == []
    assert list((short / "notes").rglob("*.parquet")) == []


def test_the_tuned_arm_is_truly_3_percent_faster_and_the_same_arm_truly_the_same() -> None:
    tpot_s = {arm.label: quiet_tpot_s(arm.quiet, 11.1803, 0) for arm in ARMS}
    assert tpot_s["moe-tuned"] / tpot_s["moe-default"] - 1 == pytest.approx(-0.03, abs=0.001)
    assert tpot_s["moe-same"] == tpot_s["moe-default"] == tpot_s["moe-default-2"]


def test_the_published_demo_hid_what_it_promises_and_claims_nothing_of_the_equal_arm() -> None:
    truth = read_document(PUBLISHED / "truth.json", TruthDocument)
    assert truth.drift_share == pytest.approx(-0.026, abs=0.002)
    claims = {arm.label: arm.plain_claim_share for arm in truth.arms}
    assert claims["moe-same"] is not None
    assert claims["moe-same"] < -0.05, "a plain comparison is far off about an arm without a difference"
    note = PUBLISHED.with_suffix(".md").read_text()
    row = next(line for line in note.splitlines() if line.startswith("| `moe-same` | nothing"))
    assert "within drift" in row


def test_the_demo_is_a_command() -> None:
    assert COMMANDS["demo"].find() == (DemoOptions, demo)
