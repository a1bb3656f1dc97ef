"""power.json and power.parquet: what the GPUs of a server drew, and how it was read.

power.json says where power came from, or why there is none; power.parquet has every sample, with monotonic and UTC
times, so that windows can be drawn on it and every figure computed again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from reports.power import PowerSample
from reports.run_directory import SCHEMA_VERSION, Document, read_document
from traffic.errors import UsageError

POWER_NAME, SAMPLES_NAME = "power.json", "power.parquet"

_KEY = b"slo_bench.power"
_TYPES = {"float": pa.float64(), "int": pa.int64(), "str": pa.string()}


class GpuRow(Document):
    """One GPU that the server used."""

    uuid: str
    name: str


class IdleRow(Document):
    """What the GPUs drew without load, over seconds_s. server_is_up: whether a server stood on them, without load."""

    mean_w: float | None
    seconds_s: float
    server_is_up: bool


class WindowPowerRow(Document):
    """One window, or the part of it that ran; invalid ones too. Fields as in `reports.power.SpanPower`.

    output_tokens_per_s: of the same seconds, without requests that broke.
    """

    rate_rps: float | None
    concurrency: int | None
    repeat: int
    started_utc: str
    seconds_s: float
    source: Literal["counter", "integral"] | None
    energy_j: float | None
    mean_w: float | None
    coverage_share: float
    counter_gap_share: float | None
    output_tokens_per_s: float | None
    joules_per_output_token: float | None
    sm_clock_median_mhz: float | None
    temperature_max_c: int | None
    utilization_mean_share: float | None
    held_down: dict[str, float] | None
    flags: list[str]


class PowerDocument(Document):
    """Power of one server. source: NVML, nvidia-smi or DCGM, null where none was read. not_measured: why, else null.

    gpus: whose power it is; their sum stands in every figure. notes: what a reader must know of all windows.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    source: str | None
    not_measured: str | None
    every_s: float | None
    gpus: list[GpuRow]
    idle: IdleRow | None
    windows: list[WindowPowerRow]
    notes: list[str]


def _schema() -> pa.Schema:
    fields = []
    for field in dataclasses.fields(PowerSample):
        name = str(field.type)
        kind = _TYPES.get(name.removesuffix(" | None"), pa.string())
        fields.append(pa.field(field.name, kind, nullable=name.endswith(" | None")))
    return pa.schema(fields)


SCHEMA = _schema()
"""The columns of `reports.power.PowerSample`; at_s is CLOCK_MONOTONIC, utc_s POSIX seconds."""


def write_samples(path: Path, samples: Sequence[PowerSample]) -> None:
    """Write all samples of one run. The caller names a temporary file and renames it."""
    columns = {field.name: [getattr(each, field.name) for each in samples] for field in SCHEMA}
    about = json.dumps({"schema_version": SCHEMA_VERSION})
    pq.write_table(pa.table(columns, schema=SCHEMA.with_metadata({_KEY: about})), path, compression="zstd")


def read_samples(path: Path) -> tuple[PowerSample, ...]:
    """Read the samples back. Raises UsageError for a file of another kind or from a later version."""
    try:
        table = pq.read_table(path)
        version = int(json.loads(table.schema.metadata[_KEY])["schema_version"])
        samples = tuple(PowerSample(**row) for row in table.select(SCHEMA.names).to_pylist())
    except (OSError, KeyError, TypeError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise UsageError(f"{path} holds no samples of power: {' '.join(str(error).split())}") from error
    if version > SCHEMA_VERSION:
        raise UsageError(f"{path} was written by a later version of slo-bench (schema {version}): upgrade to read it")
    return samples


def read_power(directory: Path) -> PowerDocument | None:
    """The power of a run; None for one that has no such file, as runs of earlier versions."""
    path = directory / POWER_NAME
    return read_document(path, PowerDocument) if path.exists() else None
