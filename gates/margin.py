"""What the margins of one rate's windows prove: bounds on a percentile, from blocks of 20 seconds.

Requests over a limit come in episodes, so their count proves little. Their distance to the limit tells more. Blocks are
the unit: the logarithm of a metric has a mean and a spread, a percentile lies so many spreads above the mean (the tail
factor), and what blocks differ by tells how well mean and spread are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from gates.slo import Objective, ObjectiveResult
from gates.verdict import Outcome, ProbeVerdict
from traffic.records import RequestRecord
from traffic.schedule import Window
from traffic.summary import allowed, cohort

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BLOCK_S = 20.0
MIN_BLOCKS = 6
PASS_CONFIDENCE = 0.95
FAIL_CONFIDENCE = 0.975

TAIL_FLOOR = 1.225
"""Latencies have a heavier tail than a log-normal: their 99th percentile was 2.7 to 3.0 spreads above the mean in the
simulated engines, not 2.33. A pass takes the sample's own factor, but at least the normal one times this."""

BLOCK_FLOOR = 1.25
"""A percentile's standard deviation between blocks, in spreads, is taken as at least this. Quiet windows show small
percentiles and small differences between blocks at once; believed, they would prove a pass at capacity in one of four
windows instead of one of twenty."""


LEAST_VARIANCE = 1e-12
"""Latencies that differ by less than a millionth are equal; the rest is rounding."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One objective's metric in one or more windows of one rate.

    logs: natural logarithms of the metric in seconds, of the requests that have it. blocks: index of each one's block.
    block_count: how many blocks there are. failed: requests that are over every limit.
    """

    logs: FloatArray
    blocks: IntArray
    block_count: int
    failed: int


@dataclass(frozen=True, slots=True)
class WindowSample:
    """What a valid window tells of its rate; results and samples in the order of the SLO.

    duration_s: of the window as planned. samples hold whole blocks only: those in which every request was resolved.
    """

    rate_rps: float
    repeat: int
    duration_s: float
    outcome: Outcome
    is_whole: bool
    results: tuple[ObjectiveResult, ...]
    samples: tuple[Sample, ...]

    @property
    def is_unstable(self) -> bool:
        """Whether requests in flight grew without bound."""
        return self.outcome is Outcome.UNSTABLE


def window_sample(verdict: ProbeVerdict) -> WindowSample:
    """The sample of a valid window. Raises ValueError for an invalid one: it is never a result."""
    window = verdict.facts.window
    if verdict.outcome is None or window.rate_rps is None:
        raise ValueError("an invalid window, or one without a rate, says nothing of a rate")
    members = cohort(verdict.facts.records)
    return WindowSample(
        rate_rps=window.rate_rps,
        repeat=window.repeat,
        duration_s=window.duration_s,
        outcome=verdict.outcome,
        is_whole=not verdict.facts.stop.is_early,
        results=verdict.results,
        samples=tuple(sample_of(result.objective, members, window) for result in verdict.results),
    )


def sample_of(objective: Objective, members: Sequence[RequestRecord], window: Window) -> Sample:
    """The sample of one objective. members: the cohort, unresolved requests of a probe that ended early included.

    The last block is longer where the window is no multiple of a block. Blocks that hold an unresolved request are left
    out: those that would be missing in them are the slow ones.
    """
    count = max(1, int(window.duration_s / BLOCK_S))
    logs: list[list[float]] = [[] for _ in range(count)]
    failed = [0] * count
    is_open = [False] * count
    for record in members:
        block = min(count - 1, max(0, int((record.due_s - window.window_start_s) / BLOCK_S)))
        if not record.is_resolved:
            is_open[block] = True
        elif record.has_failed:
            failed[block] += 1
        elif (value := objective.metric.of(record)) is not None and value > 0:
            logs[block].append(math.log(value))
    kept = [block for block in range(count) if logs[block] and not is_open[block]]
    return Sample(
        logs=np.array([each for block in kept for each in logs[block]], dtype=np.float64),
        blocks=np.array([index for index, block in enumerate(kept) for _ in logs[block]], dtype=np.int64),
        block_count=len(kept),
        failed=sum(count for count, is_left_out in zip(failed, is_open, strict=True) if not is_left_out),
    )


