"""The fitted capacity: it finds a known one, says how well, and says nothing where it cannot."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from gates.estimate import Estimate, capacity_estimate
from gates.margin import Values, WindowSample, reading
from gates.slo import ObjectiveResult, parse_objective
from gates.verdict import Outcome
from traffic.summary import allowed

TPOT = parse_objective("tpot:p99:50")
SLOPE = 1.2
SPREAD = 0.12
BLOCKS = 6


def window(rate_rps: float, repeat: int, seed: int, true_rps: float = 11.0, *, ends_early: bool = True) -> WindowSample:
    """A window whose p99 crosses 50 ms at true_rps on average. Blocks wander, alike for windows with one draw."""
    per_block = round(20 * rate_rps)
    draw = np.random.default_rng((seed, repeat))
    own = np.random.default_rng((seed, repeat, round(1000 * rate_rps)))
    wander = 0.08 * (math.sqrt(0.8) * draw.normal(size=BLOCKS) + math.sqrt(0.2) * own.normal(size=BLOCKS))
    spread = math.hypot(SPREAD, 0.08)
    centre = math.log(TPOT.limit_s) + SLOPE * math.log(rate_rps / true_rps) - 2.326 * spread
    logs = np.concatenate([centre + each + SPREAD * own.normal(size=per_block) for each in wander])
    over, most = int(np.sum(logs > math.log(TPOT.limit_s))), allowed(len(logs), TPOT.percentile)
    values = Values(np.arange(len(logs)), np.repeat(np.arange(BLOCKS), per_block), logs)
    outcome = Outcome.PASS if over <= most else Outcome.FAIL
    result = ObjectiveResult(TPOT, len(logs), over, most, None)
    is_whole = outcome.passed or not ends_early
    found = (reading(TPOT, values, None),)
    return WindowSample(rate_rps, repeat, 20.0 * BLOCKS, outcome, is_whole, (result,), found)


def search(seed: int, true_rps: float = 11.0) -> list[WindowSample]:
    """Windows as a search leaves them: one draw on the way, two more at both ends."""
    plan = [(8.0, 0), (10.0, 0), (12.5, 0), (11.2, 0), (10.6, 0), (10.6, 1), (10.6, 2), (11.2, 1), (11.2, 2)]
    return [window(rate * true_rps / 11.0, repeat, seed, true_rps) for rate, repeat in plan]


def found(windows: Sequence[WindowSample]) -> Estimate:
    estimate = capacity_estimate([TPOT], windows)
    assert estimate is not None
    return estimate


def test_a_known_capacity_is_recovered() -> None:
    estimates = [found(search(seed)).rps for seed in range(6)]
    assert float(np.median(estimates)) == pytest.approx(11.0, rel=0.03)
    assert max(abs(each / 11.0 - 1) for each in estimates) < 0.10


def test_the_interval_holds_the_truth_in_most_searches() -> None:
    intervals = [found(search(seed)) for seed in range(100, 110)]
    assert (
        sum(each.low_rps <= 11.0 <= each.high_rps for each in intervals) >= 7
    )  # of 10 at 90 %: fewer than 7 have a chance of 1 %
    assert all(each.low_rps < each.rps < each.high_rps for each in intervals)


def test_the_estimate_scales_with_the_rates() -> None:
    windows = search(3)
    twice = [
        WindowSample(2 * w.rate_rps, w.repeat, w.duration_s, w.outcome, w.is_whole, w.results, w.readings)
        for w in windows
    ]
    assert found(twice).rps == pytest.approx(2 * found(windows).rps, rel=1e-3)


def whole(seed: int, repeats: Sequence[int]) -> list[WindowSample]:
    """Windows at and around the capacity, all run to their end."""
    rates = (9.0, 10.0, 11.0, 12.0, 10.5, 11.5, 9.5, 12.5)
    return [window(rate, repeat, seed, ends_early=False) for rate, repeat in zip(rates, repeats, strict=True)]


def test_a_failed_window_that_ended_early_lowers_the_estimate() -> None:
    windows = whole(5, range(8))
    early = next(each for seed in range(50) if not (each := window(10.5, 9, seed)).is_whole)
    assert found([*windows, early]).rps < found(windows).rps


def test_nothing_is_estimated_where_the_windows_cannot_say() -> None:
    assert capacity_estimate([TPOT], []) is None
    assert capacity_estimate([TPOT], [window(2.0, 0, 0)]) is None  # far below the limit
    early = next(each for seed in range(50) if not (each := window(12.5, 0, seed)).is_whole)
    assert capacity_estimate([TPOT], [early]) is None
