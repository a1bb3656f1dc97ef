"""What a measured speed costs in money: from a price per hour to dollars per arm and per million output tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from reports.run_directory import ProbeRow, SweepDocument

TOKENS_PER_MILLION = 1_000_000
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars, from usd_per_hour of the whole machine; None for what has no basis.

    measuring_usd: the arm's own time. per_million_output_usd: at the SLO capacity, kept up all the time;
    per_gpu_hour_usd: of one of its GPUs.
    """

    usd_per_hour: float
    measuring_usd: float | None
    per_million_output_usd: float | None
    per_gpu_hour_usd: float | None


def cost(
    sweep: SweepDocument, *, usd_per_hour: float, gpus: int | None, started_utc: str, ended_utc: str | None
) -> Cost:
    """The cost of an arm. gpus: that the server used, None where it is not known."""
    measuring_usd = None
    if ended_utc is not None:
        seconds = (datetime.fromisoformat(ended_utc) - datetime.fromisoformat(started_utc)).total_seconds()
        measuring_usd = usd_per_hour * seconds / SECONDS_PER_HOUR
    rate = capacity_tokens_per_s(sweep.probes, sweep.capacity_rps)
    return Cost(
        usd_per_hour=usd_per_hour,
        measuring_usd=measuring_usd,
        per_million_output_usd=None if not rate else usd_per_hour / SECONDS_PER_HOUR / rate * TOKENS_PER_MILLION,
        per_gpu_hour_usd=usd_per_hour / gpus if gpus else None,
    )


def capacity_tokens_per_s(rows: Sequence[ProbeRow], capacity_rps: float | None) -> float | None:
    """Output tokens per second at the capacity: the mean of its valid windows; None without one.

    Tokens per request times the nominal rate: a Poisson draw brings a few per cent more or fewer requests than that.
    """
    if capacity_rps is None:
        return None
    told = [row.output_tokens_mean for row in rows if row.is_valid and row.rate_rps == capacity_rps]
    known = [tokens for tokens in told if tokens is not None]
    return capacity_rps * sum(known) / len(known) if known else None
