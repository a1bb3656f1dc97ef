"""Named streams: purpose and keys decide, nothing else does."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.randomness import CHUNK, first, rate_key, stream

keys = st.lists(st.integers(0, 2**31), min_size=1, max_size=5)


def draws(purpose: str, *given_keys: int) -> list[float]:
    return stream(purpose, *given_keys).random(4).tolist()


@settings(deadline=None)
@given(keys)
def test_the_same_purpose_and_keys_draw_the_same(given_keys: list[int]) -> None:
    assert draws("arrivals", *given_keys) == draws("arrivals", *given_keys)


@settings(deadline=None)
@given(keys, st.data())
def test_another_key_draws_something_else(given_keys: list[int], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.integers(0, 2**31), min_size=len(given_keys), max_size=len(given_keys)))
    assert (draws("arrivals", *given_keys) == draws("arrivals", *other)) == (given_keys == other)


def test_another_purpose_draws_something_else() -> None:
    assert draws("arrivals", 3, 1) != draws("lengths", 3, 1)


def test_seed_zero_is_a_seed_like_any_other() -> None:
    assert draws("arrivals", 0, 0) == draws("arrivals", 0, 0)
    assert draws("arrivals", 0, 0) != draws("arrivals", 1, 0)
    assert draws("arrivals", 0, 0) != draws("arrivals", 0, 1)


def test_a_seed_of_more_than_32_bits_does_not_run_into_the_next_key() -> None:
    assert draws("arrivals", 2**32 + 5, 0) != draws("arrivals", 5, 1)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 3 * CHUNK), st.integers(0, 3 * CHUNK))
def test_asking_for_more_only_appends(few: int, more: int) -> None:
    few, more = sorted((few, more))
    short = first(few, stream("lengths", 1).random)
    long = first(more, stream("lengths", 1).random)
    assert (len(short), len(long)) == (few, more)
    assert np.array_equal(short, long[:few])


@settings(deadline=None)
@given(st.integers(100_000, 999_999), st.integers(-1, 3), st.integers(100_000, 999_999))
def test_rates_that_differ_in_six_digits_have_different_keys(digits: int, power: int, other: int) -> None:
    rate, second = digits * 10.0 ** (power - 5), other * 10.0 ** (power - 5)
    assert (rate_key(rate) == rate_key(second)) == (digits == other)
