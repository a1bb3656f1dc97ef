"""The documents: what they refuse, and one line for whoever wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from reports.run_directory import (
    SCHEMA_VERSION,
    Document,
    EngineDocument,
    ExperimentDocument,
    RunDocument,
    SweepDocument,
    TruthArm,
    TruthDocument,
    WarmUp,
    read_document,
    to_json,
)
from traffic.errors import UsageError

EXPERIMENT: dict[str, Any] = {
    "schema_version": 1,
    "label": "moe",
    "title": "Is tuning worth it?",
    "seed": 0,
    "engine": "simulated",
    "arms": ["moe-default", "moe-tuned", "moe-default-2"],
    "baseline": "moe-default",
    "drift_arm": "moe-default-2",
    "anchor_rps": 11.1803,
    "started_utc": "2026-12-01T10:00:00+00:00",
    "ended_utc": None,
}
RUN: dict[str, Any] = {
    "schema_version": 1,
    "kind": "sweep",
    "label": "one",
    "status": "done",
    "reason": None,
    "engine": "simulated",
    "seed": 0,
    "config": {"mode": "quick", "nested": {"a": [1, 2.5, None]}},
    "environment": {"python": "3.11.7"},
    "started_utc": "2026-12-01T10:00:00+00:00",
    "ended_utc": None,
}
ENGINE: dict[str, Any] = {
    "schema_version": 1,
    "kind": "vllm",
    "model": "Qwen/Qwen3-30B-A3B-FP8",
    "max_model_len": 16384,
    "version": "0.24.0",
    "takes_forced_length": True,
    "start": 0,
    "details": {"µ": "ü"},
}
TRUTH = TruthDocument(
    schema_version=1,
    arms=[
        TruthArm(
            label="a", hidden="nothing", true_capacity_rps=11.34, true_tpot_effect_share=None, plain_claim_share=-0.01
        )
    ],
    drift_share=None,
    cold_start="pays once for each batch shape",
)
DOCUMENTS: list[Document] = [ExperimentDocument(**EXPERIMENT), RunDocument(**RUN), EngineDocument(**ENGINE), TRUTH]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: type(each).__name__)
def test_what_is_read_is_what_was_written(document: Document, tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    path.write_text(to_json(document), encoding="utf-8")
    assert read_document(path, type(document)) == document


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: type(each).__name__)
def test_a_document_is_written_for_people_in_the_order_of_its_model(document: Document) -> None:
    text = to_json(document)
    assert text.endswith("}\n")
    assert text.startswith('{\n  "schema_version": 1,\n')
    assert list(json.loads(text)) == list(type(document).model_fields)
    assert "\\u" not in text


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_a_version_that_this_reader_does_not_know_is_refused(version: int) -> None:
    with pytest.raises(ValidationError, match="schema_version"):
        RunDocument(**{**RUN, "schema_version": version})


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        RunDocument(**{**RUN, "colour": "blue"})


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_never_written(number: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        WarmUp(is_warm=True, rate_rps=number, block_s=30.0, tpot_mean_s=[])
    with pytest.raises(ValidationError, match="finite"):
        WarmUp(is_warm=True, rate_rps=8.0, block_s=30.0, tpot_mean_s=[number])
    assert json.loads(to_json(RunDocument(**{**RUN, "config": {"x": number}})))["config"] == {"x": None}


def test_a_document_does_not_change_after_it_was_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunDocument(**RUN).label = "another"


@pytest.mark.parametrize("label", ["", ".", "..", "a/b", "a\\b", "a\0b"])
def test_an_arm_that_is_no_name_of_a_folder_is_refused(label: str) -> None:
    with pytest.raises(ValidationError, match="no name of a folder"):
        ExperimentDocument(**{**EXPERIMENT, "arms": ["moe-default", label], "drift_arm": None})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"arms": ["a", "a"], "baseline": "a", "drift_arm": None}, "listed twice"),
        ({"arms": [], "drift_arm": None}, "at least 1 item"),
        ({"baseline": "other"}, "baseline 'other' is not among the arms"),
        ({"drift_arm": "other"}, "drift arm 'other' is not another of the arms"),
        ({"drift_arm": "moe-default"}, "is not another of the arms"),
        ({"anchor_rps": 0.0}, "greater than 0"),
        ({"engine": "cloud"}, "'simulated', 'attached' or 'vllm'"),
    ],
)
def test_an_experiment_that_makes_no_sense_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        ExperimentDocument(**{**EXPERIMENT, **changes})


def spoil(path: Path, how: str) -> Path:
    if how == "half a file":
        path.write_text(to_json(RunDocument(**RUN))[:100])
    elif how == "no text":
        path.write_bytes(b"\xff\xfe\x00")
    elif how == "another document":
        path.write_text(to_json(EngineDocument(**ENGINE)))
    elif how == "a newer version":
        path.write_text(json.dumps({**RUN, "schema_version": 99}))
    elif how == "a folder":
        path.mkdir()
    elif how == "a file for a folder":
        path.write_text("")
        return path / "run.json"
    return path


@pytest.mark.parametrize(
    "how", ["half a file", "no text", "another document", "a newer version", "a folder", "a file for a folder"]
)
def test_a_file_that_cannot_be_read_is_one_line_that_names_it(how: str, tmp_path: Path) -> None:
    path = spoil(tmp_path / "run.json", how)
    with pytest.raises(UsageError, match=r"run\.json") as told:
        read_document(path, RunDocument)
    assert "\n" not in str(told.value)


def test_the_field_at_fault_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**RUN, "seed": "zero"}))
    with pytest.raises(UsageError, match=r"run\.json cannot be read: seed: "):
        read_document(path, RunDocument)


def test_an_absent_file_asks_whether_this_is_a_run_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sweep.json does not exist; is .* a run directory\?"):
        read_document(tmp_path / "sweep.json", SweepDocument)