def pooled(samples: Sequence[Sample]) -> Sample:
    """Several windows as one; blocks of different windows stay different."""
    offsets = np.cumsum([0, *(each.block_count for each in samples)])
    return Sample(
        logs=np.concatenate([each.logs for each in samples]),
        blocks=np.concatenate([each.blocks + offset for each, offset in zip(samples, offsets[:-1], strict=True)]),
        block_count=int(offsets[-1]),
        failed=sum(each.failed for each in samples),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """A sample's shape on the logarithmic scale.

    spread: standard deviation about the long-run mean, so the variance of this sample's own mean is added. tail: the
    percentile's distance from the mean in spreads, None where it falls on a failure. means, squares: per block, the
    mean, and the mean square about the overall mean, weighted by the block's share of the requests.
    """

    mean: float
    spread: float
    tail: float | None
    means: FloatArray
    squares: FloatArray

    @property
    def block_count(self) -> int:
        """How many blocks."""
        return len(self.means)

    def value(self, tail: float) -> float:
        """The percentile for a tail factor."""
        return self.mean + tail * self.spread

    def block_sd(self, tail: float) -> float:
        """The standard deviation between blocks of what each contributes to the percentile, at least the floor's."""
        parts = self.means + tail / (2 * self.spread) * self.squares
        return max(float(parts.std(ddof=1)), BLOCK_FLOOR * self.spread)


def shape(sample: Sample, objective: Objective) -> Shape | None:
    """The shape of a sample; None with fewer than two blocks, or where all values are equal."""
    count, n = sample.block_count, len(sample.logs)
    if count < 2:  # noqa: PLR2004 - one block has no spread between blocks
        return None
    mean = float(sample.logs.mean())
    variance = float(sample.logs.var())
    if variance < LEAST_VARIANCE:
        return None
    sizes = np.bincount(sample.blocks, minlength=count)
    weights = sizes * (count / n)
    off = sample.logs - mean
    means = weights * (np.bincount(sample.blocks, off, count) / sizes)
    squares = weights * (np.bincount(sample.blocks, off * off, count) / sizes - variance)
    spread = math.sqrt(variance + float(means.var(ddof=1)) / count)
    return Shape(mean, spread, _tail(sample, objective, mean, math.sqrt(variance)), means, squares)


def _tail(sample: Sample, objective: Objective, mean: float, spread: float) -> float | None:
    """Failures take the highest ranks, so that each one moves the percentile up among those that did not fail."""
    n = len(sample.logs)
    rank = n - (allowed(n + sample.failed, objective.percentile) - sample.failed)
    if rank > n:
        return None
    return (float(np.partition(sample.logs, rank - 1)[rank - 1]) - mean) / spread


def normal_tail(objective: Objective) -> float:
    """The tail factor of a log-normal."""
    return float(ndtri(float(objective.percentile) / 100))


class Proof(StrEnum):
    """What the margins of a rate's windows prove."""

    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Bounds:
    """One-sided bounds of an objective's percentile, natural logarithms of seconds.

    upper: at 95 %, None where a request failed, since a failure has no latency. lower: at 97.5 %.
    """

    lower: float
    upper: float | None


def bounds(sample: Sample, objective: Objective) -> Bounds | None:
    """The bounds of a percentile, by t over the blocks; None with fewer than six blocks or nothing that varies.

    The spread's own uncertainty is in the blocks: each contributes its mean square too, so no chi-square is needed.
    Requests that failed rank above all others. Where the percentile falls on one, it is taken as the largest latency
    that did not fail, which it is at least.
    """
    found = shape(sample, objective) if sample.block_count >= MIN_BLOCKS else None
    if found is None:
        return None
    count = found.block_count
    own = found.tail if found.tail is not None else (float(sample.logs.max()) - found.mean) / found.spread
    high = max(own, TAIL_FLOOR * normal_tail(objective))
    return Bounds(
        lower=found.value(own) - _half_width(found, own, count, FAIL_CONFIDENCE),
        upper=None if sample.failed else found.value(high) + _half_width(found, high, count, PASS_CONFIDENCE),
    )


def _half_width(found: Shape, tail: float, count: int, confidence: float) -> float:
    return float(stdtrit(count - 1, confidence)) * found.block_sd(tail) / math.sqrt(count)


def proof(slo: Sequence[Objective], windows: Sequence[WindowSample]) -> Proof | None:
    """What all windows of one rate prove together; None where an objective has too few blocks and none shows a fail.

    A pass needs every window whole and stable, with no failed request: what ended early or failed has no margin. So
    neither a failure nor an unfinished request can ever turn anything into a proven pass.
    """
    if not windows:
        return None
    found = [
        (bounds(pooled([window.samples[index] for window in windows]), objective), math.log(objective.limit_s))
        for index, objective in enumerate(slo)
    ]
    if any(each is not None and each.lower > limit for each, limit in found):
        return Proof.FAIL
    if any(each is None for each, _ in found):
        return None
    is_whole = all(window.is_whole and not window.is_unstable for window in windows)
    if is_whole and all(each is not None and each.upper is not None and each.upper < limit for each, limit in found):
        return Proof.PASS
    return Proof.NOTHING


def proofs(slo: Sequence[Objective], windows: Sequence[WindowSample]) -> dict[float, Proof | None]:
    """What is proven at each rate, by ascending rate."""
    rates = sorted({each.rate_rps for each in windows})
    return {rate: proof(slo, [each for each in windows if each.rate_rps == rate]) for rate in rates}
