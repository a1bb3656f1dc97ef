"""summary.json: every number is one of the run directory's, and its schema stands in docs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from reports.arms import read_experiment
from reports.effect_document import EffectDocument
from reports.gates_document import GatesDocument
from reports.run_directory import SweepDocument, read_document, to_json
from reports.summary import plain, summary_of, summary_of_comparison
from reports.summary_document import SummaryDocument, summary_schema
from reports.telling import tell

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "samples" / "v1"


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_each_arm_has_its_capacity_and_its_means_at_the_anchor_rate(small: Path) -> None:
    summary = summary_of(read_experiment(small))
    default, tuned, again = summary.arms
    assert [arm.label for arm in summary.arms] == ["moe-default", "moe-tuned", "moe-default-2"]
    sweep = read_document(small / "arms" / "moe-tuned" / "sweep.json", SweepDocument)
    assert (tuned.capacity_rps, tuned.first_failed_rps, tuned.tallies) == (
        sweep.capacity_rps,
        sweep.first_failed_rps,
        sweep.tallies,
    )
    rows = [each for each in sweep.probes if each.rate_rps == summary.anchor_rps]
    assert tuned.anchor is not None
    assert tuned.anchor.n == sum(each.n for each in rows)
    assert tuned.anchor.tpot_mean_s == pytest.approx(sum(each.tpot_mean_s or 0 for each in rows) / len(rows))
    assert default.directory == "arms/moe-default"
    assert again.facts == default.facts


def test_its_sentences_are_the_storys_as_plain_text(small: Path) -> None:
    experiment = read_experiment(small)
    summary, story = summary_of(experiment), tell(experiment)
    assert (summary.answer, len(summary.bullets), summary.struck) == (story.kind, len(story.bullets), story.struck)
    for said in (summary.headline, *summary.bullets, *summary.cautions):
        assert not re.search(r"[`*\\]", said)
    assert summary.headline == story.headline.replace("`", "").replace("*", "")
    assert plain("**a** `b_c` \\<d\\>") == "a b_c <d>"


def test_the_decision_is_the_storys(small: Path) -> None:
    summary, decided = summary_of(read_experiment(small)), tell(read_experiment(small)).decided
    assert summary.decision is not None
    assert decided is not None
    assert (summary.decision.decision, summary.decision.ground, summary.decision.arm) == (
        decided.decision,
        decided.ground,
        "moe-tuned",
    )
    alone = {"arms": ["moe-default"], "drift_arm": None}
    change(small / "experiment.json", **alone)
    (small / "truth.json").unlink()
    assert summary_of(read_experiment(small)).decision is None


def test_effects_stand_beside_the_drift_of_the_same_metric(small: Path) -> None:
    experiment = read_experiment(small)
    found = summary_of(experiment).effects
    assert {each.arm for each in found} == {"moe-tuned"}
    tpot = found[0]
    assert tpot.metric == "mean TPOT"
    assert tpot.share == pytest.approx(-0.03, abs=0.002)
    drift = experiment.drift(tpot.metric)
    assert drift is not None
    assert (tpot.drift_share, tpot.drift_interval) == (drift.share, drift.interval)


def test_windows_are_the_whole_valid_ones(small: Path) -> None:
    tuned = summary_of(read_experiment(small)).arms[1]
    assert len(tuned.windows) == sum(
        each.is_valid for each in read_document(small / "arms/moe-tuned/sweep.json", SweepDocument).probes
    )
    rates = [each.rate_rps for each in tuned.windows]
    assert rates == sorted(rates)


def test_the_load_is_what_was_recorded_of_it(small: Path) -> None:
    config = {
        "workload": "chat-mix",
        "objectives": ["ttft:p99:2000"],
        "model": "m",
        "burstiness": None,
        "mode": "quick",
    }
    change(small / "arms" / "moe-default" / "run.json", config=config)
    load = summary_of(read_experiment(small)).load
    assert load == {"mode": "quick", "workload": "chat-mix", "objectives": ["ttft:p99:2000"]}


def test_gpus_are_named_where_some_were_seen(small: Path) -> None:
    gpu = {"name": "NVIDIA H200", "uuid": "GPU-1", "driver_version": "580.1"}
    change(small / "arms" / "moe-default" / "run.json", environment={"gpus": [gpu, gpu], "slo_bench": "0.1"})
    summary = summary_of(read_experiment(small))
    assert (summary.gpus, summary.gpu_uuids) == (["NVIDIA H200"] * 2, ["GPU-1"] * 2)
    assert "NVIDIA H200" in summary.arms[0].facts["machine.gpus"]
    assert "machine.gpus" not in summary.arms[1].facts


def test_the_accuracy_gate_of_an_arm_is_in_it(small: Path) -> None:
    gate = read_document(SAMPLES / "gates.json", GatesDocument)
    (small / "arms" / "moe-tuned" / "gates.json").write_text(to_json(gate))
    default, tuned, _ = summary_of(read_experiment(small)).arms
    assert default.accuracy is None
    assert tuned.accuracy is not None
    assert (tuned.accuracy.right, tuned.accuracy.n, tuned.accuracy.outcome) == (gate.right, gate.n, gate.outcome)


def test_a_smoke_run_and_a_simulated_engine_are_marked(small: Path) -> None:
    summary = summary_of(read_experiment(small))
    assert (summary.is_simulated, summary.is_smoke) == (True, False)
    assert summary_of(read_experiment(SAMPLES / "levers")).is_smoke


def test_an_experiment_without_an_anchor_rate_has_no_effects(small: Path) -> None:
    change(small / "experiment.json", anchor_rps=None)
    summary = summary_of(read_experiment(small))
    assert summary.effects == []
    assert [arm.anchor for arm in summary.arms] == [None, None, None]


def test_a_comparison_has_its_sentence_and_effect() -> None:
    path = SAMPLES / "levers" / "compare" / "default--faster" / "effect.json"
    document = read_document(path, EffectDocument)
    summary = summary_of_comparison(document)
    assert summary.kind == "compare"
    assert summary.headline.startswith("Between these two server instances mean TPOT of faster is 15.7 % lower")
    assert summary.comparisons[0].share == document.primary.share
    in_experiment = summary_of(read_experiment(SAMPLES / "levers")).comparisons
    assert in_experiment == summary.comparisons


def test_what_is_read_is_what_was_written(small: Path, tmp_path: Path) -> None:
    summary = summary_of(read_experiment(small))
    path = tmp_path / "summary.json"
    path.write_text(to_json(summary))
    assert read_document(path, SummaryDocument) == summary


def test_every_number_of_the_samples_summary_stands_in_its_run_directory() -> None:
    """Means over windows and effects are computed; everything else is found by its value."""
    summary = json.loads(to_json(summary_of(read_experiment(SAMPLES / "levers"))))
    known = {
        number for path in (SAMPLES / "levers").rglob("*.json") for number in _numbers(json.loads(path.read_text()))
    }
    for arm in summary["arms"]:
        del arm["anchor"]
    del summary["effects"]
    assert set(_numbers(summary)) <= known


def _numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [each for inner in value.values() for each in _numbers(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in _numbers(inner)]
    return [value] if isinstance(value, float) else []


def test_the_schema_in_docs_is_that_of_the_model() -> None:
    path = ROOT / "docs" / "summary.schema.json"
    if os.environ.get("SLO_BENCH_GOLDEN") == "write":
        path.write_text(summary_schema())
    assert path.read_text() == summary_schema()


def test_an_arm_keeps_the_way_it_ended_and_what_answered(small: Path) -> None:
    arm = small / "arms" / "moe-tuned"
    change(arm / "run.json", status="interrupted", reason="stopped by a signal")
    change(arm / "engine.json", version="0.32.0")
    tuned = summary_of(read_experiment(small)).arms[1]
    assert (tuned.status, tuned.reason, tuned.version) == ("interrupted", "stopped by a signal", "0.32.0")
