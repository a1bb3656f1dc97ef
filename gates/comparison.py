"""Two arms at one load, from pairs of blocks: the effect on every metric, what may be said of it, what it would take.

Partners, one block of each arm, ran next to each other and share due times and lengths; different pairs never do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from gates.log_ratio import Estimate, after_looking, log_ratio
from gates.pooled import DRAWS, Cohort, goodput_effect, percentile_effect, resampling
from gates.spending import SpentMetric
from gates.starts import MIN_STARTS, MeanEffect, PairRatio, mean_effect

MIN_PAIRS = 3
"""Two orders cost a degree of freedom each, and noise needs one."""


class ComparedMetric(StrEnum):
    """What is compared. Means are over finished requests; percentiles count failures; goodput counts both."""

    TPOT_MEAN = "mean TPOT"
    TPOT_P50 = "p50 TPOT"
    TPOT_P99 = "p99 TPOT"
    TTFT_MEAN = "mean TTFT"
    TTFT_P50 = "p50 TTFT"
    TTFT_P99 = "p99 TTFT"
    GOODPUT = "goodput"


class Claim(StrEnum):
    """What may be said of an effect."""

    NOT_MEASURED = "not measured"
    TOO_FEW_PAIRS = "too few pairs"
    BELOW_RESOLUTION = "below resolution"
    WITHIN_DRIFT = "within drift"
    BETWEEN_INSTANCES = "between these instances only"
    REAL = "real"

    @property
    def meaning(self) -> str:
        """The claim as a half sentence."""
        return _MEANING[self]


_MEANING = {
    Claim.NOT_MEASURED: "one arm has no value: too few requests for the percentile, or it falls on a failure",
    Claim.TOO_FEW_PAIRS: "three pairs of blocks are the fewest that have an interval, so nothing is concluded",
    Claim.BELOW_RESOLUTION: "the interval includes no change, so the noise between blocks alone may look like this",
    Claim.WITHIN_DRIFT: (
        "the servers that ran differ, but two starts of one configuration differ by as much, so the change is not "
        "needed to explain it"
    ),
    Claim.BETWEEN_INSTANCES: (
        "the servers that ran differ by more than noise; whether other starts of them would differ alike is not known"
    ),
    Claim.REAL: "more than noise between blocks and offsets of server starts explain",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two partners. start_a and start_b: which start of its arm each ran on."""

    number: int
    a: Cohort
    b: Cohort
    a_first: bool
    start_a: int = 0
    start_b: int = 0


