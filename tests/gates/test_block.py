from __future__ import annotations

import math

import numpy as np
import pytest
from engines import failed, probe_facts, record
from hypothesis import given
from hypothesis import strategies as st

from gates.block import block_trend, cohort_of, grows, is_cut_off, is_trend, runs_ahead, trend, trend_shares
from gates.log_ratio import Estimate
from gates.slo import DEFAULT_SLO
from gates.verdict import judge_probe
from traffic.records import End


def steady(n: int, rate_rps: float, service_s: float) -> tuple[np.ndarray, np.ndarray]:
    begun = np.arange(n) / rate_rps
    return begun, begun + service_s


def test_a_cohort_holds_what_a_comparison_needs() -> None:
    good = [record(index, tpot_s=0.02 + 0.001 * index) for index in range(4)]
    slow = record(4, tpot_s=0.2)
    short = record(5, output_tokens=1)
    broken = failed(record(6))
    ramp = record(7, in_cohort=False)
    found = cohort_of(judge_probe(probe_facts([*good, slow, short, broken, ramp]), DEFAULT_SLO))
    assert found.tpot_s.tolist() == pytest.approx([0.02, 0.021, 0.022, 0.023, 0.2, math.inf])
    assert found.ttft_s.tolist() == pytest.approx([0.2] * 6 + [math.inf])
    assert found.tpot_mean_s == pytest.approx((0.02 + 0.021 + 0.022 + 0.023 + 0.2) / 5)
    assert found.good == 5
    assert found.window_s == pytest.approx(0.8)


def test_a_server_that_keeps_up_does_not_grow() -> None:
    begun, ended = steady(600, 10.0, 3.0)
    assert not runs_ahead(begun, ended, 0.0, 60.0)


def test_arrivals_that_run_ahead_of_completions_are_growth() -> None:
    begun = np.arange(600) / 10.0
    ended = 3.0 + np.arange(300) / 5.0
    assert runs_ahead(begun, ended, 0.0, 60.0)


@given(st.integers(0, 50))
def test_poisson_bunching_is_no_growth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    begun = np.cumsum(rng.exponential(0.1, size=700))
    ended = np.sort(begun + rng.exponential(6.0, size=700))
    assert not runs_ahead(begun, ended, 15.0, 65.0)


def test_growth_is_read_from_the_records() -> None:
    records = [
        record(index, due_s=index * 0.1, ttft_s=0.05 + 0.08 * index, tpot_s=0.001, in_cohort=index >= 100)
        for index in range(700)
    ]
    window = {"window_start_s": 10.0, "window_end_s": 70.0}
    assert grows(probe_facts(records, window=window))
    assert not grows(probe_facts([record(index) for index in range(700)], window=window))


def test_more_than_one_percent_at_the_drain_limit_is_cut_off() -> None:
    assert is_cut_off(7, 600)
    assert not is_cut_off(6, 600)
    assert is_cut_off(1, 0)
    assert not is_cut_off(0, 0)


def shares(tpot_s: np.ndarray, first_s: np.ndarray, tokens: int = 50) -> tuple[float, float] | None:
    last_s = first_s + tpot_s * (tokens - 1)
    return trend_shares(first_s, last_s, tpot_s, begun_s=first_s, ended_s=np.sort(last_s), duration_s=60.0)


def test_a_server_that_slows_down_inside_a_block_has_a_trend() -> None:
    first_s = np.sort(np.random.default_rng(0).uniform(0, 60, size=600))
    found = shares(0.03 * (1 + 0.2 * first_s / 60), first_s)
    assert found is not None
    assert found[0] == pytest.approx(0.18, abs=0.03)


def test_what_requests_in_flight_explain_is_no_trend() -> None:
    begun = 30 * (np.arange(1, 901) / 900) ** 0.5  # the rate doubles, and doubles again
    tpot_s = np.full(900, 0.03)
    for _ in range(20):
        ended = np.sort(begun + 49 * tpot_s)
        load = np.searchsorted(begun, begun + 0.7) - np.searchsorted(ended, begun + 0.7)
        tpot_s = 0.02 + 0.0001 * load
    found = trend_shares(begun, begun + 49 * tpot_s, tpot_s, begun_s=begun, ended_s=ended, duration_s=30.0)
    assert found is not None
    beyond, rise = found
    assert rise > 0.5
    assert abs(beyond) < 0.1 * rise


def test_a_handful_of_requests_and_a_flat_load_have_no_trend() -> None:
    assert shares(np.full(5, 0.03), np.arange(5.0)) is None
    assert block_trend(probe_facts([record(index) for index in range(4)])) is None
    assert block_trend(probe_facts([])) is None


def test_a_trend_is_told_only_beyond_its_spread_over_the_blocks() -> None:
    found = trend([(0.05, 0.0), (0.06, 0.1), (0.055, -0.1), None])
    assert is_trend(found.tpot)
    assert not is_trend(found.in_flight)
    assert trend([(0.05, 0.0), None]).tpot is None
    assert not is_trend(None)
    assert not is_trend(Estimate(1.0, None, 0))


def test_requests_that_never_ended_are_still_in_flight() -> None:
    held = [record(index, due_s=0.1 * index, ended_s=None, end=End.UNRESOLVED) for index in range(40)]
    assert grows(probe_facts(held, window={"window_start_s": 0.0, "window_end_s": 4.0}))
