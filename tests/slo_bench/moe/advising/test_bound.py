"""From times of kernels and steps to the most that tuning can win, and to a verdict."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest

from reports.kernels import KernelTime
from reports.run_directory import SweepDocument
from slo_bench.moe.advising.bound import BoundRow, Verdict, bounds_of, for_tpot, judged, tpot_slope
from slo_bench.moe.advising.steps import Step, StepTimes
from slo_bench.moe.advising.truncated import Depth

DEPTH = Depth(48, 46, 1000)


def timed(median_s: float | None, limit_share: float | None, source: str = "heuristic") -> KernelTime:
    return KernelTime(tokens=64, routing="uniform", source=source, entry={}, median_s=median_s, limit_share=limit_share)


def step(fewer_s: float, more_s: float) -> StepTimes:
    return StepTimes(Step(64, is_concentrated=False), {4: (fewer_s, 9.0, fewer_s), 12: (more_s, more_s, 9.0)})


def test_a_layer_is_the_difference_of_two_models_and_a_step_is_all_layers() -> None:
    one = step(1.0e-3, 2.6e-3)
    assert one.layer_s == pytest.approx(200e-6)
    assert one.whole_s(48) == pytest.approx(1.0e-3 + 44 * 200e-6)


def test_the_bound_is_what_all_kernels_are_above_their_limit() -> None:
    steps = {(64, "uniform"): step(1.0e-3, 2.6e-3)}
    others = [timed(90e-6, 0.9, "shipped"), timed(None, None)]
    (row,) = bounds_of([timed(100e-6, 0.75), *others], "heuristic", steps, DEPTH)
    assert row.step_s == pytest.approx(9.8e-3)
    assert row.moe_share == pytest.approx(46 * 100e-6 / 9.8e-3)
    assert row.most_share == pytest.approx(46 * 25e-6 / 9.8e-3)
    assert row.reached_share == pytest.approx(0.75)


def test_without_a_model_there_is_no_share_and_without_a_limit_no_bound() -> None:
    (row,) = bounds_of([timed(100e-6, 0.75)], "heuristic", {}, None)
    assert (row.step_s, row.moe_share, row.most_share) == (None, None, None)
    (row,) = bounds_of([timed(100e-6, None)], "heuristic", {(64, "uniform"): step(1.0e-3, 2.6e-3)}, DEPTH)
    assert row.moe_share is not None
    assert (row.limit_s, row.most_share, row.reached_share) == (None, None, None)


def row(tokens: int, most: float | None, reached: float = 0.8) -> BoundRow:
    return BoundRow(tokens=tokens, routing="uniform", kernel_s=1e-4, limit_s=reached * 1e-4, most_share=most)


def test_a_bound_below_what_a_sweep_can_see_says_to_ignore_the_warning() -> None:
    verdict, sentence = judged([row(1, 0.3), row(64, 0.019)], "heuristic", ())
    assert verdict is Verdict.IGNORE
    assert sentence == (
        "Ignore the warning: at 64 tokens a perfect kernel would shorten a decode step by at most 1.9%."
    )


def test_the_sizes_that_a_run_had_decide() -> None:
    rows = [row(1, 0.01), row(64, 0.12)]
    assert judged(rows, "heuristic", (1,))[0] is Verdict.IGNORE
    assert judged(rows, "heuristic", (64,))[0] is Verdict.TUNE
    assert judged(rows, "heuristic", ())[0] is Verdict.TUNE
    assert judged([row(1, 0.12)], "heuristic", ())[0] is Verdict.TUNE


def test_a_kernel_that_stays_far_from_its_limit_with_a_file_asks_for_another_backend() -> None:
    rows = [row(16, 0.2, 0.3), row(64, 0.2, 0.4), row(256, 0.2, 0.45)]
    verdict, sentence = judged(rows, "tuned", ())
    assert verdict is Verdict.CHANGE_BACKEND
    assert "with a tuned file the kernel reaches at most 45% of its limit" in sentence
    assert judged(rows, "heuristic", ())[0] is Verdict.TUNE  # a file comes first
    assert judged([*rows, row(128, 0.2, 0.6)], "tuned", ())[0] is Verdict.TUNE


def test_what_a_whole_search_has_left_is_not_to_be_searched_again() -> None:
    rows = [row(64, 0.2, 0.7), row(256, 0.3, 0.6)]
    verdict, sentence = judged(rows, "tuned", (), frozenset({1, 64, 256}))
    assert verdict is Verdict.CHANGE_BACKEND
    assert "at most 30%, and slo-bench tune has searched the whole space for this file" in sentence
    assert judged([row(64, 0.01, 0.7)], "tuned", (), frozenset({64}))[0] is Verdict.IGNORE
    assert judged(rows, "tuned", (), frozenset({1, 64}))[0] is Verdict.TUNE  # at 256 another size's entry runs
    assert judged(rows, "tuned", (64,), frozenset({1, 64}))[0] is Verdict.CHANGE_BACKEND
    assert judged(rows, "tuned", ())[0] is Verdict.TUNE


def test_without_steps_the_kernel_alone_says_to_tune_and_promises_nothing() -> None:
    verdict, sentence = judged([row(64, None)], "shipped", ())
    assert verdict is Verdict.TUNE
    assert "%" not in sentence
    assert "in place of the shipped file" in sentence


def sweep(*probes: tuple[float, float | None, bool]) -> SweepDocument:
    rows = [SimpleNamespace(rate_rps=rate, tpot_mean_s=tpot, is_valid=valid) for rate, tpot, valid in probes]
    return cast("SweepDocument", SimpleNamespace(probes=rows))


def test_the_slope_of_tpot_is_that_of_its_logarithm_over_the_rates_logarithm() -> None:
    points = [(rate, 0.01 * rate**0.5, True) for rate in (2.0, 4.0, 8.0, 16.0)]
    assert tpot_slope(sweep(*points, (9.0, 5.0, False), (9.0, None, True))) == pytest.approx(0.5)
    assert tpot_slope(sweep(*points[:2])) is None


def test_a_shorter_step_counts_more_for_tpot_where_fewer_requests_remain_in_flight() -> None:
    assert for_tpot(0.1, 0.0) == pytest.approx(0.1)
    assert for_tpot(0.1, 1.0) == pytest.approx(1 - 0.81)
    assert math.isclose(for_tpot(0.01, 0.6), 0.016, rel_tol=0.01)
