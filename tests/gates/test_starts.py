from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.block_order import Order, crossed_pair, nested_pairs
from gates.log_ratio import balanced_estimate, visible_log_ratio
from gates.starts import MIN_STARTS, MeanEffect, PairRatio, mean_effect, width_without_noise

logs = st.floats(min_value=-0.5, max_value=0.5)
single = st.lists(st.builds(PairRatio, logs, st.booleans()), min_size=1, max_size=10)


def crossed(starts: int, rows: int, *, seed: int, effect: float, offset_sd: float, noise_sd: float) -> list[PairRatio]:
    generator = np.random.default_rng(seed)
    a, b = offset_sd * generator.standard_normal((2, starts))
    planned = [crossed_pair(number, Order.ABBA, 0, starts) for number in range(starts * rows)]
    return [
        PairRatio(
            effect + b[pair.start_b] - a[pair.start_a] + noise_sd * generator.standard_normal(),
            pair.a_first,
            pair.start_a,
            pair.start_b,
        )
        for pair in planned
    ]


def nested(starts: int, each: int, *, seed: int, effect: float, offset_sd: float, noise_sd: float) -> list[PairRatio]:
    generator = np.random.default_rng(seed)
    made: list[PairRatio] = []
    for start in range(starts):
        offset = offset_sd * math.sqrt(2) * generator.standard_normal()
        made += [
            PairRatio(effect + offset + noise_sd * generator.standard_normal(), pair.a_first, start, start)
            for pair in nested_pairs(start, Order.ABBA, 0, each)
        ]
    return made


def turned(pairs: list[PairRatio]) -> list[PairRatio]:
    return [PairRatio(-pair.log_ratio, not pair.a_first, pair.start_b, pair.start_a) for pair in pairs]


def test_one_start_of_each_arm_says_nothing_of_starts_in_general() -> None:
    found = mean_effect([PairRatio(value, number % 2 == 0) for number, value in enumerate((0.01, 0.03, 0.02, 0.04))])
    expected, order = balanced_estimate([0.01, 0.03, 0.02, 0.04], [1, -1, 1, -1])
    assert (found.instances, found.order, found.starts, found.offset_sd) == (expected, order, None, None)
    assert found.pair_sd == pytest.approx((expected.standard_error or 0) * 2)


def test_an_offset_that_is_known_widens_the_interval_of_single_starts() -> None:
    pairs = [PairRatio(0.03 + 0.001 * number, number % 2 == 0) for number in range(8)]
    plain, wide = mean_effect(pairs), mean_effect(pairs, known_offset_sd=0.02)
    assert wide.instances == plain.instances
    assert wide.starts is not None
    assert wide.starts.standard_error == pytest.approx(
        math.hypot(plain.instances.standard_error or 0, 0.02 * math.sqrt(2))
    )
    assert wide.starts.degrees > plain.instances.degrees
    assert plain.instances.excludes_no_change
    assert not wide.starts.excludes_no_change


@given(single)
def test_exchanging_the_arms_turns_the_sign_exactly(pairs: list[PairRatio]) -> None:
    there, back = mean_effect(pairs), mean_effect(turned(pairs))
    assert back.instances.log_ratio == -there.instances.log_ratio
    assert back.instances.standard_error == there.instances.standard_error
    assert back.pair_sd == there.pair_sd


@settings(max_examples=30)
@given(st.integers(3, 5), st.integers(3, 5), st.integers(0, 99), st.sampled_from([crossed, nested]))
def test_exchanging_the_arms_turns_the_sign_for_several_starts(starts: int, each: int, seed: int, make: object) -> None:
    pairs = make(starts, each, seed=seed, effect=0.02, offset_sd=0.01, noise_sd=0.01)  # type: ignore[operator]
    there, back = mean_effect(pairs), mean_effect(turned(pairs))
    assert back.instances.log_ratio == pytest.approx(-there.instances.log_ratio, abs=1e-12)
    assert there.starts is not None
    assert back.starts is not None
    assert back.starts.log_ratio == pytest.approx(-there.starts.log_ratio, abs=1e-12)
    assert (back.starts.standard_error or 0) == pytest.approx(there.starts.standard_error or 0, abs=1e-12)
    assert back.offset_sd == pytest.approx(there.offset_sd, abs=1e-9)


