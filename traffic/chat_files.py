"""The rows of a data set as they are stored: local files, read here, and whatever the library `datasets` can load."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traffic.errors import UsageError

Rows = Sequence[Mapping[str, object]]
"""Rows in their order; a fault is told with the number of its row, from 1."""


def dataset_rows(name: str, *, split: str = "train", config: str | None = None) -> Rows:
    """The rows of a file (.jsonl, .json, .csv, .parquet), or of a folder or a name on the hub with split and config.

    Raises UsageError in one line: with file and row for a row that cannot be read, with the library's reason else.
    """
    path = Path(name)
    if not is_file_name(name):
        return _loaded(name, split, config)
    try:
        return _READERS[path.suffix.lower()](path)
    except OSError as error:
        raise UsageError(f"--dataset {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--dataset {path} is not a text file: {error.reason} at byte {error.start}") from None


def is_file_name(name: str) -> bool:
    """Whether a name means a local file of ours to read, there or not."""
    return Path(name).suffix.lower() in _READERS and not Path(name).is_dir()


def row_fault(name: str, number: int, what: str) -> UsageError:
    """The error for one row, counted from 1."""
    return UsageError(f"--dataset {name}, row {number}: {what}")


def _json_lines(path: Path) -> Rows:
    rows = []
    lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise row_fault(str(path), number, "not JSON, or half a line") from None
        rows.append(_checked(path, number, row))
    return rows


def _json_list(path: Path) -> Rows:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        hint = "; JSON lines are read from .jsonl" if error.msg == "Extra data" else ""
        raise UsageError(f"--dataset {path} is not JSON: {error.msg} in line {error.lineno}{hint}") from None
    except RecursionError:
        raise UsageError(f"--dataset {path} is nested too deeply") from None
    if not isinstance(rows, list):
        raise UsageError(f"--dataset {path} is no list of rows")
    return [_checked(path, number, row) for number, row in enumerate(rows, start=1)]


def _table(path: Path) -> Rows:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            return list(csv.DictReader(file, strict=True))
        except csv.Error as error:
            raise UsageError(f"--dataset {path}: {error}") from None


def _parquet(path: Path) -> Rows:
    try:
        rows: list[dict[str, object]] = pq.read_table(path).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"--dataset {path} is no Parquet file: {_one_line(error)}") from None
    return rows


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": _json_lines,
    ".json": _json_list,
    ".csv": _table,
    ".parquet": _parquet,
}


def _checked(path: Path, number: int, row: object) -> dict[str, object]:
    if not isinstance(row, dict):
        raise row_fault(str(path), number, "not a JSON object")
    return row


def _loaded(name: str, split: str, config: str | None) -> Rows:
    """What the library makes of a name. It is imported here: that takes a second, and most runs have no data set."""
    import datasets  # noqa: PLC0415
    from datasets.exceptions import DatasetsError  # noqa: PLC0415

    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each of its retries would be a line
    try:
        rows: Rows = datasets.load_dataset(name, config, split=split).to_list()
    except ConnectionError as error:
        raise UsageError(
            f"--dataset {name}: {_one_line(error)}; is there a network? A .jsonl, .json, .csv or .parquet file needs "
            "none"
        ) from error
    except (OSError, ValueError, DatasetsError) as error:
        raise UsageError(f"--dataset {name}: {_one_line(error)}") from error
    return rows


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
