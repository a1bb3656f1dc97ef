"""Energy of a span: by the counter, else by the integral; missing is never 0. R28."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.power import PowerSample, span_power


def reading(at_s: float, power_w: float | None = 100.0, **more: object) -> PowerSample:
    good = PowerSample(at_s, "GPU-a", power_w, "instant", 100.0 * at_s, 1980, 3201, 60, 0, 0.9)
    return replace(good, **more)  # type: ignore[arg-type]


def steady(seconds: float, every_s: float = 0.1, **more: object) -> list[PowerSample]:
    return [reading(n * every_s, **more) for n in range(round(seconds / every_s) + 1)]


def test_counter_and_integral_of_a_steady_load_agree() -> None:
    power = span_power(steady(20.0), 5.0, 15.0)
    assert power.source == "counter"
    assert power.energy_j == pytest.approx(1000.0)
    assert power.mean_w == pytest.approx(100.0)
    assert power.counter_gap_share == pytest.approx(0.0)
    assert power.coverage_share == pytest.approx(1.0)
    assert power.flags == ()


def test_without_a_counter_the_integral_counts_and_says_so() -> None:
    power = span_power(steady(20.0, energy_j=None), 5.0, 15.0)
    assert (power.source, power.counter_gap_share) == ("integral", None)
    assert power.energy_j == pytest.approx(1000.0)


def test_the_first_second_of_an_averaged_reading_tells_of_what_was_before() -> None:
    idle = [reading(n / 10, 40.0, energy_j=None, power_field="average") for n in range(60)]
    busy = [reading(n / 10, 40.0 if n < 70 else 600.0, energy_j=None, power_field="average") for n in range(60, 200)]
    assert span_power([*idle, *busy], 6.0, 16.0).mean_w == pytest.approx(600.0, rel=0.01)


def test_a_counter_and_readings_that_disagree_are_flagged_and_the_counter_wins() -> None:
    samples = [reading(n / 10, 65.4, energy_j=37.4 * n / 10) for n in range(100)]
    power = span_power(samples, 2.0, 7.0)
    assert power.energy_j == pytest.approx(187.0)
    assert power.flags == ("summed power readings and the energy counter differ by +75%",)


def test_readings_that_are_missing_are_not_zero_and_too_few_give_no_figure() -> None:
    samples = [reading(n / 10, None if n > 60 else 100.0, energy_j=None) for n in range(200)]
    power = span_power(samples, 5.0, 15.0)
    assert power.energy_j is None
    assert power.mean_w is None
    assert power.coverage_share == pytest.approx(0.1)
    assert power.flags == ("power was read for 10% of the time",)


def test_the_counter_needs_only_its_ends() -> None:
    samples = [each for each in steady(20.0) if not 6.0 < each.at_s < 14.0]
    power = span_power(samples, 5.0, 15.0)
    assert (power.source, power.energy_j) == ("counter", pytest.approx(1000.0))
    assert power.coverage_share == pytest.approx(0.2)


def test_several_gpus_are_one_sum_and_half_of_them_is_no_answer() -> None:
    both = [*steady(20.0), *steady(20.0, uuid="GPU-b")]
    assert span_power(both, 5.0, 15.0).energy_j == pytest.approx(2000.0)
    half = [*steady(20.0), *steady(20.0, uuid="GPU-b", power_w=None, energy_j=None)]
    assert span_power(half, 5.0, 15.0).energy_j is None


def test_what_held_the_clocks_down_is_told_as_a_share_of_the_readings() -> None:
    samples = [reading(n / 10, event_reasons=0x4 if n < 50 else 0x1) for n in range(100)]
    assert span_power(samples, 0.0, 9.95).held_down == {"software power cap": pytest.approx(0.5)}
    both = span_power(steady(10.0, event_reasons=0x28), 0.0, 9.0).held_down
    assert both == {"hardware slowdown": 1.0, "software thermal slowdown": 1.0}
    assert span_power(steady(10.0, event_reasons=0x1), 0.0, 9.0).held_down == {}
    assert span_power(steady(10.0, event_reasons=None), 0.0, 9.0).held_down is None


def test_a_gpu_of_the_server_that_was_never_read_leaves_no_sum_and_another_ones_reading_does_not_count() -> None:
    power = span_power(steady(20.0), 5.0, 15.0, gpus=("GPU-a", "GPU-b"))
    assert (power.energy_j, power.coverage_share) == (None, 0.0)
    both = [*steady(20.0), *steady(20.0, uuid="GPU-b", power_w=600.0, energy_j=None)]
    assert span_power(both, 5.0, 15.0, gpus=("GPU-a",)).mean_w == pytest.approx(100.0)


def test_a_source_that_is_asked_once_a_second_may_be_a_little_late() -> None:
    late = [reading(n * 1.3) for n in range(20)]
    assert span_power(late, 5.0, 15.0, every_s=1.0).mean_w == pytest.approx(100.0)
    assert span_power(late, 5.0, 15.0).energy_j is None


def test_energy_per_token_needs_both_and_is_never_zero_for_none() -> None:
    power = span_power(steady(20.0), 5.0, 15.0)
    assert power.joules_per_token(50.0) == pytest.approx(2.0)
    assert power.joules_per_token(None) is None
    assert power.joules_per_token(0.0) is None
    assert span_power([], 5.0, 15.0).joules_per_token(50.0) is None


def test_nothing_read_is_nothing_known() -> None:
    power = span_power([], 0.0, 10.0)
    assert (power.energy_j, power.mean_w, power.source, power.gpus) == (None, None, None, ())


@given(
    st.lists(st.tuples(st.floats(0.001, 5.0), st.none() | st.floats(0, 1000), st.none() | st.floats(0, 1e6))),
    st.floats(0, 20),
    st.floats(0.1, 20),
)
def test_no_reading_makes_it_fail_and_nothing_is_negative(
    rows: list[tuple[float, float | None, float | None]], start_s: float, length_s: float
) -> None:
    at_s, samples = 0.0, []
    for gap_s, power_w, energy_j in rows:
        at_s += gap_s
        samples.append(reading(at_s, power_w, energy_j=energy_j))
    power = span_power(samples, start_s, start_s + length_s)
    assert power.energy_j is None or power.energy_j >= 0
    assert 0 <= power.coverage_share <= 1 + 1e-9
