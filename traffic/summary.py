"""Facts of a probe in numbers: percentiles, rates, shares. No limit is known here, so nothing passes or fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from traffic.probe import ProbeFacts
from traffic.records import End, RequestRecord

Metric = Callable[[RequestRecord], float | None]
_BROKEN = (End.FAILED, End.TRUNCATED, End.TIMED_OUT)


def sample(records: Sequence[RequestRecord], metric: Metric) -> list[float]:
    """The metric of every request that has it or failed, ascending; a failure is infinite, worse than any limit."""
    values = []
    for record in records:
        if record.has_failed:
            values.append(math.inf)
        elif record.is_resolved and (value := metric(record)) is not None:
            values.append(value)
    return sorted(values)


def allowed(n: int, percentile: Decimal) -> int:
    """How many of n may be over a limit that holds at `percentile` (in percent): floor((1 - p) n), exactly."""
    return int((100 - percentile) * n // 100)


def nearest_rank(ascending: Sequence[float], percentile: Decimal) -> float | None:
    """The percentile by nearest rank (numpy's inverted_cdf); None where there is none or it falls on a failure."""
    if not ascending:
        return None
    value = ascending[max(0, len(ascending) - allowed(len(ascending), percentile) - 1)]
    return value if math.isfinite(value) else None


def lag_quantile(records: Sequence[RequestRecord], percentile: Decimal) -> float | None:
    """A percentile of the send lag in seconds, over all requests sent."""
    return nearest_rank(sorted(lag for each in records if (lag := each.send_lag_s) is not None), percentile)


@dataclass(frozen=True, slots=True)
class Summary:
    """One probe's cohort.

    n: resolved requests. failed: those that count over every limit, unfinished ones included. offered_rps: scheduled in
    the window per second of window. achieved_share: sent inside the part of the window that ran / due inside it.
    output_tokens_per_s: those that arrived inside that part, each request's spread evenly from its first to its last,
    none of a request that broke (R04); the arrival rate sets it as long as the server keeps up. measured_s: the part of
    the window that ran.
    """

    n: int
    failed: int
    unfinished: int
    errors: int
    client_errors: int
    short_answers: int
    offered_rps: float
    achieved_share: float | None
    send_lag_p50_s: float | None
    send_lag_p99_s: float | None
    send_lag_max_s: float | None
    output_tokens_per_s: float | None
    mean_output_tokens: float | None
    mean_prompt_tokens: float | None
    mean_tpot_s: float | None
    mean_ttft_s: float | None
    measured_s: float


def cohort(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The measured requests."""
    return [record for record in records if record.in_cohort]


def mean(values: Sequence[float]) -> float | None:
    """The mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None


def summarise(facts: ProbeFacts) -> Summary:
    """The numbers of one probe."""
    window, records = facts.window, facts.records
    members = cohort(records)
    resolved = [record for record in members if record.is_resolved]
    finished = [record for record in resolved if not record.has_failed]
    end_s = min(window.window_end_s, max(facts.load_s, window.window_start_s))
    measured_s = end_s - window.window_start_s
    due = [record for record in records if window.window_start_s <= record.due_s < end_s]
    in_time = [record for record in due if record.sent_s is not None and record.sent_s < end_s]
    lags = sorted(lag for record in members if (lag := record.send_lag_s) is not None)
    return Summary(
        n=len(resolved),
        failed=sum(record.has_failed for record in resolved),
        unfinished=sum(record.end is End.UNFINISHED for record in resolved),
        errors=sum(bool(record.error) for record in resolved),
        client_errors=sum(record.error.startswith("client: ") for record in resolved),
        short_answers=sum(record.output_tokens < record.requested_output_tokens for record in finished),
        offered_rps=window.scheduled / window.duration_s,
        achieved_share=len(in_time) / len(due) if due else None,
        send_lag_p50_s=nearest_rank(lags, Decimal(50)),
        send_lag_p99_s=nearest_rank(lags, Decimal(99)),
        send_lag_max_s=lags[-1] if lags else None,
        output_tokens_per_s=_tokens_inside(records, window.window_start_s, end_s),
        mean_output_tokens=mean([record.output_tokens for record in finished]),
        mean_prompt_tokens=mean([each.prompt_tokens for each in finished if each.prompt_tokens is not None]),
        mean_tpot_s=mean([value for record in finished if (value := record.tpot_s) is not None]),
        mean_ttft_s=mean([value for record in finished if (value := record.ttft_s) is not None]),
        measured_s=measured_s,
    )


def _tokens_inside(records: Sequence[RequestRecord], start_s: float, end_s: float) -> float | None:
    """Output tokens per second between two moments."""
    if end_s <= start_s:
        return None
    tokens = 0.0
    for record in records:
        first_s, last_s = record.first_token_s, record.last_token_s
        if first_s is None or last_s is None or record.end in _BROKEN:
            continue
        if last_s <= first_s:
            tokens += record.output_tokens if start_s <= first_s < end_s else 0
            continue
        inside_s = min(last_s, end_s) - max(first_s, start_s)
        tokens += record.output_tokens * max(0.0, inside_s) / (last_s - first_s)
    return tokens / (end_s - start_s)
