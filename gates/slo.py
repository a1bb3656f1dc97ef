"""Objectives, and which of them a cohort meets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from traffic.errors import UsageError
from traffic.records import RequestRecord
from traffic.summary import allowed, nearest_rank, sample


class Metric(StrEnum):
    """What an objective may limit, per request, in seconds."""

    TTFT = "ttft"
    TPOT = "tpot"
    ITL = "itl"
    """The request's largest chunk gap: the longest pause that its reader saw."""
    E2E = "e2e"

    @property
    def of(self) -> Callable[[RequestRecord], float | None]:
        """The metric of one request; None where it has none."""
        return _OF[self]


_OF: dict[Metric, Callable[[RequestRecord], float | None]] = {
    Metric.TTFT: lambda record: record.ttft_s,
    Metric.TPOT: lambda record: record.tpot_s,
    Metric.ITL: lambda record: record.chunk_gap_max_s,
    Metric.E2E: lambda record: record.e2e_s,
}


@dataclass(frozen=True, slots=True)
class Objective:
    """`metric` at `percentile` (percent) at most `limit_s` seconds."""

    metric: Metric
    percentile: Decimal
    limit_s: float

    def __str__(self) -> str:
        return f"{self.metric}:p{self.percentile}:{self.limit_s * 1000:.12g}"

    @property
    def min_n(self) -> int:
        """The smallest cohort in which this percentile is not simply the largest value."""
        return math.ceil(100 / (100 - self.percentile))


_FORM = re.compile(r"(ttft|tpot|itl|e2e):p(\d{1,2}(?:\.\d+)?):(\d+(?:\.\d+)?)")


def parse_objective(text: str) -> Objective:
    """`ttft:p99:2000` (metric, percentile, limit in ms). Raises UsageError that shows the form."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"objective {text!r} is not METRIC:pPERCENTILE:MILLISECONDS, for example ttft:p99:2000")
    metric, percentile, limit_ms = match.groups()
    if not Decimal(percentile) > 0 or not float(limit_ms) > 0:
        raise UsageError(f"objective {text!r}: percentile and limit must be positive")
    return Objective(Metric(metric), Decimal(percentile), float(limit_ms) / 1000)


DEFAULT_SLO = (
    Objective(Metric.TTFT, Decimal(99), 2.0),
    Objective(Metric.TPOT, Decimal(99), 0.050),
)


def drain_limit_s(slo: Sequence[Objective], longest_output_tokens: int) -> float:
    """How long a request may take before it is over by definition, in seconds.

    TTFT limit + (longest requested output - 1) x TPOT limit; an end-to-end objective alone bounds it too. An objective
    that limits no whole request (ITL) counts for each gap. Without any such bound: 60 s.
    """
    limits = {objective.metric: objective.limit_s for objective in slo}
    if Metric.E2E in limits:
        return limits[Metric.E2E]
    per_token_s = limits.get(Metric.TPOT, limits.get(Metric.ITL))
    if per_token_s is None:
        return limits.get(Metric.TTFT, 0.0) + 60.0
    return limits.get(Metric.TTFT, 10.0) + max(0, longest_output_tokens - 1) * per_token_s


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """One objective over one cohort: it holds when over <= allowed. value_s is null when it falls on a failure."""

    objective: Objective
    n: int
    over: int
    allowed: int
    value_s: float | None

    @property
    def holds(self) -> bool:
        """Whether the objective is met; an empty sample meets nothing."""
        return self.n > 0 and self.over <= self.allowed


def judge(objective: Objective, records: Sequence[RequestRecord]) -> ObjectiveResult:
    """Count who is over the limit among the requests that have the metric or failed."""
    values = sample(records, objective.metric.of)
    return ObjectiveResult(
        objective=objective,
        n=len(values),
        over=sum(value > objective.limit_s for value in values),
        allowed=allowed(len(values), objective.percentile),
        value_s=nearest_rank(values, objective.percentile),
    )


def is_miss(slo: Sequence[Objective], record: RequestRecord) -> bool:
    """Whether a request broke any objective."""
    if record.has_failed:
        return True
    return any((value := objective.metric.of(record)) is not None and value > objective.limit_s for objective in slo)