@dataclass(frozen=True, slots=True)
class MetricEffect:
    """B against A in one metric.

    a_value and b_value: seconds, requests a second for goodput, watts or joules of what was spent; for means the
    geometric mean over the pairs. None where there is none. instances: between the servers that ran. starts: for starts
    in general, None where that is not known. n_pairs: pairs with a value in both arms. control: the second start of A
    against its first, of means where A has one more than B.
    """

    metric: ComparedMetric | SpentMetric
    a_value: float | None
    b_value: float | None
    n_pairs: int
    instances: Estimate | None
    starts: Estimate | None
    claim: Claim
    control: Estimate | None = None

    @property
    def shown(self) -> Estimate | None:
        """The estimate whose interval is printed: the one that carries the offset of a start, where it is known."""
        return self.instances if self.starts is None else self.starts


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that the pairs say. effects: one per metric, mean TPOT first, which is the one that was asked for.

    Power and energy come last, where they were measured. starts_per_arm: of the arm that has fewer. mean: the means'
    model of mean TPOT; None without a usable pair.
    """

    effects: tuple[MetricEffect, ...]
    starts_per_arm: int
    mean: MeanEffect | None

    @property
    def primary(self) -> MetricEffect:
        """The effect on mean TPOT."""
        return self.effects[0]

    def effect(self, metric: ComparedMetric | SpentMetric) -> MetricEffect:
        """The effect on one metric that was measured."""
        return next(each for each in self.effects if each.metric is metric)


def compare(
    pairs: Sequence[Pair],
    *,
    seed: int,
    known_offset_sd: float | None = None,
    is_sequential: bool = False,
    draws: int = DRAWS,
) -> Comparison:
    """Compare two arms by their pairs.

    known_offset_sd: of the log level of mean TPOT of one start, measured before between equal servers. is_sequential:
    pairs were added until the interval was narrow. draws: of the resampling behind percentiles and goodput.
    """
    starts = starts_per_arm(pairs)
    tpot, mean = _mean(ComparedMetric.TPOT_MEAN, pairs, starts, known_offset_sd)
    ttft, _ = _mean(ComparedMetric.TTFT_MEAN, pairs, starts, None)
    effects = (tpot, *_percentiles(pairs, starts, seed, ttft, draws), *_spent(pairs, starts))
    if is_sequential:
        effects = tuple(_after_looking(each, starts) for each in effects)
    return Comparison(effects, starts, mean)


def quick_look(
    pairs: Sequence[Pair], known_offset_sd: float | None = None, *, is_sequential: bool = False
) -> tuple[MetricEffect, MeanEffect | None]:
    """The effect on mean TPOT alone, without resampling: what a running comparison looks at."""
    starts = starts_per_arm(pairs)
    found, mean = _mean(ComparedMetric.TPOT_MEAN, pairs, starts, known_offset_sd)
    return (_after_looking(found, starts) if is_sequential else found), mean


def _after_looking(found: MetricEffect, starts: int) -> MetricEffect:
    """The effect with the intervals, and the claim, of a comparison that ended when it was narrow enough."""
    instances, general, control = (
        None if each is None else after_looking(each) for each in (found.instances, found.starts, found.control)
    )
    is_open = found.claim in (Claim.NOT_MEASURED, Claim.TOO_FEW_PAIRS)
    claim = found.claim if is_open else claim_of(instances, general, starts, control)
    return replace(found, instances=instances, starts=general, control=control, claim=claim)


def starts_per_arm(pairs: Sequence[Pair]) -> int:
    """How many starts of each arm the pairs ran on; of the arm that has fewer."""
    return min(len({pair.start_a for pair in pairs}), len({pair.start_b for pair in pairs}))


def _percentiles(
    pairs: Sequence[Pair], starts: int, seed: int, ttft: MetricEffect, draws: int
) -> Sequence[MetricEffect]:
    """The effects on everything that is pooled, in the order in which they are printed, mean TTFT among them."""
    a, b = [pair.a for pair in pairs], [pair.b for pair in pairs]
    if not pairs:
        return [_found(metric, (None, None, None), 0, starts) for metric in list(ComparedMetric)[1:]]
    resampled = resampling([pair.start_a for pair in pairs], [pair.start_b for pair in pairs], seed, draws)
    tpot = [each.tpot_s for each in a], [each.tpot_s for each in b]
    first = [each.ttft_s for each in a], [each.ttft_s for each in b]

    def pooled(metric: ComparedMetric) -> MetricEffect:
        values = tpot if metric in (ComparedMetric.TPOT_P50, ComparedMetric.TPOT_P99) else first
        percentile = Decimal(50 if metric in (ComparedMetric.TPOT_P50, ComparedMetric.TTFT_P50) else 99)
        return _found(metric, percentile_effect(*values, percentile, resampled), len(pairs), starts)

    goodput = _found(ComparedMetric.GOODPUT, goodput_effect(a, b, resampled), len(pairs), starts)
    return [
        pooled(ComparedMetric.TPOT_P50),
        pooled(ComparedMetric.TPOT_P99),
        ttft,
        pooled(ComparedMetric.TTFT_P50),
        pooled(ComparedMetric.TTFT_P99),
        goodput,
    ]


def _spent(pairs: Sequence[Pair], starts: int) -> Sequence[MetricEffect]:
    """The effects on power and energy, where any block has them."""
    measured = [
        metric
        for metric in (SpentMetric.POWER_MEAN, SpentMetric.JOULES_PER_TOKEN)
        if any(_MEANS[metric](side) is not None for pair in pairs for side in (pair.a, pair.b))
    ]
    return [_mean(metric, pairs, starts, None)[0] for metric in measured]


_MEANS: Mapping[ComparedMetric | SpentMetric, Callable[[Cohort], float | None]] = {
    ComparedMetric.TPOT_MEAN: lambda cohort: cohort.tpot_mean_s,
    ComparedMetric.TTFT_MEAN: lambda cohort: cohort.ttft_mean_s,
    SpentMetric.POWER_MEAN: lambda cohort: cohort.power_mean_w,
    SpentMetric.JOULES_PER_TOKEN: lambda cohort: cohort.joules_per_token,
}
"""What is compared as a mean: a block's value."""


