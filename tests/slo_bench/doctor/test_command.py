"""The doctor on this very machine: what it finds depends on who else is here, so its words are held to its file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slo_bench.cli import main
from slo_bench.doctor.command import line
from slo_bench.doctor.document import CheckRow, DoctorDocument, Fitness, find_doctor, this_client

NAMES = [
    *("open files", "local ports", "CPU governor", "clock source", "cores", "GPU", "power", "vLLM"),
    *("idle client", "pauses", "steal time", "UTC", "client"),
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_a_finding_is_one_line_with_its_remedy_last() -> None:
    row = CheckRow(name="open files", fitness=Fitness.WARN, figure="1024", remedy="ulimit -n 65536")
    assert line(row) == "warn  open files     1024: ulimit -n 65536"
    assert line(CheckRow(name="GPU", fitness=Fitness.OK, figure="no GPU seen")) == "ok    GPU            no GPU seen"


@pytest.mark.process
def test_it_prints_a_line_per_check_and_keeps_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    code = main(["doctor", "--seconds", "2"])
    kept = find_doctor(tmp_path / "slo-bench" / "doctor.json", this_client())
    assert kept is not None
    assert capsys.readouterr().out.splitlines() == [line(row) for row in kept.checks]
    assert [row.name for row in kept.checks] == NAMES
    assert code == (0 if kept.is_fit else 3)
    assert kept.is_fit == (kept.ceiling is not None)
    assert os.sched_getaffinity(0) == cores


@pytest.mark.process
def test_json_is_the_document_alone_and_workers_share_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--seconds", "2", "--load-workers", "2", "--json"])
    document = DoctorDocument.model_validate_json(capsys.readouterr().out)
    assert document.load_workers == 2
    assert document.key == this_client()
    assert json.loads(document.model_dump_json())["checks"][0]["name"] == "open files"
