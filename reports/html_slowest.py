"""The slowest requests of a failed window, from the rows of its Parquet file: where a reader looks first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gates.slo import Objective, is_miss
from reports.arms import Arm
from reports.requests import read_requests
from reports.run_directory import ProbeRow
from traffic.records import RequestRecord
from traffic.summary import cohort

SHOWN = 10
"""Requests per window: enough to see a pattern, few enough to be read."""


@dataclass(frozen=True, slots=True)
class SlowWindow:
    """One failed window of an arm and its worst requests, worst first. misses: how many broke an objective in all."""

    label: str
    row: ProbeRow
    misses: int
    requests: tuple[RequestRecord, ...]


def slowest(arm: Arm, *, shown: int = SHOWN) -> SlowWindow | None:
    """The worst requests of the arm's first failed window at the lowest failed rate; None where no rows are kept.

    Worst is a request that failed, then whatever is the most times above a limit. Raises UsageError for a file that is
    there and cannot be read.
    """
    row = next((each for each in _failed(arm) if (arm.directory / str(each.requests_file)).is_file()), None)
    if row is None:
        return None
    members = [
        each for each in cohort(read_requests(arm.directory / str(row.requests_file)).records) if each.is_resolved
    ]
    ranked = sorted(members, key=lambda each: _times_over(each, arm.objectives), reverse=True)
    worst = [each for each in ranked if is_miss(arm.objectives, each)]
    return SlowWindow(arm.label, row, len(worst), tuple(worst[:shown]))


def _failed(arm: Arm) -> list[ProbeRow]:
    """The windows that failed and kept their rows: the first failed rate first, then in order of measurement."""
    failed = [
        each
        for each in arm.sweep.probes
        if each.is_valid and each.outcome is not None and not each.outcome.passed and each.requests_file is not None
    ]
    return sorted(failed, key=lambda each: each.rate_rps != arm.sweep.first_failed_rps)


def _times_over(record: RequestRecord, objectives: Sequence[Objective]) -> float:
    """How many times a limit the request took, the worst of its objectives; infinite where it failed."""
    if record.has_failed:
        return math.inf
    values = [(each.metric.of(record), each.limit_s) for each in objectives]
    return max((value / limit_s for value, limit_s in values if value is not None), default=0.0)