def _found(
    metric: ComparedMetric | SpentMetric,
    found: tuple[float | None, float | None, Estimate | None],
    n_pairs: int,
    starts: int,
) -> MetricEffect:
    """A resampled effect: over starts where there are enough of them, else between the servers that ran."""
    a_value, b_value, estimate = found
    over_starts = starts >= MIN_STARTS
    instances, general = (None, estimate) if over_starts else (estimate, None)
    claim = Claim.NOT_MEASURED if estimate is None else claim_of(instances, general, starts)
    claim = claim if n_pairs >= MIN_PAIRS else Claim.TOO_FEW_PAIRS
    return MetricEffect(metric, a_value, b_value, n_pairs, instances, general, claim)


def _mean(
    metric: ComparedMetric | SpentMetric, pairs: Sequence[Pair], starts: int, known_offset_sd: float | None
) -> tuple[MetricEffect, MeanEffect | None]:
    ratios, logs = [], []
    for pair in pairs:
        values = [_MEANS[metric](side) for side in (pair.a, pair.b)]
        ratio = log_ratio(*values)
        if ratio is not None:
            ratios.append(PairRatio(ratio, pair.a_first, pair.start_a, pair.start_b))
            logs.append([math.log(value) for value in values if value is not None])
    if not ratios:
        return _found(metric, (None, None, None), 0, starts), None
    found = mean_effect(ratios, known_offset_sd)
    a_value, b_value = (math.exp(math.fsum(each[side] for each in logs) / len(logs)) for side in (0, 1))
    enough = len(ratios) >= MIN_PAIRS
    claim = claim_of(found.instances, found.starts, starts, found.control) if enough else Claim.TOO_FEW_PAIRS
    row = MetricEffect(metric, a_value, b_value, len(ratios), found.instances, found.starts, claim, found.control)
    return row, found


def claim_of(
    instances: Estimate | None, starts: Estimate | None, starts_per_arm: int, control: Estimate | None = None
) -> Claim:
    """What may be said. Nothing is called real with fewer than three starts of each arm.

    control: two starts of one configuration, one against the other. An effect is beyond it only when its whole interval
    is larger in size than anything in the control's: the offset of a start has no preferred sign.
    """
    known = [each for each in (instances, starts) if each is not None and each.interval is not None]
    if not known:
        return Claim.TOO_FEW_PAIRS
    differ_here = any(each.excludes_no_change for each in known)
    if starts is not None and starts.interval is not None:
        if not starts.excludes_no_change:
            return Claim.WITHIN_DRIFT if differ_here else Claim.BELOW_RESOLUTION
        return Claim.REAL if starts_per_arm >= MIN_STARTS else Claim.BETWEEN_INSTANCES
    if not differ_here:
        return Claim.BELOW_RESOLUTION
    is_beyond = control is None or instances is None or instances.nearest > control.furthest
    return Claim.BETWEEN_INSTANCES if is_beyond else Claim.WITHIN_DRIFT
