"""The engines that the strategies are judged on, and the capacity that each one truly has.

TRUE_RPS was computed by `python benchmarks/search/truth.py`; run it again after a change to an engine, to the workload
or to the simulated engine's arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from gates.slo import DEFAULT_SLO, Metric, Objective
from traffic.arrivals import POISSON, Arrivals, Gamma
from traffic.step_model import EngineSettings

SLOW_FACTOR = 1.03
"""Drift makes steps slower; the capacity of an engine that is slower by this factor tells what drift does to it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine, its load and its limits. No engine pays for new batch shapes: the server is warm."""

    name: str
    tells: str
    engine: EngineSettings
    arrivals: Arrivals = POISSON
    slo: tuple[Objective, ...] = DEFAULT_SLO


SETTINGS = {
    each.name: each
    for each in (
        Setting(
            "noise",
            "steps vary by 5 % and wander by 3 % over 40 s",
            EngineSettings(step_noise_share=0.05, wander_share=0.03, wander_time_s=40.0, first_shape_cost_s=0.0),
        ),
        Setting(
            "drift",
            "the default engine, slower by 4 % an hour",
            EngineSettings(drift_share_per_hour=0.04, first_shape_cost_s=0.0),
        ),
        Setting(
            "bursts",
            "the default engine under arrivals of burstiness 0.5",
            EngineSettings(first_shape_cost_s=0.0),
            Gamma(0.5),
        ),
        Setting(
            "cliff",
            "at most 112 sequences, so that a queue builds up",
            EngineSettings(max_num_seqs=112, first_shape_cost_s=0.0),
        ),
        Setting(
            "gentle",
            "weights dominate a step, so that latency hardly grows with the rate; p99 TPOT at most 41 ms",
            EngineSettings(
                expert_read_s=0.022,
                kv_read_s_per_token=1e-8,
                compute_s_per_token=2e-5,
                first_shape_cost_s=0.0,
            ),
            slo=(DEFAULT_SLO[0], Objective(Metric.TPOT, Decimal(99), 0.041)),
        ),
    )
}

TRUE_RPS = {
    "noise": (11.177, 10.563),
    "drift": (11.350, 10.747),
    "bursts": (10.117, 9.534),
    "cliff": (11.975, 10.955),
    "gentle": (12.172, 10.892),
}
"""Per setting: the capacity without drift, and that of the same engine slower by SLOW_FACTOR."""
