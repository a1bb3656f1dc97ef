"""Per-request facts in Parquet: one row per request, the probe's own facts in the file's metadata.

A file can be judged again on its own: `read_requests` gives back exactly what the probe returned.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from traffic.errors import UsageError
from traffic.probe import ProbeFacts, Stop
from traffic.records import End, RequestRecord
from traffic.schedule import Window

_KEY = b"slo_bench.probe"
_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "End": pa.string(),
}


def _schema() -> pa.Schema:
    fields = []
    for field in dataclasses.fields(RequestRecord):
        name = str(field.type)
        nullable = name.endswith(" | None")
        fields.append(pa.field(field.name, _TYPES[name.removesuffix(" | None")], nullable=nullable))
    return pa.schema(fields)


SCHEMA = _schema()
"""The columns of `traffic.records.RequestRecord`, times in seconds after the probe's start."""


def write_requests(path: Path, facts: ProbeFacts) -> None:
    """Write one probe's rows. The caller names a temporary file and renames it."""
    about = {
        "window": dataclasses.asdict(facts.window),
        "stop": facts.stop.value,
        "started_utc": facts.started_utc.isoformat(),
        "load_s": facts.load_s,
        "saved_s": facts.saved_s,
        "stall_max_s": facts.stall_max_s,
        "clock_step_s": facts.clock_step_s,
        "cpu_share": facts.cpu_share,
        "workers": facts.workers,
        "client_fault": facts.client_fault,
        "abandoned_turns": facts.abandoned_turns,
    }
    columns = {name: [getattr(record, name) for record in facts.records] for name in (field.name for field in SCHEMA)}
    columns["end"] = [end.value for end in columns["end"]]
    table = pa.table(columns, schema=SCHEMA.with_metadata({_KEY: json.dumps(about).encode()}))
    pq.write_table(table, path, compression="zstd")


def read_requests(path: Path) -> ProbeFacts:
    """Read one probe's facts back. Raises UsageError for a file of another kind."""
    try:
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[_KEY])
        rows = table.select([field.name for field in SCHEMA]).to_pylist()
        return _facts(about, rows)
    except (OSError, KeyError, TypeError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        reason = " ".join(str(error).split())
        raise UsageError(f"{path} holds no requests of a probe: {reason}") from error


def _facts(about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> ProbeFacts:
    return ProbeFacts(
        window=Window(**about["window"]),
        records=tuple(RequestRecord(**{**row, "end": End(row["end"])}) for row in rows),
        stop=Stop(about["stop"]),
        started_utc=datetime.fromisoformat(about["started_utc"]),
        load_s=about["load_s"],
        saved_s=about["saved_s"],
        stall_max_s=about["stall_max_s"],
        clock_step_s=about["clock_step_s"],
        cpu_share=about.get("cpu_share"),
        workers=about.get("workers", 1),
        client_fault=about.get("client_fault"),
        abandoned_turns=about.get("abandoned_turns", 0),
    )
