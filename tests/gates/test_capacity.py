"""What a set of windows shows: tallies, bracket, contradictions, and rates as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.capacity import CapacityVerdict, Observation, bracket, conclude, rate_text, tally

GOLDEN = [(8.0, "+"), (10.0, "+"), (12.5, "-"), (11.18, "+++"), (11.82, "-"), (11.5, "---")]

windows = st.lists(
    st.builds(Observation, st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0]), st.integers(0, 3), st.booleans()), max_size=25
)


def seen(*rates: tuple[float, str]) -> list[Observation]:
    """Windows from a rate and a sign for each repeat."""
    return [
        Observation(rate_rps, repeat, passed=sign == "+")
        for rate_rps, signs in rates
        for repeat, sign in enumerate(signs)
    ]


def test_the_golden_case() -> None:
    found = conclude(seen(*GOLDEN), CapacityVerdict.FOUND)
    assert (found.capacity_rps, found.first_failed_rps, found.contradictions) == (11.18, 11.5, ())
    assert found.resolution_share == pytest.approx(0.0286, abs=0.0001)
    assert "; ".join(str(each) for each in found.boundary) == "11.18: 3 of 3; 11.50: 0 of 3"


def test_one_failed_repeat_fails_the_rate() -> None:
    found = conclude(seen((8.0, "+"), (10.0, "++-"), (12.5, "-")), CapacityVerdict.FOUND)
    assert (found.capacity_rps, found.first_failed_rps) == (8.0, 10.0)


def test_one_passed_repeat_does_not_save_a_rate() -> None:
    found = conclude(seen((8.0, "+++"), (10.0, "-++")), CapacityVerdict.FOUND)
    assert (found.capacity_rps, found.first_failed_rps) == (8.0, 10.0)
    assert [str(each) for each in found.tallies] == ["8.00: 3 of 3", "10.00: 2 of 3"]


def test_a_rate_that_passed_above_a_failed_one_is_told_and_is_no_capacity() -> None:
    found = conclude(seen((8.0, "+"), (10.0, "-"), (12.5, "+")), CapacityVerdict.FOUND)
    assert (found.capacity_rps, found.first_failed_rps, found.contradictions) == (8.0, 10.0, (12.5,))


def test_without_a_failure_there_is_no_resolution() -> None:
    found = conclude(seen((8.0, "+"), (10.0, "+++")), CapacityVerdict.AT_LEAST)
    assert (found.capacity_rps, found.first_failed_rps, found.resolution_share) == (10.0, None, None)


def test_without_a_pass_there_is_no_capacity() -> None:
    found = conclude(seen((8.0, "-"), (6.4, "-")), CapacityVerdict.NONE)
    assert (found.capacity_rps, found.first_failed_rps, found.resolution_share) == (None, 6.4, None)


def test_nothing_seen_shows_nothing() -> None:
    found = conclude([], CapacityVerdict.UNFINISHED)
    assert (found.capacity_rps, found.first_failed_rps, found.tallies, found.boundary) == (None, None, (), ())


@settings(deadline=None)
@given(windows)
def test_every_window_is_in_one_tally(given_windows: list[Observation]) -> None:
    tallies = tally(given_windows)
    assert sum(each.windows for each in tallies) == len(given_windows)
    assert sum(each.passed for each in tallies) == sum(each.passed for each in given_windows)
    assert [each.rate_rps for each in tallies] == sorted({each.rate_rps for each in given_windows})


@settings(deadline=None)
@given(windows)
def test_the_capacity_lies_below_every_failed_rate(given_windows: list[Observation]) -> None:
    found = conclude(given_windows, CapacityVerdict.FOUND)
    failed_rates = {each.rate_rps for each in given_windows if not each.passed}
    assert found.first_failed_rps == min(failed_rates, default=None)
    clean = {each.rate_rps for each in given_windows} - failed_rates
    below = {rate for rate in clean if not failed_rates or rate < min(failed_rates)}
    assert found.capacity_rps == max(below, default=None)
    assert set(found.contradictions) == clean - below


@settings(deadline=None)
@given(windows)
def test_the_order_of_the_windows_does_not_matter(given_windows: list[Observation]) -> None:
    assert bracket(tally(given_windows)) == bracket(tally(given_windows[::-1]))


@pytest.mark.parametrize(
    ("rate_rps", "text"),
    [
        (8.0, "8.00"),
        (11.5, "11.50"),
        (11.1803, "11.18"),
        (11.4965, "11.50"),
        (0.25, "0.25"),
        (0.42131, "0.4213"),
        (100.0, "100.0"),
        (1234.0, "1234"),
        (0.004, "0.004"),
    ],
)
def test_a_rate_is_read_with_four_digits_and_two_decimals(rate_rps: float, text: str) -> None:
    assert rate_text(rate_rps) == text
