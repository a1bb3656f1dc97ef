"""The server's own counts in Parquet: one row per look at its metrics, gaps in the file's metadata.

`read_metrics` gives back exactly what was written. Each histogram is two columns and two lists: a reader that wants
means needs only `*_sum` and `*_count`. The schema's metadata (`slo_bench.metrics`) names the unit of every column.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from traffic.errors import UsageError
from traffic.server_facts import Gap, Histogram, ServerSample

METRICS_SCHEMA_VERSION = 1

_KEY = b"slo_bench.metrics"
_TYPES = {"int": pa.int64(), "float": pa.float64()}
_PARTS = {"bounds": pa.list_(pa.float64()), "counts": pa.list_(pa.int64()), "sum": pa.float64(), "count": pa.int64()}
_COUNT_UNITS = {"engines": "engines", "preemptions_total": "preemptions", "step_tokens": "tokens"}


def _unit(name: str) -> str:
    """A column's unit, from the name of its field; the house puts units into names."""
    if name in _COUNT_UNITS:
        return _COUNT_UNITS[name]
    endings = {"_s": "s", "_share": "share, 0 to 1", "_tokens_total": "tokens"}
    return next((unit for ending, unit in endings.items() if name.endswith(ending)), "requests")


def _schema() -> pa.Schema:
    fields: list[pa.Field] = []
    for field in dataclasses.fields(ServerSample):
        kind = str(field.type)
        plain = kind.removesuffix(" | None")
        about = {b"unit": _unit(field.name).encode()}
        if plain != "Histogram":
            fields.append(pa.field(field.name, _TYPES[plain], nullable=plain != kind, metadata=about))
            continue
        for part, its_type in _PARTS.items():
            unit = {b"unit": b"count"} if part in ("counts", "count") else about
            fields.append(pa.field(f"{field.name}_{part}", its_type, nullable=True, metadata=unit))
    return pa.schema(fields)


SCHEMA = _schema()
"""The columns of `traffic.server_facts.ServerSample`; moment_s is loop time, utc_s POSIX seconds."""

_HISTOGRAMS = tuple(field.name for field in dataclasses.fields(ServerSample) if str(field.type).startswith("Histogram"))


@dataclass(frozen=True, slots=True)
class Metrics:
    """What `metrics.parquet` holds: the looks that succeeded, and those that did not."""

    samples: tuple[ServerSample, ...]
    gaps: tuple[Gap, ...]


def write_metrics(path: Path, samples: Sequence[ServerSample], gaps: Sequence[Gap] = ()) -> None:
    """Write the looks of one run. The caller names a temporary file and renames it."""
    about = {
        "schema_version": METRICS_SCHEMA_VERSION,
        "units": {field.name: field.metadata[b"unit"].decode() for field in SCHEMA},
        "gaps": [dataclasses.asdict(gap) for gap in gaps],
    }
    table = pa.Table.from_pylist(
        [_row(each) for each in samples], schema=SCHEMA.with_metadata({_KEY: json.dumps(about).encode()})
    )
    pq.write_table(table, path, compression="zstd")


def read_metrics(path: Path) -> Metrics:
    """Read a run's looks back. Raises UsageError for a file of another kind or from a later version."""
    try:
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[_KEY])
        version = int(about["schema_version"])
        gaps = tuple(Gap(**gap) for gap in about["gaps"])
        rows = table.select([field.name for field in SCHEMA]).to_pylist()
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowInvalid) as error:
        raise UsageError(f"{path} holds no metrics of a server: {error}") from error
    if version > METRICS_SCHEMA_VERSION:
        raise UsageError(f"{path} was written by a later version of slo-bench (schema {version}): upgrade to read it")
    return Metrics(tuple(_sample(row) for row in rows), gaps)


def _row(sample: ServerSample) -> dict[str, object]:
    row: dict[str, object] = {}
    for field in dataclasses.fields(ServerSample):
        value = getattr(sample, field.name)
        if field.name in _HISTOGRAMS:
            row |= {f"{field.name}_{part}": None if value is None else getattr(value, part) for part in _PARTS}
        else:
            row[field.name] = value
    return row


def _sample(row: dict[str, Any]) -> ServerSample:
    values = dict(row)
    for name in _HISTOGRAMS:
        bounds, counts, total, count = (values.pop(f"{name}_{part}") for part in _PARTS)
        if count is not None:
            values[name] = Histogram(tuple(bounds), tuple(counts), total, count)
    return ServerSample(**values)
