"""What a measured speed costs in money: from a price per hour to dollars per arm and per million output tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import Field

from reports.run_directory import SCHEMA_VERSION, Document, ProbeRow, SweepDocument, read_document

COST_NAME = "cost.json"
TOKENS_PER_MILLION = 1_000_000
SECONDS_PER_HOUR = 3600


class CostDocument(Document):
    """cost.json: dollars, null for what has no basis.

    usd_per_hour: of the whole machine, as it was given. gpus: that the server used, null where it is not known.
    measuring_usd: from before the server's start to the end of the measurement. per_million_output_usd: at the SLO
    capacity, kept up all the time; per_million_interval_usd: its ends, since the capacity lies between the highest rate
    that passed and the lowest that failed. per_gpu_hour_usd, measuring_per_gpu_usd: of one of its GPUs.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    usd_per_hour: float | None
    gpus: int | None
    measuring_usd: float | None
    per_gpu_hour_usd: float | None
    measuring_per_gpu_usd: float | None
    per_million_output_usd: float | None
    per_million_interval_usd: tuple[float, float] | None


def cost(
    sweep: SweepDocument, *, usd_per_hour: float | None, gpus: int | None, started_utc: str, ended_utc: str | None
) -> CostDocument:
    """The cost of an arm. gpus: that the server used, None where it is not known."""
    measuring_usd = dollars(usd_per_hour, _seconds(started_utc, ended_utc))
    tokens = tokens_per_request(sweep.probes, sweep.capacity_rps)
    low, high = (
        _per_million_usd(usd_per_hour, rate_rps, tokens) for rate_rps in (sweep.first_failed_rps, sweep.capacity_rps)
    )
    return CostDocument(
        schema_version=SCHEMA_VERSION,
        usd_per_hour=usd_per_hour,
        gpus=gpus,
        measuring_usd=measuring_usd,
        per_gpu_hour_usd=_each(usd_per_hour, gpus),
        measuring_per_gpu_usd=_each(measuring_usd, gpus),
        per_million_output_usd=high,
        per_million_interval_usd=None if low is None or high is None else (low, high),
    )


def _seconds(started_utc: str, ended_utc: str | None) -> float | None:
    if ended_utc is None:
        return None
    return (datetime.fromisoformat(ended_utc) - datetime.fromisoformat(started_utc)).total_seconds()


def dollars(usd_per_hour: float | None, seconds_s: float | None) -> float | None:
    """The price of some time; None where either is not known."""
    return None if usd_per_hour is None or seconds_s is None else usd_per_hour * seconds_s / SECONDS_PER_HOUR


def session_usd(usd_per_hour: float | None, started_utc: str, ended_utc: str | None) -> float | None:
    """The price of everything between two moments of UTC."""
    return dollars(usd_per_hour, _seconds(started_utc, ended_utc))


def _each(usd: float | None, gpus: int | None) -> float | None:
    return usd / gpus if usd is not None and gpus else None


def _per_million_usd(
    usd_per_hour: float | None, rate_rps: float | None, tokens_per_request: float | None
) -> float | None:
    if usd_per_hour is None or not rate_rps or not tokens_per_request:
        return None
    return usd_per_hour / SECONDS_PER_HOUR / (rate_rps * tokens_per_request) * TOKENS_PER_MILLION


def tokens_per_request(rows: Sequence[ProbeRow], capacity_rps: float | None) -> float | None:
    """Mean output tokens of the capacity's valid windows; None without one.

    A million tokens are priced at these times the nominal rate: a Poisson draw brings a few per cent more or fewer
    requests than that.
    """
    told = [row.output_tokens_mean for row in rows if row.is_valid and row.rate_rps == capacity_rps]
    known = [tokens for tokens in told if tokens is not None]
    return sum(known) / len(known) if known and capacity_rps is not None else None


def read_cost(directory: Path) -> CostDocument | None:
    """The cost of a run; None for one that has no such file, as runs of earlier versions."""
    path = directory / COST_NAME
    return read_document(path, CostDocument) if path.exists() else None
