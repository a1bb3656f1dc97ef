"""One block of a comparison: what it is worth, whether the server kept up, and whether it held still meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from gates.log_ratio import Estimate, mean_estimate
from gates.pooled import Cohort
from gates.referee import GROWTH_SIGMAS
from gates.starts import FloatArray
from gates.verdict import ProbeVerdict
from traffic.probe import ProbeFacts
from traffic.records import RequestRecord
from traffic.summary import cohort

UNFINISHED_SHARE = 0.01
"""More of the cohort that the drain limit cuts off is a server that does not keep up, not a straggler."""

TREND_CONFIDENCE = 0.99
"""Of a trend that is told: four are looked at in every comparison."""

_THIRDS = 3
_MIN_TREND_N = 10


def cohort_of(verdict: ProbeVerdict) -> Cohort:
    """The block's measured requests as a comparison takes them."""
    members = [record for record in cohort(verdict.facts.records) if record.is_resolved]
    summary = verdict.summary
    return Cohort(
        tpot_s=_values(members, lambda record: record.tpot_s),
        ttft_s=_values(members, lambda record: record.ttft_s),
        tpot_mean_s=summary.mean_tpot_s,
        ttft_mean_s=summary.mean_ttft_s,
        good=len(members) - verdict.misses,
        window_s=verdict.facts.window.duration_s,
    )


def _values(records: Sequence[RequestRecord], metric: Callable[[RequestRecord], float | None]) -> FloatArray:
    values = [math.inf if record.has_failed else metric(record) for record in records]
    return np.array([value for value in values if value is not None], dtype=np.float64)


def is_cut_off(unfinished: int, scheduled: int) -> bool:
    """Whether so many requests ran into the drain limit that the server cannot have kept up."""
    return unfinished > UNFINISHED_SHARE * max(1, scheduled)


def grows(facts: ProbeFacts) -> bool:
    """Whether requests in flight grew through the block, so that its latencies depend on its length.

    By chance a stable server shows this in one of some hundred blocks: a comparison wants it twice in a row.
    """
    begun_s, ended_s = _begun_and_ended(facts.records)
    return runs_ahead(begun_s, ended_s, facts.window.window_start_s, facts.window.window_end_s)


def runs_ahead(begun_s: FloatArray, ended_s: FloatArray, start_s: float, end_s: float) -> bool:
    """Whether arrivals ran ahead of completions between two moments.

    Requests in flight rose from third to third, and by more than the counts explain (99 %). begun_s, ended_s: due times
    and ends of all requests, ascending.
    """
    moments_s = np.linspace(start_s, end_s, _THIRDS + 1)
    arrived = np.searchsorted(begun_s, moments_s, side="right")
    completed = np.searchsorted(ended_s, moments_s, side="right")
    in_flight = arrived - completed
    ahead = int(in_flight[-1] - in_flight[0])
    events = int(arrived[-1] - arrived[0] + completed[-1] - completed[0])
    return bool(np.all(np.diff(in_flight) > 0)) and ahead > GROWTH_SIGMAS * math.sqrt(events)


def _begun_and_ended(records: Sequence[RequestRecord]) -> tuple[FloatArray, FloatArray]:
    """Due times of everything that was sent and the ends that came, both ascending, seconds after the start."""
    begun = sorted(record.due_s for record in records if record.sent_s is not None)
    ended = sorted(record.ended_s for record in records if record.sent_s is not None and record.ended_s is not None)
    return np.array(begun, dtype=np.float64), np.array(ended, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Trend:
    """How a server changed inside its blocks, from the start of the window to its end; mean over the blocks.

    tpot: TPOT beyond what requests in flight explain, as a share of the mean. in_flight: requests in flight, as a share
    of their mean. None without two blocks that have one.
    """

    tpot: Estimate | None
    in_flight: Estimate | None


def is_trend(found: Estimate | None) -> bool:
    """Whether a mean change over the window is more than its spread over the blocks explains."""
    if found is None or found.standard_error is None:
        return False
    return (
        abs(found.log_ratio) > float(special.stdtrit(found.degrees, (1 + TREND_CONFIDENCE) / 2)) * found.standard_error
    )


def trend(blocks: Sequence[tuple[float, float] | None]) -> Trend:
    """The trend of one arm, from `block_trend` of each of its blocks."""
    found = [each for each in blocks if each is not None]
    if len(found) < 2:  # noqa: PLR2004 - one block has no spread
        return Trend(None, None)
    tpot, in_flight = zip(*found, strict=True)
    return Trend(mean_estimate(tpot), mean_estimate(in_flight))


def block_trend(facts: ProbeFacts) -> tuple[float, float] | None:
    """`trend_shares` of one block's records."""
    members = [record for record in cohort(facts.records) if record.is_resolved and record.tpot_s is not None]
    begun_s, ended_s = _begun_and_ended(facts.records)
    return trend_shares(
        np.array([record.first_token_s for record in members], dtype=np.float64),
        np.array([record.last_token_s for record in members], dtype=np.float64),
        np.array([record.tpot_s for record in members], dtype=np.float64),
        begun_s=begun_s,
        ended_s=ended_s,
        duration_s=facts.window.duration_s,
    )


def trend_shares(
    first_s: FloatArray,
    last_s: FloatArray,
    tpot_s: FloatArray,
    *,
    begun_s: FloatArray,
    ended_s: FloatArray,
    duration_s: float,
) -> tuple[float, float] | None:
    """Changes over the window as shares of the means: of TPOT at equal requests in flight, and of requests in flight.

    Least squares over the cohort: TPOT on the middle of the answer and on the requests in flight while it was given;
    in flight on the middle alone. Requests of a block depend on each other, so nothing is tested inside one. first_s,
    last_s, tpot_s: per request of the cohort that has a TPOT. begun_s, ended_s: due times and ends of all requests,
    ascending. None for a handful of requests, or where the columns cannot be told apart.
    """
    if len(tpot_s) < _MIN_TREND_N:
        return None
    area = _area(begun_s, last_s) - _area(begun_s, first_s) - _area(ended_s, last_s) + _area(ended_s, first_s)
    in_flight = area / (last_s - first_s)
    moment = (first_s + last_s) / (2 * duration_s)
    ones = np.ones(len(tpot_s))
    (_, slope, _), _, rank, _ = np.linalg.lstsq(np.column_stack([ones, moment, in_flight]), tpot_s, rcond=None)
    (_, rise), _, _, _ = np.linalg.lstsq(np.column_stack([ones, moment]), in_flight, rcond=None)
    if rank < 3 or not in_flight.mean() > 0:  # noqa: PLR2004 - three columns
        return None
    return float(slope / tpot_s.mean()), float(rise / in_flight.mean())


def _area(moments_s: FloatArray, until_s: FloatArray) -> FloatArray:
    """Seconds times events: for each limit the time since every earlier moment, added up."""
    count = np.searchsorted(moments_s, until_s, side="right")
    sums = np.concatenate([[0.0], np.cumsum(moments_s)])
    area: FloatArray = count * until_s - sums[count]
    return area