def test_levels_of_starts_are_told_through_partners_that_they_share() -> None:
    offsets_a, offsets_b = (0.00, 0.02, -0.02), (0.01, 0.00, -0.01)
    pairs = [
        PairRatio(0.05 + offsets_b[b] - offsets_a[a], (a + b) % 2 == 0, a, b) for a, b in product(range(3), range(3))
    ]
    found = mean_effect(pairs)
    assert found.instances.log_ratio == pytest.approx(0.05)
    assert found.pair_sd == pytest.approx(0.0, abs=1e-12)
    expected = math.sqrt((np.var(offsets_a, ddof=1) + np.var(offsets_b, ddof=1)) / 2)
    assert found.offset_sd == pytest.approx(expected)
    assert found.starts is not None
    assert found.starts.standard_error == pytest.approx(expected * math.sqrt(2 / 3))
    assert found.starts.degrees == 4


def test_a_start_that_has_not_met_the_others_leaves_the_offset_unknown() -> None:
    met = [(0, 0), (1, 1), (2, 2), (0, 1)]
    pairs = [PairRatio(0.01 * number, number % 2 == 0, a, b) for number, (a, b) in enumerate(met)]
    found = mean_effect(pairs)
    assert (found.starts, found.offset_sd) == (None, None)


def resumed(cut: int, *, seed: int, effect: float, offset_sd: float, noise_sd: float) -> list[PairRatio]:
    """Three starts of each arm in four rows, and after `cut` pairs three others in their place."""
    generator = np.random.default_rng(seed)
    a, b = offset_sd * generator.standard_normal((2, 6))
    made: list[PairRatio] = []
    for number in range(12):
        pair = crossed_pair(number, Order.ABBA, 0, 3)
        start_a, start_b = (start + (0 if number < cut else 3) for start in (pair.start_a, pair.start_b))
        ratio = effect + b[start_b] - a[start_a] + noise_sd * generator.standard_normal()
        made.append(PairRatio(ratio, pair.a_first, start_a, start_b))
    return made


@pytest.mark.parametrize("cut", [2, 6, 10])
def test_starts_that_a_resumption_replaced_still_tell_their_offsets(cut: int) -> None:
    found = [mean_effect(resumed(cut, seed=seed, effect=0.02, offset_sd=0.01, noise_sd=0.004)) for seed in range(200)]
    inside = [
        each.starts is not None and abs(each.starts.log_ratio - 0.02) <= (each.starts.half_width or 0) for each in found
    ]
    assert np.mean(inside) >= 0.92  # 95 %, of 200
    assert math.sqrt(np.mean([(each.offset_sd or 0) ** 2 for each in found])) == pytest.approx(0.01, rel=0.15)
    assert math.sqrt(np.mean([(each.pair_sd or 0) ** 2 for each in found])) == pytest.approx(0.004, rel=0.15)


def test_exchanging_the_arms_of_a_resumed_comparison_turns_the_sign() -> None:
    pairs = resumed(5, seed=1, effect=0.02, offset_sd=0.01, noise_sd=0.004)
    there, back = mean_effect(pairs), mean_effect(turned(pairs))
    assert there.starts is not None
    assert back.starts is not None
    assert back.starts.log_ratio == pytest.approx(-there.starts.log_ratio, abs=1e-12)
    assert back.starts.half_width == pytest.approx(there.starts.half_width)


