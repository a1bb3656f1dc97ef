"""What GPUs drew: samples as they were read, and the energy of a span of time with how well it is known.

A reading that is no number is missing, never 0 (R28). Energy comes from the driver's own counter where it has one, else
from the integral of power; where both exist they are held against each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

LEAST_COVERAGE = 0.9
"""Below this share of the span with readings their integral is no figure. The counter needs only its two ends."""

LARGEST_GAP_S = 1.0
"""Longer than this between two readings, nothing is known of the time between them."""

GAP_STEPS = 2.5
"""A source that is read less often than that may be this many of its steps late."""

SETTLING_S = 1.0
"""Drivers since Ampere give power as an average over the last second: the first second tells of what was before."""

DISAGREEMENT = 0.10
"""Counter and integral further apart than this are flagged."""

HELD_DOWN: Mapping[str, int] = {
    "application clocks": 0x2,
    "software power cap": 0x4,
    "hardware slowdown": 0x8,
    "sync boost": 0x10,
    "software thermal slowdown": 0x20,
    "hardware thermal slowdown": 0x40,
    "hardware power brake": 0x80,
    "display clock": 0x100,
}
"""Why clocks were below what was asked for: NVML's clock event reasons (nvml.h), bit 0x1, "idle", left out."""


@dataclass(frozen=True, slots=True)
class PowerSample:
    """One reading of one GPU; None for what its source does not say.

    at_s: CLOCK_MONOTONIC. energy_j: since the driver was loaded. power_field: "instant" or "average" (of about a
    second). clocks in MHz. event_reasons: NVML's bits. utilization_share: of time with a kernel running. utc_s: POSIX
    seconds. memory_used_mib: by all that runs there.
    """

    at_s: float
    uuid: str
    power_w: float | None
    power_field: Literal["instant", "average"]
    energy_j: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    event_reasons: int | None
    utilization_share: float | None
    utc_s: float | None = None
    memory_used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class SpanPower:
    """What some GPUs drew in a span, all together; None for what is not known.

    energy_j: by `source`. coverage_share: of the span with readings, of the worst GPU. counter_gap_share: integral over
    counter - 1. held_down: share of readings in which a reason of HELD_DOWN was set, those that were; None where the
    source does not say. flags: what a reader must know.
    """

    gpus: tuple[str, ...]
    source: Literal["counter", "integral"] | None
    energy_j: float | None
    mean_w: float | None
    coverage_share: float
    counter_gap_share: float | None
    sm_clock_median_mhz: float | None
    temperature_max_c: int | None
    utilization_mean_share: float | None
    held_down: Mapping[str, float] | None
    flags: tuple[str, ...]

    def joules_per_token(self, tokens_per_s: float | None) -> float | None:
        """Energy per output token, at the rate at which tokens arrived in the same span; None without either."""
        return self.mean_w / tokens_per_s if self.mean_w is not None and tokens_per_s else None


