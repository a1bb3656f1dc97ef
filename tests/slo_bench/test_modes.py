"""The three modes: lengths, percentiles, and windows long enough for what they claim."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gates.capacity import Strategy
from gates.slo import DEFAULT_SLO, parse_objective
from slo_bench.modes import MODES, Mode, mode_named
from traffic.arrivals import POISSON
from traffic.errors import UsageError

SMOKE, QUICK, FULL = (mode_named(name) for name in ("smoke", "quick", "full"))


def test_quick_is_the_published_method() -> None:
    assert (QUICK.duration_s, QUICK.ramp_s, QUICK.resolution_share, QUICK.repeats) == (120, 20, 0.03, 2)
    assert QUICK.slo(DEFAULT_SLO) == DEFAULT_SLO
    assert not QUICK.is_smoke


def test_full_is_longer_finer_and_repeats_more() -> None:
    assert (FULL.duration_s, FULL.resolution_share, FULL.repeats) == (300, 0.01, 3)
    assert FULL.slo(DEFAULT_SLO) == DEFAULT_SLO


def test_smoke_judges_p90_in_five_minutes_and_calls_itself_smoke() -> None:
    assert SMOKE.is_smoke
    assert SMOKE.max_minutes is not None
    assert SMOKE.max_minutes < 5
    assert [str(each) for each in SMOKE.slo(DEFAULT_SLO)] == ["ttft:p90:2000", "tpot:p90:50"]


def test_smoke_does_not_tighten_a_percentile_that_is_lower_already() -> None:
    assert [str(each) for each in SMOKE.slo([parse_objective("ttft:p50:300")])] == ["ttft:p50:300"]


def test_smoke_bounds_the_client_less_tightly() -> None:
    assert SMOKE.bounds.send_lag_p99_s > QUICK.bounds.send_lag_p99_s
    assert FULL.bounds == QUICK.bounds


def test_options_override_what_they_name_and_nothing_else() -> None:
    changed = QUICK.overridden(duration_s=30.0, ramp_s=0.0, resolution_share=None, repeats=0)
    assert (changed.duration_s, changed.ramp_s, changed.resolution_share, changed.repeats) == (30.0, 0.0, 0.03, 0)
    assert QUICK.overridden(duration_s=None, ramp_s=None, resolution_share=None, repeats=None) == QUICK


def test_full_is_economical_and_the_published_method_is_not() -> None:
    strategies = [each.strategy for each in (SMOKE, QUICK, FULL)]
    assert strategies == [Strategy.PUBLISHED, Strategy.PUBLISHED, Strategy.ECONOMICAL]


def test_a_mode_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="'fast' does not exist; choose smoke, quick, full"):
        mode_named("fast")


@pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))
def test_a_window_is_as_long_as_the_mode_says_where_the_rate_brings_enough(mode: Mode) -> None:
    assert mode.window_s(8.0, mode.slo(DEFAULT_SLO)) == mode.duration_s


def test_a_window_grows_where_the_percentile_needs_more_requests() -> None:
    assert QUICK.window_s(0.5, DEFAULT_SLO) == pytest.approx(300)
    assert QUICK.window_s(0.42, DEFAULT_SLO) > QUICK.window_s(0.5, DEFAULT_SLO)
    assert QUICK.window_s(8.0, [parse_objective("ttft:p99.9:2000")]) > 150


@pytest.mark.parametrize("rate_rps", [0.05, 0.42, 0.9])
def test_a_thin_draw_still_brings_enough_requests(rate_rps: float) -> None:
    need = max(each.min_n for each in DEFAULT_SLO)
    duration_s = QUICK.window_s(rate_rps, DEFAULT_SLO)
    assert min(len(POISSON.due_s(rate_rps, seed, 0, duration_s)) for seed in range(200)) >= need


def test_smoke_wants_twenty_requests() -> None:
    slo = SMOKE.slo(DEFAULT_SLO)
    duration_s = SMOKE.window_s(0.1, slo)
    assert duration_s > SMOKE.bounds.min_n / 0.1
    thin = [seed for seed in range(400) if len(POISSON.due_s(0.1, seed, 0, duration_s)) < SMOKE.bounds.min_n]
    assert len(thin) / 400 < 0.01


def test_without_objectives_a_window_has_its_usual_length() -> None:
    assert QUICK.window_s(1.0, []) == 120
    assert QUICK.slo([]) == ()
    assert SMOKE.percentile == Decimal(90)
