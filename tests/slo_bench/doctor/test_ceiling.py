"""The client's ceiling: what a rate costs it, what is refused, and where a search ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.doctor.ceiling import Ceiling, ClientLimit, Held
from slo_bench.search import SearchSettings
from traffic.errors import UsageError

CEILING = Ceiling(short=Held(200.0, 16), long=Held(50.0, 128), cores=4)
"""1 / 200 = request + 16 tokens and 1 / 50 = request + 128 tokens: 2.857 ms a request and 0.134 ms a token."""


def test_both_measured_points_are_on_the_ceiling() -> None:
    assert CEILING.highest_rps(16, 1) == pytest.approx(200)
    assert CEILING.highest_rps(128, 1) == pytest.approx(50)


def test_longer_answers_leave_room_for_fewer_requests() -> None:
    assert CEILING.highest_rps(211, 1) == pytest.approx(1 / (0.0028571 + 211 * 0.00013393), rel=1e-3)
    assert CEILING.highest_rps(64, 1) == pytest.approx(1 / (0.0028571 + 64 * 0.00013393), rel=1e-3)


def test_load_workers_add_up_to_the_cores_that_there_are() -> None:
    assert CEILING.highest_rps(128, 3) == pytest.approx(150)
    assert CEILING.highest_rps(128, 4) == CEILING.highest_rps(128, 40) == pytest.approx(200)


@settings(max_examples=25)
@given(
    short_rps=st.floats(0.5, 5000),
    long_rps=st.floats(0.5, 5000),
    tokens=st.floats(1, 4000),
)
def test_whatever_was_measured_no_rate_is_negative_and_no_answer_free(
    short_rps: float, long_rps: float, tokens: float
) -> None:
    ceiling = Ceiling(Held(short_rps, 16), Held(long_rps, 128))
    highest = ceiling.highest_rps(tokens, 1)
    assert highest > 0
    assert ceiling.highest_rps(tokens + 1, 1) < highest


def test_where_noise_makes_long_answers_cheap_the_rule_errs_on_the_side_of_refusal() -> None:
    noisy = Ceiling(Held(40.0, 16), Held(60.0, 128))
    assert noisy.highest_rps(16, 1) <= 40
    assert noisy.highest_rps(128, 1) <= 60


def test_a_rate_above_it_is_refused_with_the_number_of_workers_that_would_do() -> None:
    limit = ClientLimit(CEILING, 128, load_workers=1)
    limit.check(50.0)
    with pytest.raises(UsageError, match=r"120\.0 req/s .*1 load worker .*50\.00 req/s.*--load-workers 3") as caught:
        limit.check(120.0)
    assert "\n" not in str(caught.value)
    replace(limit, load_workers=3).check(120.0)


def test_where_no_number_of_workers_would_do_another_machine_is_named() -> None:
    with pytest.raises(UsageError, match="a machine with more cores"):
        ClientLimit(CEILING, 128, load_workers=4).check(1000.0)


def test_the_token_rate_counts_as_well_as_the_request_rate() -> None:
    ClientLimit(CEILING, 16).check(100.0)
    with pytest.raises(UsageError, match="answers of 500 tokens"):
        ClientLimit(CEILING, 500).check(100.0)


def test_a_search_ends_at_the_ceiling_and_keeps_a_lower_end_of_its_own() -> None:
    limit = ClientLimit(CEILING, 128)
    assert limit.cap(SearchSettings(start_rps=8.0)).ceiling_rps == 50.0
    assert limit.cap(SearchSettings(start_rps=8.0, highest_rps=20.0)).ceiling_rps == 20.0
    with pytest.raises(UsageError, match=r"60\.00 req/s"):
        limit.cap(SearchSettings(start_rps=60.0))
    limit.cap(SearchSettings(start_rps=60.0, highest_rps=40.0))


@settings(max_examples=25)
@given(short_rps=st.floats(1, 5000), share=st.floats(0.1, 0.9))
def test_the_highest_rate_of_a_search_is_never_refused(short_rps: float, share: float) -> None:
    limit = ClientLimit(Ceiling(Held(short_rps, 16), Held(short_rps * share, 128)), 211.0)
    limit.check(limit.highest_rps)
    assert limit.highest_rps <= limit.ceiling.highest_rps(211.0, 1)
