"""What a window tells of its rate beyond pass or fail: how far each percentile is from its limit, and what that proves.

Requests over a limit come in episodes, so their number proves little. Their distance to the limit tells more. Blocks of
20 seconds are the unit: a percentile, on the logarithmic scale, is known as well as blocks agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.special import stdtrit

from gates.draw import FloatArray, IntArray, LongDraw, LongRun, Offered
from gates.slo import Objective, ObjectiveResult
from gates.verdict import Outcome, ProbeVerdict
from traffic.records import RequestRecord
from traffic.schedule import Window

BLOCK_S = 20.0
MIN_BLOCKS = 6
PASS_CONFIDENCE = 0.95
FAIL_CONFIDENCE = 0.975

BLOCK_FLOOR = 0.9
PLAIN_BLOCK_FLOOR = 1.5
"""The standard deviation between blocks of what they say of a percentile is at least this many spreads of the metric;
the second where a window could not be carried over to the long run. Blocks that follow each other are alike, and quiet
windows show low percentiles and little disagreement at once: believed, they would prove a pass in one of four windows
at the capacity (benchmarks/search)."""

FLOOR_DEGREES = 10
"""The floors come from many windows, so where they are taken they are worth as many further blocks."""

UNSEEN = 0.3
"""Short windows have seen few episodes, and their percentiles lie below those of hours of the same load: by 0.2 to 0.35
spreads in windows of 40 s, 0 to 0.2 in 120 s, about 0.1 in 300 s (benchmarks/search). So many spreads, over the root of
the number of blocks, are added."""

LEAST_SPREAD = 1e-6
"""Latencies that are alike to this share hold no noise to learn from."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One objective in one window.

    log_value: natural logarithm of the percentile in seconds, in the long run where the window could be carried over;
    None where it falls on a failure. blocks: whole blocks, in which every request was resolved. block_sd: standard
    deviation between blocks of what they say of log_value. degrees: of freedom that it has. failed: requests that are
    over every limit.
    """

    log_value: float | None
    blocks: int
    block_sd: float
    degrees: int
    failed: int = 0


@dataclass(frozen=True, slots=True)
class WindowSample:
    """What a valid window tells of its rate; results and readings in the order of the SLO.

    duration_s: of the window as planned. is_whole: it did not end early. readings: None where the window is too short.
    """

    rate_rps: float
    repeat: int
    duration_s: float
    outcome: Outcome
    is_whole: bool
    results: tuple[ObjectiveResult, ...]
    readings: tuple[Reading | None, ...]

    @property
    def failed(self) -> int:
        """Requests that are over every limit, by the objective that counts most of them."""
        return max((each.failed for each in self.readings if each is not None), default=0)

    @property
    def is_unstable(self) -> bool:
        """Whether requests in flight grew without bound."""
        return self.outcome is Outcome.UNSTABLE


def window_sample(verdict: ProbeVerdict, long: LongDraw | None) -> WindowSample:
    """What a valid window tells. long: a long draw of its load, None where there is none.

    Raises ValueError for an invalid window: it is never a result.
    """
    facts = verdict.facts
    window = facts.window
    if verdict.outcome is None or window.rate_rps is None:
        raise ValueError("an invalid window, or one without a rate, says nothing of a rate")
    run = None if long is None else _long_run(facts.records, long, window.rate_rps)
    return WindowSample(
        rate_rps=window.rate_rps,
        repeat=window.repeat,
        duration_s=window.duration_s,
        outcome=verdict.outcome,
        is_whole=not facts.stop.is_early,
        results=verdict.results,
        readings=tuple(_read(each.objective, facts.records, window, run) for each in verdict.results),
    )


def _long_run(records: Sequence[RequestRecord], long: LongDraw, rate_rps: float) -> LongRun | None:
    """The usual time of a token is the window's median; without any the window stays what it is."""
    ended = (record for record in records if record.in_cohort and record.is_resolved and not record.has_failed)
    times_s = [value for record in ended if (value := record.tpot_s) is not None]
    if not times_s:
        return None
    offered = Offered(
        np.array([each.due_s for each in records]),
        np.array([each.input_tokens for each in records]),
        np.array([each.requested_output_tokens for each in records]),
    )
    return LongRun(offered, long, rate_rps, float(np.median(times_s)))


def _read(
    objective: Objective, records: Sequence[RequestRecord], window: Window, run: LongRun | None
) -> Reading | None:
    """Blocks that hold an unresolved request are left out: those that would be missing in them are the slow ones."""
    values: list[tuple[int, int, float]] = []
    failures: list[int] = []
    open_blocks: set[int] = set()
    for index, record in enumerate(records):
        if not record.in_cohort:
            continue
        block = block_of(record.due_s, window)
        if not record.is_resolved:
            open_blocks.add(block)
        elif record.has_failed:
            failures.append(block)
        elif (value := objective.metric.of(record)) is not None and value > 0:
            values.append((index, block, math.log(value)))
    kept = [each for each in values if each[1] not in open_blocks]
    members, blocks, logs = (np.array([each[part] for each in kept]) for part in range(3))
    failed = sum(block not in open_blocks for block in failures)
    return reading(objective, Values(members, blocks, logs, failed), run)


def block_of(due_s: float, window: Window) -> int:
    """The block of a request; the last one is longer where the window is no multiple of a block."""
    last = max(1, int(window.duration_s / BLOCK_S)) - 1
    return min(last, max(0, int((due_s - window.window_start_s) / BLOCK_S)))