def test_two_starts_that_met_only_each_other_take_an_offset_that_is_known() -> None:
    pairs = [PairRatio(0.03 + 0.001 * n, n % 2 == 0, n // 2, n // 2) for n in range(4)]
    plain, wide = mean_effect(pairs), mean_effect(pairs, known_offset_sd=0.02)
    assert (plain.starts, plain.offset_sd) == (None, None)
    assert wide.starts is not None
    assert wide.starts.standard_error == pytest.approx(math.hypot(wide.instances.standard_error or 0, 0.02))
    assert wide.offset_sd == 0.02


def test_restarts_are_compared_start_by_start() -> None:
    pairs = nested(6, 2, seed=3, effect=0.02, offset_sd=0.01, noise_sd=0.001)
    means = [(pairs[2 * unit].log_ratio + pairs[2 * unit + 1].log_ratio) / 2 for unit in range(6)]
    expected, _ = balanced_estimate(means, [1, -1, 1, -1, 1, -1])
    found = mean_effect(pairs)
    assert found.is_nested
    assert found.starts is not None
    assert (found.starts.log_ratio, found.starts.standard_error) == pytest.approx(
        (expected.log_ratio, expected.standard_error)
    )
    assert found.starts.degrees == 4
    assert found.instances.degrees == 6
    assert (found.instances.standard_error or 0) < (found.starts.standard_error or 0)


def test_one_pair_per_restart_cannot_tell_noise_from_offset() -> None:
    found = mean_effect(nested(5, 1, seed=0, effect=0.0, offset_sd=0.01, noise_sd=0.01))
    assert (found.pair_sd, found.offset_sd, found.instances.interval) == (None, None, None)
    assert found.starts is not None
    assert found.starts.interval is not None


@pytest.mark.parametrize(("make", "starts", "each"), [(crossed, 3, 3), (crossed, 2, 3), (nested, 5, 2)])
@pytest.mark.parametrize("offset_sd", [0.0, 0.01])
def test_the_interval_over_starts_covers(make: object, starts: int, each: int, offset_sd: float) -> None:
    hits = 0
    for seed in range(300):
        pairs = make(starts, each, seed=seed, effect=0.01, offset_sd=offset_sd, noise_sd=0.01)  # type: ignore[operator]
        found = mean_effect(pairs).starts
        assert found is not None
        hits += abs(found.log_ratio - 0.01) <= (found.half_width or 0.0)
    assert hits / 300 > 0.91  # three standard errors below 95 %


def given_noise(offset_sd: float | None, *, is_nested: bool = False, pair_sd: float = 0.01) -> MeanEffect:
    found = mean_effect([PairRatio(0.0, True), PairRatio(0.01, False), PairRatio(0.0, True)])
    return MeanEffect(found.instances, None, None, pair_sd, offset_sd, is_nested)


def test_more_offset_needs_more_starts_and_a_larger_effect_fewer() -> None:
    counts = [given_noise(offset_sd).starts_needed(0.02, 2) for offset_sd in (0.001, 0.005, 0.01, 0.02)]
    assert all(count is not None for count in counts)
    assert counts == sorted(counts, key=lambda count: count or 0)
    assert counts[0] == MIN_STARTS
    assert (given_noise(0.01).starts_needed(0.05, 2) or 0) < (given_noise(0.01).starts_needed(0.02, 2) or 0)
    assert given_noise(0.01).starts_needed(-0.02, 2) == given_noise(0.01).starts_needed(0.02, 2)


def test_restarts_need_more_starts_than_servers_side_by_side() -> None:
    assert (given_noise(0.01, is_nested=True).starts_needed(0.03, 2) or 0) > (
        given_noise(0.01).starts_needed(0.03, 2) or 0
    )


def test_starts_that_are_needed_are_not_guessed() -> None:
    assert given_noise(None).starts_needed(0.02, 2) is None
    assert given_noise(0.5).starts_needed(0.001, 2) is None


def test_the_pairs_that_are_needed_would_see_it_and_one_less_would_not() -> None:
    count = given_noise(None, pair_sd=0.011).pairs_needed(0.01)
    assert count is not None
    assert visible_log_ratio(0.011 / math.sqrt(count), count - 2) <= 0.01
    assert visible_log_ratio(0.011 / math.sqrt(count - 1), count - 3) > 0.01
    assert given_noise(None, pair_sd=0.0).pairs_needed(0.01) is None
    assert given_noise(None, pair_sd=1.0).pairs_needed(0.0001) is None


def test_no_number_of_blocks_beats_the_offset() -> None:
    found = given_noise(0.01)
    assert width_without_noise(given_noise(None), 1) is None
    widths = [width_without_noise(found, starts) or 0.0 for starts in (1, 3, 10, 100)]
    assert widths[0] == pytest.approx(1.96 * 0.01 * math.sqrt(2), rel=1e-3)
    assert widths[1:] == sorted(widths[1:], reverse=True)


def test_two_restarts_of_each_arm_speak_for_themselves_only() -> None:
    found = mean_effect(nested(2, 3, seed=0, effect=0.05, offset_sd=0.0, noise_sd=0.002))
    assert found.starts is None
    assert found.instances.excludes_no_change


def controlled(count: int, *, seed: int, effect: float, control: float, noise_sd: float) -> list[PairRatio]:
    """One start of B, and two of A of which the second is slower by `control`."""
    generator = np.random.default_rng(seed)
    planned = [crossed_pair(number, Order.ABBA, 0, 1, 1) for number in range(count)]
    return [
        PairRatio(
            effect - control * (pair.start_a - 0.5) + noise_sd * generator.standard_normal(), pair.a_first, pair.start_a
        )
        for pair in planned
    ]


def test_a_control_is_told_apart_from_the_effect() -> None:
    found = mean_effect(controlled(6, seed=0, effect=-0.03, control=0.01, noise_sd=0.0))
    assert found.control is not None
    assert found.control.log_ratio == pytest.approx(0.01)
    assert found.instances.log_ratio == pytest.approx(-0.03)
    assert found.control.degrees == 3
    assert (found.starts, found.offset_sd) == (None, None)


def test_the_intervals_of_an_effect_and_of_its_control_hold_the_truth_as_often_as_they_say() -> None:
    found = [mean_effect(controlled(8, seed=s, effect=-0.03, control=0.01, noise_sd=0.01)) for s in range(1000)]
    for truth, estimates in ((-0.03, [each.instances for each in found]), (0.01, [each.control for each in found])):
        inside = sum(each is not None and abs(each.log_ratio - truth) <= (each.half_width or 0) for each in estimates)
        assert 930 <= inside <= 970


def test_a_control_needs_pairs_that_are_left_for_noise() -> None:
    found = mean_effect(controlled(3, seed=0, effect=-0.03, control=0.01, noise_sd=0.01))
    assert found.control is None


def test_a_control_goes_on_with_the_servers_that_a_stop_replaced() -> None:
    first = controlled(4, seed=1, effect=-0.03, control=0.01, noise_sd=0.0)
    moved = [PairRatio(pair.log_ratio + 0.004, pair.a_first, pair.start_a + 2, 1) for pair in first]
    found = mean_effect([*first, *moved])
    assert found.control is not None
    assert found.control.log_ratio == pytest.approx(0.01)
    assert found.instances.log_ratio == pytest.approx(-0.028)


def test_a_known_offset_widens_a_controlled_effect_by_what_three_starts_leave() -> None:
    pairs = controlled(8, seed=2, effect=-0.03, control=0.01, noise_sd=0.01)
    found = mean_effect(pairs, 0.02)
    assert found.starts is not None
    assert found.starts.standard_error == pytest.approx(
        math.hypot(found.instances.standard_error or 0, 0.02 * math.sqrt(1 + 1 / 2))
    )


def test_what_blocks_cannot_narrow_is_less_with_a_control_than_without() -> None:
    single = [
        PairRatio(pair.log_ratio, pair.a_first) for pair in controlled(8, seed=2, effect=0, control=0, noise_sd=0.01)
    ]
    with_it = width_without_noise(mean_effect(controlled(8, seed=2, effect=0, control=0, noise_sd=0.01), 0.02), 1)
    without = width_without_noise(mean_effect(single, 0.02), 1)
    assert with_it is not None
    assert without is not None
    assert with_it / without == pytest.approx(math.sqrt(1.5 / 2))


def test_a_known_offset_counts_before_the_control_can_be_told_too() -> None:
    pairs = controlled(3, seed=0, effect=-0.03, control=0.01, noise_sd=0.01)
    found = mean_effect(pairs, 0.02)
    assert found.control is None
    assert found.starts is not None
    assert found.starts.standard_error is not None
    assert found.starts.standard_error > 0.02


@given(st.integers(2, 4), st.integers(2, 12))
def test_crossed_starts_are_no_controls(starts: int, pairs: int) -> None:
    assert mean_effect(crossed(starts, 4, seed=0, effect=0.0, offset_sd=0.0, noise_sd=0.01)[:pairs]).control is None
