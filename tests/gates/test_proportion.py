"""Intervals, McNemar's test and its power, against brute force and the field report's figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.proportion import (
    ALPHA,
    CHANCE_FLIPS,
    POWER,
    p_worse,
    paired_interval,
    smallest_visible_drop,
    wilson_interval,
)

counts = st.integers(0, 60)


def test_r24_the_intervals_of_two_runs_of_one_configuration_overlap() -> None:
    first, second = wilson_interval(45, 50), wilson_interval(48, 50)
    assert first == pytest.approx((0.786, 0.957), abs=0.001)
    assert second == pytest.approx((0.865, 0.989), abs=0.001)


def test_r24_two_runs_of_one_configuration_do_not_differ_however_their_items_pair() -> None:
    assert all(p_worse(3 + gained, gained) >= ALPHA for gained in range(3))


@settings(max_examples=30)
@given(counts, counts)
def test_an_interval_holds_its_share(right: int, wrong: int) -> None:
    interval = wilson_interval(right, right + wrong)
    if right + wrong == 0:
        assert interval is None
    else:
        assert interval is not None
        low, high = interval
        assert 0 <= low <= right / (right + wrong) <= high <= 1
        assert low < high


@settings(max_examples=30)
@given(counts, counts, counts)
def test_a_paired_interval_holds_the_difference_and_mirrors(lost: int, gained: int, alike: int) -> None:
    n = lost + gained + alike
    interval, mirrored = paired_interval(lost, gained, n), paired_interval(gained, lost, n)
    if n == 0:
        assert interval is None
    else:
        assert interval is not None
        assert mirrored is not None
        low, high = interval
        assert -1 <= low <= (gained - lost) / n <= high <= 1
        assert mirrored == pytest.approx((-high, -low))


@pytest.mark.parametrize(("lost_share", "gained_share"), [(0.0, 0.0), (0.1, 0.02), (0.2, 0.05), (0.3, 0.0)])
def test_a_paired_interval_holds_the_true_difference_in_95_percent_of_all_runs(
    lost_share: float, gained_share: float
) -> None:
    n = 24
    covered = sum(
        math.comb(n, lost)
        * math.comb(n - lost, gained)
        * lost_share**lost
        * gained_share**gained
        * (1 - lost_share - gained_share) ** (n - lost - gained)
        for lost in range(n + 1)
        for gained in range(n - lost + 1)
        if (ends := paired_interval(lost, gained, n)) is not None and ends[0] <= gained_share - lost_share <= ends[1]
    )
    assert covered > 0.95


def test_equal_answers_leave_an_interval_that_only_more_items_narrow() -> None:
    assert paired_interval(0, 0, 50) == pytest.approx((-0.0533, 0.0533), abs=1e-4)
    assert paired_interval(0, 0, 1319) == pytest.approx((-0.0021, 0.0021), abs=1e-4)


@pytest.mark.parametrize(
    ("lost", "gained", "p"), [(0, 0, 1.0), (0, 4, 1.0), (4, 0, 1 / 16), (5, 0, 1 / 32), (9, 1, 11 / 1024)]
)
def test_the_exact_test_is_a_binomial_tail(lost: int, gained: int, p: float) -> None:
    assert p_worse(lost, gained) == p


@settings(max_examples=30)
@given(counts, counts)
def test_worse_and_better_are_mirror_images(lost: int, gained: int) -> None:
    equal = math.comb(lost + gained, lost) / 2 ** (lost + gained)
    assert p_worse(lost, gained) + p_worse(gained, lost) == pytest.approx(1 + equal)


def chance_to_show(n: int, drop: float, flips: float) -> float:
    """The power by adding up every outcome."""
    lost_share, gained_share = drop + flips, flips
    return sum(
        math.comb(n, lost)
        * math.comb(n - lost, gained)
        * lost_share**lost
        * gained_share**gained
        * (1 - lost_share - gained_share) ** (n - lost - gained)
        for lost in range(n + 1)
        for gained in range(n + 1 - lost)
        if p_worse(lost, gained) < ALPHA
    )


@pytest.mark.parametrize("n", [8, 20, 50])
def test_the_smallest_visible_drop_shows_in_four_of_five_runs(n: int) -> None:
    drop = smallest_visible_drop(n)
    assert drop is not None
    assert chance_to_show(n, drop, CHANCE_FLIPS) == pytest.approx(POWER, abs=0.001)
    assert chance_to_show(n, 0.0, CHANCE_FLIPS) < ALPHA


def test_more_items_see_smaller_drops_and_a_handful_sees_none() -> None:
    drops = [smallest_visible_drop(n) for n in (4, 10, 50, 200, 1319)]
    assert drops[0] is None
    assert drops[1:] == [pytest.approx(drop, abs=0.001) for drop in (0.609, 0.158, 0.0524, 0.0151)]


@settings(max_examples=20)
@given(st.integers(8, 100))
def test_without_chance_a_drop_shows_from_five_lost_items_on(n: int) -> None:
    drop = smallest_visible_drop(n, 0.0)
    assert drop is not None
    fewer = sum(math.comb(n, lost) * drop**lost * (1 - drop) ** (n - lost) for lost in range(5))
    assert 1 - fewer == pytest.approx(POWER, abs=0.01)
