"""Whether power can be read on this machine, and whether both ways to energy agree: a few seconds, whatever runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from slo_bench.power.choice import ALL, Choice
from slo_bench.power.measuring import PowerSource, measuring
from slo_bench.power.telemetry import READER

CHECK_S = 5.0

HERE = PowerSource((*READER, *Choice(named=(ALL,)).arguments()), idle_s=0.0)
"""All GPUs of this machine."""


@dataclass(frozen=True, slots=True)
class PowerCheck:
    """not_measured: why nothing is read, else None. counter_gap_share: integral of power / energy counter - 1."""

    not_measured: str | None
    source: str | None = None
    gpus: int = 0
    mean_w: float | None = None
    counter_gap_share: float | None = None
    coverage_share: float | None = None


async def read_power(seconds: float = CHECK_S, source: PowerSource = HERE) -> PowerCheck:
    """Read for so long and hold the integral of power against the counter's difference."""
    async with measuring(replace(source, idle_s=0.0)) as power:
        if power.not_measured is not None:
            return PowerCheck(power.not_measured)
        start_s = time.monotonic()
        await asyncio.sleep(seconds)
        found = power.between(start_s, start_s + seconds)
        return PowerCheck(
            not_measured=None,
            source=power.document().source,
            gpus=len(found.gpus),
            mean_w=found.mean_w,
            counter_gap_share=found.counter_gap_share,
            coverage_share=found.coverage_share,
        )
