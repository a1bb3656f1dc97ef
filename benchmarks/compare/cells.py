"""The cells: two configurations of the step model, how they are measured, and what is known to be true of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from stepped import RATE_RPS, WARM, Arms, SteppedServer, load, pair_ratios, quiet, run_block, run_comparison

from gates.block import is_trend
from gates.comparison import Claim, ComparedMetric, compare
from gates.log_ratio import Estimate, mean_estimate
from traffic.step_model import EngineSettings

WANDER_SHARE = 0.00673
"""Makes mean TPOT of equal 20-second blocks of two servers differ by 1.4 % (sd).

Two warm vLLM servers side by side on one H200 differed by 0.4 and 2.0 % in such blocks: a root mean square of 1.4 %.
"""

SEEN_WANDER_TIME_S = 8.5
SEEN_WANDER_SHARE = 0.0081
"""The correlation time that one H200 showed (docs/method.md), in place of 20 s, and the share that makes equal
20-second blocks differ by the same 1.4 % (sd) then."""

STEP_PER_TPOT = 1 / 1.75
"""Change of the step time per change of mean TPOT at this rate, on logarithms: slower steps leave more in flight."""

DRIFT_SHARE = 0.026
"""Of mean TPOT over the twenty minutes."""

BUDGET_S = 1200.0
TRUE_EFFECT = -0.01

NOISY = dataclasses.replace(
    WARM, wander_share=WANDER_SHARE, drift_share_per_hour=DRIFT_SHARE * STEP_PER_TPOT * 3600 / BUDGET_S
)


def changed(tpot_share: float) -> EngineSettings:
    """The engine whose mean TPOT is larger by this share."""
    return dataclasses.replace(NOISY, step_time_factor=math.exp(STEP_PER_TPOT * math.log1p(tpot_share)))


def shorter(settings: EngineSettings) -> EngineSettings:
    """The engine whose noise is forgotten as fast as an H200's."""
    return dataclasses.replace(settings, wander_time_s=SEEN_WANDER_TIME_S, wander_share=SEEN_WANDER_SHARE)


def offset(tpot_sd: float) -> EngineSettings:
    """The engine whose starts differ in mean TPOT by this sd."""
    return dataclasses.replace(NOISY, start_offset_share=STEP_PER_TPOT * tpot_sd)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is simulated. truth: ln(B / A) of mean TPOT. known_offset_sd: what the comparison is told."""

    name: str
    arms: Arms
    pairs: int
    truth: float
    known_offset_sd: float | None = None


RAMP_S = 17.0
"""Twice the mean end-to-end latency at the rate of the warm-up, 1.25 times that of the comparison."""

PAIRS = 6
"""What fits into twenty minutes of load."""

MORE_PAIRS = 16
"""What finds a 1 % effect in nine of ten runs."""

SEEN_SHARE = -0.021
"""About the smallest effect that is found in nine of ten runs within the budget."""

OFFSET_SD = 0.01
SMALL_OFFSET_SD = 0.005

CELLS = (
    Cell("equal arms", Arms(NOISY, NOISY, RAMP_S), PAIRS, 0.0),
    Cell("1 % less", Arms(NOISY, changed(TRUE_EFFECT), RAMP_S), PAIRS, math.log1p(TRUE_EFFECT)),
    Cell(
        "1 % less, as long as it takes", Arms(NOISY, changed(TRUE_EFFECT), RAMP_S), MORE_PAIRS, math.log1p(TRUE_EFFECT)
    ),
    Cell("2.1 % less", Arms(NOISY, changed(SEEN_SHARE), RAMP_S), PAIRS, math.log1p(SEEN_SHARE)),
    Cell("equal arms, offset 1 %", Arms(offset(OFFSET_SD), offset(OFFSET_SD), RAMP_S), PAIRS, 0.0, OFFSET_SD),
    Cell(
        "equal arms, offset 0.5 %, 3 starts each",
        Arms(offset(SMALL_OFFSET_SD), offset(SMALL_OFFSET_SD), RAMP_S, instances=3),
        9,
        0.0,
    ),
)


SHORTER_CELLS = (
    Cell("equal arms, noise of 8.5 s", Arms(shorter(NOISY), shorter(NOISY), RAMP_S), PAIRS, 0.0),
    Cell(
        "1 % less, noise of 8.5 s",
        Arms(shorter(NOISY), shorter(changed(TRUE_EFFECT)), RAMP_S),
        PAIRS,
        math.log1p(TRUE_EFFECT),
    ),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What one run's statistics said.

    estimates: log ratio and half of the interval that is printed, per metric. instances: the same of mean TPOT between
    the servers that ran. trends: whether a trend was told, per arm. levels: ln of mean TPOT of A and B, per pair.
    """

    estimates: dict[ComparedMetric, tuple[float, float | None]]
    instances: tuple[float, float | None]
    claims: dict[ComparedMetric, Claim]
    load_s: float
    trends: tuple[bool, ...]
    levels: tuple[tuple[float, float], ...]


def found(cell: Cell, seed: int, draws: int) -> Found:
    """One run of a cell."""
    run = run_comparison(cell.arms, seed, cell.pairs)
    result = compare(run.pairs, seed=seed, known_offset_sd=cell.known_offset_sd, draws=draws)
    levels = tuple(
        (math.log(pair.a.tpot_mean_s or math.nan), math.log(pair.b.tpot_mean_s or math.nan)) for pair in run.pairs
    )
    return Found(
        estimates={each.metric: _ends(each.shown) for each in result.effects},
        instances=_ends(result.primary.instances),
        claims={each.metric: each.claim for each in result.effects},
        load_s=run.load_s,
        trends=tuple(is_trend(mean_estimate([tpot for tpot, _ in each])) for each in run.trends),
        levels=levels,
    )


def _ends(estimate: Estimate | None) -> tuple[float, float | None]:
    return (math.nan, None) if estimate is None else (estimate.log_ratio, estimate.half_width)


def calibrate(seed: int, runs: int) -> None:
    """Print what the constants above were chosen by, on these seeds."""
    for wander_share in (0.006, WANDER_SHARE, 0.0075):
        settings = dataclasses.replace(WARM, wander_share=wander_share)
        ratios = pair_ratios(settings, settings, seed, runs, ramp_s=RAMP_S, cohort_s=20.0)
        print(f"wander {wander_share:.5f}: equal 20-second blocks differ by {ratios.std():.3%} (sd)", flush=True)
    for factor in (0.98, 0.99, 1.01):
        ratios = pair_ratios(
            quiet(WARM), quiet(dataclasses.replace(WARM, step_time_factor=factor)), seed, runs // 10, ramp_s=RAMP_S
        )
        per_step = ratios.mean() / math.log(factor)
        print(f"step time {factor:.2f}: change of TPOT per change of the step, on logarithms {per_step:.3f}")
    e2e_s = [
        run_block(SteppedServer(quiet(WARM), each, 0), load(1.25 * RATE_RPS, each, 0, RAMP_S), 0.0).e2e_s
        for each in range(seed, seed + max(1, runs // 10))
    ]
    print(f"mean end-to-end latency at the rate of the warm-up: {sum(e2e_s) / len(e2e_s):.2f} s")
