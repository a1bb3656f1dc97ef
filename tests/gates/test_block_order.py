from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gates.block_order import Order, crossed_pair, nested_pairs

instances = st.integers(1, 6)
orders = st.sampled_from(Order)


def test_one_server_of_each_arm_runs_a_b_b_a() -> None:
    planned = [crossed_pair(number, Order.ABBA, 0, 1) for number in range(4)]
    assert "".join("AB" if pair.a_first else "BA" for pair in planned) == "ABBAABBA"
    assert {(pair.start_a, pair.start_b) for pair in planned} == {(0, 0)}


@given(instances, orders, st.integers(0, 9))
def test_of_two_rows_each_server_is_first_in_one_and_second_in_the_other(count: int, order: Order, seed: int) -> None:
    planned = [crossed_pair(number, order, seed, count) for number in range(4 * count)]
    for rows in (planned[: 2 * count], planned[2 * count :]):
        for side in ("start_a", "start_b"):
            first = Counter(getattr(pair, side) for pair in rows if pair.a_first == (side == "start_a"))
            assert first == Counter(range(count)), side


@given(instances)
def test_every_server_meets_every_server_of_the_other_arm(count: int) -> None:
    planned = [crossed_pair(number, Order.ABBA, 0, count) for number in range(count * count)]
    assert len({(pair.start_a, pair.start_b) for pair in planned}) == count * count


@given(st.integers(0, 20), orders, st.integers(1, 4))
def test_a_restart_has_its_pairs_in_one_order_and_no_number_twice(start: int, order: Order, count: int) -> None:
    planned = [*nested_pairs(start, order, 1, count), *nested_pairs(start + 1, order, 1, count)]
    assert [pair.number for pair in planned] == list(range(start * count, (start + 2) * count))
    assert len({pair.a_first for pair in planned[:count]}) == 1
    assert {pair.start_a for pair in planned[:count]} == {pair.start_b for pair in planned[:count]} == {start}
    if start % 2 == 0:
        assert planned[0].a_first != planned[-1].a_first


def test_a_drawn_order_depends_on_the_seed_and_is_repeatable() -> None:
    drawn = [tuple(crossed_pair(number, Order.RANDOM, seed, 1).a_first for number in range(24)) for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize("number", range(4))
def test_the_number_of_a_pair_is_its_repeat(number: int) -> None:
    assert crossed_pair(number, Order.ABBA, 0, 2).number == number


@given(orders, st.integers(0, 9))
def test_a_control_takes_turns_with_the_first_server_of_a_in_both_orders(order: Order, seed: int) -> None:
    planned = [crossed_pair(number, order, seed, 1, 1) for number in range(8)]
    assert {pair.start_b for pair in planned} == {0}
    for four in (planned[:4], planned[4:]):
        assert Counter((pair.start_a, pair.a_first) for pair in four) == Counter(product((0, 1), (True, False)))
