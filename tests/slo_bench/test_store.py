"""The run directory's writer: whole files or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engines import probe_facts, record

from reports.requests import read_requests
from reports.run_directory import EngineDocument, read_document
from slo_bench.hosts import EngineFacts
from slo_bench.store import RunStore, free_name, write_text, write_whole
from traffic.errors import UsageError

FACTS = probe_facts([record(index) for index in range(3)])


def test_a_file_is_written_whole_with_its_folders(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "file.json", "µ\n")
    assert (tmp_path / "a" / "b" / "file.json").read_text(encoding="utf-8") == "µ\n"
    assert [each.name for each in (tmp_path / "a" / "b").iterdir()] == ["file.json"]


def test_a_write_that_breaks_off_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_text(path, "old")

    def break_off(temporary: Path) -> None:
        temporary.write_text("ha")
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"cannot write .*file.json: No space left on device"):
        write_whole(path, break_off)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_the_file_being_written(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    seen: list[bool] = []

    def write(temporary: Path) -> None:
        temporary.write_text("half")
        seen.append(path.exists())

    write_whole(path, write)
    assert seen == [False]
    assert path.read_text() == "half"


def test_a_folder_that_is_a_file_is_one_line_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_text(tmp_path / "taken" / "file.json", "text")


def test_nothing_is_made_before_the_first_document(tmp_path: Path) -> None:
    RunStore(tmp_path / "runs" / "one").check_unused()
    assert list(tmp_path.iterdir()) == []


def test_a_used_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("")
    with pytest.raises(UsageError, match="exists already: choose another --label or remove it"):
        RunStore(tmp_path).check_unused()


def test_a_directory_that_can_never_be_made_is_refused_before_the_load(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is not a folder"):
        RunStore(tmp_path / "file" / "runs" / "one").check_unused()


def test_probes_are_numbered_in_order_with_their_rate(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "one")
    names = [
        store.requests(probe_facts(FACTS.records, window={"rate_rps": rate_rps}))
        for rate_rps in (8.0, 11.1803, 0.42131, None)
    ]
    assert names == [
        "probes/01-8.00.parquet",
        "probes/02-11.18.parquet",
        "probes/03-0.4213.parquet",
        "probes/04-closed.parquet",
    ]
    assert all((tmp_path / "one" / name).exists() for name in names)


def test_a_second_window_at_one_rate_overwrites_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "one")
    first, second = store.requests(FACTS), store.requests(FACTS)
    assert first != second
    assert read_requests(tmp_path / "one" / first) == read_requests(tmp_path / "one" / second) == FACTS


def test_what_answered_is_written_down(tmp_path: Path) -> None:
    facts = EngineFacts(
        "attached", "a-model", 4096, "0.24.0", takes_forced_length=False, start=2, details={"dtype": "fp8"}
    )
    RunStore(tmp_path).engine(facts)
    document = read_document(tmp_path / "engine.json", EngineDocument)
    assert (document.kind, document.model, document.max_model_len, document.version) == (
        "attached", "a-model", 4096, "0.24.0",
    )  # fmt: skip
    assert (document.takes_forced_length, document.start, document.details) == (False, 2, {"dtype": "fp8"})
    assert json.loads((tmp_path / "engine.json").read_text())["schema_version"] == 1


def test_a_free_name_is_the_first_number_that_nothing_has(tmp_path: Path) -> None:
    assert free_name(tmp_path, "sweep") == "sweep-1"
    (tmp_path / "sweep-1").mkdir()
    (tmp_path / "sweep-2").write_text("")
    assert free_name(tmp_path, "sweep") == "sweep-3"
    assert free_name(tmp_path / "absent", "sweep") == "sweep-1"