@dataclass(frozen=True, slots=True)
class Values:
    """One objective's metric in one window.

    members: indices in the window's records of the requests that have the metric. blocks: of each. logs: natural
    logarithms, seconds. failed: requests that are over every limit. quick: requests that count as under every limit.
    """

    members: IntArray
    blocks: IntArray
    logs: FloatArray
    failed: int = 0
    quick: int = 0

    def tail_share(self, objective: Objective) -> float:
        """The share of the values that lies above the percentile; below 0 where that falls on a failure."""
        over = (1 - float(objective.percentile) / 100) * (len(self.logs) + self.failed + self.quick)
        return (over - self.failed) / len(self.logs)


def reading(objective: Objective, values: Values, run: LongRun | None) -> Reading | None:
    """What a window says of an objective; None with fewer than two blocks or too few values for the percentile."""
    logs = values.logs
    if len(logs) + values.failed < objective.min_n or len(logs) == 0 or logs.std() < LEAST_SPREAD:
        return None
    names, places = np.unique(values.blocks, return_inverse=True)
    if len(names) < 2:  # noqa: PLR2004 - blocks are compared
        return None
    share = values.tail_share(objective)
    if share < 0:
        return Reading(None, len(names), PLAIN_BLOCK_FLOOR * float(logs.std()), len(names) - 1, values.failed)
    parts, floor, there = _parts(logs, places, share), PLAIN_BLOCK_FLOOR, logs
    carried = None if run is None else run.carry(values.members, logs)
    if carried is not None:
        there, fitted = carried
        parts, floor = parts - _parts(fitted, places, share), BLOCK_FLOOR
    spread, seen_sd = float(logs.std()), float(parts.std(ddof=1))
    return Reading(
        log_value=_above(there, share) + UNSEEN * spread / math.sqrt(len(names)),
        blocks=len(names),
        block_sd=max(seen_sd, floor * spread),
        degrees=len(names) - 1 + (FLOOR_DEGREES if seen_sd < floor * spread else 0),
        failed=values.failed,
    )


def _above(logs: FloatArray, tail_share: float) -> float:
    """The value above which a share of them lies, by nearest rank."""
    rank = max(1, len(logs) - int(tail_share * len(logs) + 1e-9))
    return float(np.partition(logs, rank - 1)[rank - 1])


def _parts(logs: FloatArray, blocks: IntArray, tail_share: float) -> FloatArray:
    """What each block adds to a percentile, by its mean and by its mean square about the overall mean.

    A percentile that is z spreads s above the mean m changes to first order as m + z s does.
    """
    mean, spread = float(logs.mean()), float(logs.std())
    sizes = np.bincount(blocks)
    if spread < LEAST_SPREAD:
        return np.zeros(len(sizes))
    tail, off = (_above(logs, tail_share) - mean) / spread, logs - mean
    moved: FloatArray = np.bincount(blocks, off + tail / (2 * spread) * (off * off - spread * spread)) / sizes.mean()
    return moved


class Proof(StrEnum):
    """What the margins of a rate's windows prove."""

    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Bounds:
    """One-sided bounds of an objective's percentile at a rate, natural logarithms of seconds.

    upper: at 95 %, None where the percentile falls on failures. lower: at 97.5 %, None likewise.
    """

    lower: float | None
    upper: float | None


def bounds(readings: Sequence[Reading | None]) -> Bounds | None:
    """The bounds from all windows of one rate, by t over the blocks; None with fewer than six blocks.

    Windows that say nothing add nothing. The spread's own uncertainty is in the blocks: each contributes its mean
    square too, so no chi-square is needed. Windows that differ by more than their blocks explain widen the bounds by
    what they differ (Birge's ratio).
    """
    known = [each for each in readings if each is not None]
    count = sum(each.blocks for each in known)
    if count < MIN_BLOCKS:
        return None
    values = [each.log_value for each in known if each.log_value is not None]
    if len(values) < len(known):
        return Bounds(None, None)
    value = math.fsum(each.blocks * log_value for each, log_value in zip(known, values, strict=True)) / count
    variance = math.fsum(each.blocks * each.block_sd**2 for each in known) / count
    between = math.fsum(each.blocks * (own - value) ** 2 for each, own in zip(known, values, strict=True))
    birge = between / variance / max(1, len(known) - 1)
    error = math.sqrt(variance * max(1.0, birge) / count)
    degrees = sum(each.degrees for each in known)
    return Bounds(
        lower=value - float(stdtrit(degrees, FAIL_CONFIDENCE)) * error,
        upper=value + float(stdtrit(degrees, PASS_CONFIDENCE)) * error,
    )


def proof(slo: Sequence[Objective], windows: Sequence[WindowSample]) -> Proof | None:
    """What all windows of one rate prove together; None where an objective has too few blocks and none shows a fail.

    A pass needs every window whole and stable, and no failed request. So neither a failure nor an unfinished request
    can ever turn anything into a proven pass.
    """
    if not windows:
        return None
    found = [
        (bounds([window.readings[index] for window in windows]), math.log(objective.limit_s))
        for index, objective in enumerate(slo)
    ]
    if any(each is not None and each.lower is not None and each.lower > limit for each, limit in found):
        return Proof.FAIL
    if any(each is None for each, _ in found):
        return None
    is_complete = all(window.is_whole and not window.is_unstable and not window.failed for window in windows)
    if is_complete and all(each is not None and each.upper is not None and each.upper < limit for each, limit in found):
        return Proof.PASS
    return Proof.NOTHING


def proofs(slo: Sequence[Objective], windows: Sequence[WindowSample]) -> dict[float, Proof | None]:
    """What is proven at each rate, by ascending rate."""
    rates = sorted({each.rate_rps for each in windows})
    return {rate: proof(slo, [each for each in windows if each.rate_rps == rate]) for rate in rates}
