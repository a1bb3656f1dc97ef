"""Rows of data sets: from local files, with file and row for what cannot be read; from the library for all else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traffic.chat_files import dataset_rows, is_file_name
from traffic.errors import UsageError

ROWS = [{"prompt": "Wie spät ist es?", "response": "Zwölf."}, {"prompt": 'a, "b"\nc', "response": "d"}]


def stored(folder: Path, name: str) -> Path:
    """The rows in a file of that kind."""
    path = folder / name
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(ROWS), path)
        case ".csv":
            quoted = [[f'"{value}"'.replace('"b"', '""b""') for value in row.values()] for row in ROWS]
            path.write_text("\n".join(["prompt,response", *(",".join(row) for row in quoted)]) + "\n")
        case ".json":
            path.write_text(json.dumps(ROWS, indent=1))
        case _:
            path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.JSONL"])
def test_the_same_rows_come_out_of_every_kind_of_file(name: str, tmp_path: Path) -> None:
    assert list(dataset_rows(str(stored(tmp_path, name)))) == ROWS
    assert is_file_name(name)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"prompt": "x"}\n\n{"prompt": "y', r"a\.jsonl, row 2: not JSON, or half a line"),
        ("a.jsonl", '{"prompt": "x"}\n[1]', r"row 2: not a JSON object"),
        ("a.jsonl", "[" * 100_000, "row 1: not JSON"),
        (
            "a.json",
            '{"prompt": "x"}\n{"prompt": "y"}',
            r"a\.json is not JSON: Extra data in line 2; JSON lines are read",
        ),
        ("a.json", '{"prompt": "x"}', "is no list of rows"),
        ("a.json", '[{"prompt": "x"}, 3]', "row 2: not a JSON object"),
        ("a.csv", 'prompt\n"open', "unexpected end of data"),
        ("a.parquet", "PAR1 or so", "is no Parquet file"),
        ("a.jsonl", b'{"prompt": "\xff"}', "is not a text file: .* at byte 12"),
    ],
)
def test_a_bad_file_is_one_line_with_file_and_row(name: str, content: str | bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UsageError, match=words) as told:
        dataset_rows(str(path))
    assert "\n" not in str(told.value)
    assert str(path) in str(told.value)


def test_a_file_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.jsonl: No such file or directory"):
        dataset_rows(str(tmp_path / "missing.jsonl"))


@pytest.mark.process
class TestTheLibrary:
    """It takes a second to import."""

    def test_a_folder_is_loaded_by_split(self, tmp_path: Path) -> None:
        stored(tmp_path, "train.jsonl")
        assert list(dataset_rows(str(tmp_path))) == ROWS
        with pytest.raises(UsageError, match=r'--dataset .*: Unknown split "test"'):
            dataset_rows(str(tmp_path), split="test")

    def test_an_empty_folder_is_told_in_its_words(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="doesn't contain any data files"):
            dataset_rows(str(tmp_path))

    def test_a_hub_that_cannot_be_reached_is_one_line(self, tmp_path: Path) -> None:
        argv = ["probe", "--engine", "simulated", "--request-rate", "1", "--dataset", "nobody/nothing"]
        done = subprocess.run(
            [sys.executable, "-m", "slo_bench", *argv],
            cwd=tmp_path,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("slo-bench: --dataset nobody/nothing: ")
        assert "is there a network?" in line