def span_power(
    samples: Sequence[PowerSample],
    start_s: float,
    end_s: float,
    *,
    gpus: Sequence[str] | None = None,
    every_s: float = 0.1,
) -> SpanPower:
    """The energy between two moments of CLOCK_MONOTONIC.

    samples: in the order of time. gpus: UUIDs of those that count, all that were read when None. every_s: how often
    they were meant to be read.
    """
    uuids = tuple(dict.fromkeys(each.uuid for each in samples) if gpus is None else gpus)
    samples = [each for each in samples if each.uuid in uuids]
    gap_s = max(LARGEST_GAP_S, GAP_STEPS * every_s)
    parts = [_OneGpu([each for each in samples if each.uuid == uuid], start_s, end_s, gap_s) for uuid in uuids]
    coverage = min((part.coverage_share for part in parts), default=0.0)
    inside = [each for each in samples if start_s <= each.at_s <= end_s]
    counted, integrated = (_sum([getattr(part, name) for part in parts]) for name in ("counter_j", "integral_j"))
    gap = None
    if counted and integrated is not None:
        gap = integrated / counted - 1
    if coverage < LEAST_COVERAGE:
        integrated = None
    energy_j = integrated if counted is None else counted
    flags = []
    if parts and coverage < LEAST_COVERAGE:
        flags.append(f"power was read for {coverage:.0%} of the time")
    if gap is not None and abs(gap) > DISAGREEMENT:
        flags.append(f"summed power readings and the energy counter differ by {gap:+.0%}")
    clocks = [each.sm_clock_mhz for each in inside if each.sm_clock_mhz is not None]
    used = [each.utilization_share for each in inside if each.utilization_share is not None]
    source: Literal["counter", "integral"] | None = None
    if energy_j is not None:
        source = "integral" if counted is None else "counter"
    return SpanPower(
        gpus=uuids,
        source=source,
        energy_j=energy_j,
        mean_w=None if energy_j is None or end_s <= start_s else energy_j / (end_s - start_s),
        coverage_share=coverage,
        counter_gap_share=gap,
        sm_clock_median_mhz=statistics.median(clocks) if clocks else None,
        temperature_max_c=max((each.temperature_c for each in inside if each.temperature_c is not None), default=None),
        utilization_mean_share=statistics.fmean(used) if used else None,
        held_down=_held_down(inside),
        flags=tuple(flags),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum, None where one is unknown: half of the GPUs is no answer."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None


def _held_down(samples: Sequence[PowerSample]) -> Mapping[str, float] | None:
    told = [each.event_reasons for each in samples if each.event_reasons is not None]
    if not told:
        return None
    shares = {name: sum(bool(reasons & bit) for reasons in told) / len(told) for name, bit in HELD_DOWN.items()}
    return {name: share for name, share in shares.items() if share > 0}


class _OneGpu:
    """One GPU's readings over a span."""

    def __init__(self, samples: Sequence[PowerSample], start_s: float, end_s: float, gap_s: float) -> None:
        powers = [(each.at_s, each.power_w) for each in samples if each.power_w is not None]
        energies = [(each.at_s, each.energy_j) for each in samples if each.energy_j is not None]
        is_average = any(each.power_field == "average" for each in samples)
        self.integral_j, covered_s = _integral(powers, start_s + SETTLING_S * is_average, end_s, gap_s)
        length_s = end_s - start_s - SETTLING_S * is_average
        self.coverage_share = covered_s / length_s if length_s > 0 else 0.0
        if self.integral_j is not None and covered_s > 0:
            self.integral_j *= (end_s - start_s) / covered_s  # the part without readings drew what the rest did
        ends = [_at(energies, moment_s, gap_s) for moment_s in (start_s, end_s)]
        self.counter_j = None
        if ends[0] is not None and ends[1] is not None and ends[1] >= ends[0]:
            self.counter_j = ends[1] - ends[0]


def _integral(
    points: Sequence[tuple[float, float]], start_s: float, end_s: float, gap_s: float
) -> tuple[float | None, float]:
    """Trapezoids between readings that are close enough, and the seconds that they cover."""
    total_j, covered_s = 0.0, 0.0
    for (at_s, watts), (next_s, next_w) in pairwise(points):
        span_s = _overlap(at_s, next_s, start_s, end_s)
        if span_s <= 0 or next_s - at_s > gap_s:
            continue
        middle_s = (max(at_s, start_s) + min(next_s, end_s)) / 2
        total_j += span_s * (watts + (next_w - watts) * (middle_s - at_s) / (next_s - at_s))
        covered_s += span_s
    return (total_j if covered_s > 0 else None), covered_s


def _overlap(start_s: float, end_s: float, from_s: float, to_s: float) -> float:
    return max(0.0, min(end_s, to_s) - max(start_s, from_s))


def _at(points: Sequence[tuple[float, float]], moment_s: float, gap_s: float) -> float | None:
    """The counter at a moment, between two readings that are close enough; None where nothing was read."""
    for (at_s, value), (next_s, next_value) in pairwise(points):
        if at_s <= moment_s <= next_s and next_s - at_s <= gap_s:
            return value + (next_value - value) * (moment_s - at_s) / (next_s - at_s) if next_s > at_s else value
    return None
