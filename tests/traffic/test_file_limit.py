"""The limit on open files: how much a load needs, and how far the limit goes."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traffic.file_limit import MOST_FILES, OWN_FILES, files_needed, raise_file_limit, rate_within


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """Soft and hard, put back afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_load_needs_a_file_for_each_request_in_flight_some_for_bunches_and_some_of_its_own() -> None:
    assert files_needed(11.18, 12.8) == 203 + OWN_FILES
    assert files_needed(0.0, 52.0) == OWN_FILES


@given(st.integers(0, 100_000), st.floats(0.01, 1000.0))
def test_the_rate_within_a_limit_is_the_one_that_needs_it(limit: int, longest_s: float) -> None:
    needed = files_needed(rate_within(limit, longest_s), longest_s)
    assert needed in (max(limit, OWN_FILES), max(limit, OWN_FILES) + 1)  # the last by rounding


def test_the_soft_limit_is_raised_to_the_hard_one(limits: tuple[int, int]) -> None:
    _, hard = limits
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    assert raise_file_limit() == most
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
