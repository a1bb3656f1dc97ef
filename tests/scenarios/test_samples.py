"""Run directories of earlier versions are read: tests/samples/vN holds what a version wrote, and is never refreshed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.arms import BlockComparison
from reports.effect_document import EffectDocument
from reports.gates_document import GatesDocument
from reports.metrics import read_metrics
from reports.note import note
from reports.requests import read_requests
from reports.run_directory import (
    Document,
    EngineDocument,
    ExperimentDocument,
    RunDocument,
    SweepDocument,
    TruthDocument,
    read_document,
)
from reports.summary import summary_of
from reports.summary_document import SummaryDocument
from slo_bench.doctor.document import DoctorFile
from slo_bench.report.runs import read_runs
from traffic.errors import UsageError

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
VERSIONS = sorted(SAMPLES.iterdir())
MODELS: dict[str, type[Document]] = {
    "doctor.json": DoctorFile,
    "effect.json": EffectDocument,
    "engine.json": EngineDocument,
    "experiment.json": ExperimentDocument,
    "gates.json": GatesDocument,
    "run.json": RunDocument,
    "summary.json": SummaryDocument,
    "sweep.json": SweepDocument,
    "truth.json": TruthDocument,
}


def samples(pattern: str) -> list[Path]:
    return sorted(path for version in VERSIONS for path in version.rglob(pattern))


def named(path: Path) -> str:
    return str(path.relative_to(SAMPLES))


@pytest.mark.parametrize("path", samples("*.json"), ids=named)
def test_each_document_of_an_earlier_version_is_read(path: Path) -> None:
    assert isinstance(read_document(path, MODELS[path.name]), Document)


@pytest.mark.parametrize("path", samples("*.parquet"), ids=named)
def test_each_table_of_an_earlier_version_is_read(path: Path) -> None:
    if path.name == "metrics.parquet":
        assert read_metrics(path).samples
    else:
        assert read_requests(path).records


@pytest.mark.parametrize("version", VERSIONS, ids=lambda each: each.name)
def test_a_version_has_a_sample_of_every_document(version: Path) -> None:
    assert {path.name for path in version.rglob("*.json")} == set(MODELS)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda each: each.name)
def test_a_whole_experiment_of_an_earlier_version_makes_a_note_and_a_summary(version: Path) -> None:
    directory = version / "levers"
    experiment = read_runs([directory])
    assert not isinstance(experiment, BlockComparison)
    assert note(directory).startswith("# SIMULATED")
    assert [arm.label for arm in summary_of(experiment).arms] == ["default", "faster", "default-2"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_document_of_a_later_version_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content = json.loads(next(iter(VERSIONS[-1].rglob(name))).read_text())
    path = tmp_path / name
    path.write_text(json.dumps({**content, "schema_version": 99}))
    with pytest.raises(UsageError, match=r"schema_version 99 .* later version of slo-bench") as refused:
        read_document(path, MODELS[name])
    assert "\n" not in str(refused.value)
