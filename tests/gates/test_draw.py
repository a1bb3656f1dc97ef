"""A window's latencies, carried to a long draw: the draw's luck goes, and what nothing explains stays what it is."""

from __future__ import annotations

import numpy as np
import pytest

from gates.draw import FloatArray, IntArray, LongDraw, LongRun, Offered, features, long_draw
from traffic.arrivals import POISSON
from traffic.conversations import Conversations
from traffic.workload import CHAT_MIX, fixed_lengths

TOKEN_S = 0.03
RATE_RPS = 10.0


def window(repeat: int, seconds: float = 140.0) -> tuple[Offered, IntArray]:
    """A draw as a window has it, and the indices of its cohort."""
    due_s = POISSON.due_s(RATE_RPS, 0, repeat, seconds)
    lengths = CHAT_MIX.draw(0, repeat, len(due_s))
    return Offered(due_s, lengths.input_tokens, lengths.output_tokens), np.nonzero(due_s >= 20.0)[0]


@pytest.fixture(scope="module")
def long() -> LongDraw:
    drawn = long_draw(CHAT_MIX, POISSON)
    assert drawn is not None
    return drawn


def loaded(offered: Offered) -> FloatArray:
    """Logarithms of latencies of a server that slows down with the requests under way."""
    slow: FloatArray = np.log(0.02) + 0.5 * features(offered, TOKEN_S)[:, 1]
    return slow


def p99(logs: FloatArray) -> float:
    return float(np.quantile(logs, 0.99, method="inverted_cdf"))


def carried(offered: Offered, members: IntArray, logs: FloatArray, long: LongDraw) -> FloatArray:
    found = LongRun(offered, long, RATE_RPS, TOKEN_S).carry(members, logs)
    assert found is not None
    return found[0]


def test_windows_that_differ_by_their_draw_alone_agree_once_they_are_carried(long: LongDraw) -> None:
    plain, there = [], []
    for repeat in range(6):
        offered, members = window(repeat)
        logs = loaded(offered)[members] + np.random.default_rng(repeat).normal(0, 0.02, len(members))
        plain.append(p99(logs))
        there.append(p99(carried(offered, members, logs, long)))
    assert np.std(there) < 0.4 * np.std(plain)
    assert np.mean(there) == pytest.approx(p99(loaded(long.at(RATE_RPS))), abs=0.02)


def test_where_the_draw_explains_nothing_nothing_is_carried(long: LongDraw) -> None:
    offered, members = window(0)
    logs = np.random.default_rng(5).normal(-3.0, 0.2, len(members))
    assert LongRun(offered, long, RATE_RPS, TOKEN_S).carry(members, logs) is None


def test_what_the_draw_does_not_explain_stays_as_it_was(long: LongDraw) -> None:
    offered, members = window(0)
    noise = np.random.default_rng(5).normal(0.0, 0.2, len(members))
    there = carried(offered, members, loaded(offered)[members] + noise, long)
    assert there.std() == pytest.approx(np.hypot(0.2, loaded(long.at(RATE_RPS)).std()), rel=0.05)


def test_a_level_shift_of_the_server_is_carried_whole(long: LongDraw) -> None:
    offered, members = window(1)
    logs = loaded(offered)[members]
    moved = carried(offered, members, logs + 0.1, long) - carried(offered, members, logs, long)
    assert moved == pytest.approx(np.full(len(moved), 0.1))


def test_too_few_requests_are_not_fitted(long: LongDraw) -> None:
    offered, members = window(0)
    few = members[:59]
    assert LongRun(offered, long, RATE_RPS, TOKEN_S).carry(few, loaded(offered)[few]) is None


def test_equal_lengths_are_fitted_too() -> None:
    alike = long_draw(fixed_lengths(500, 100), POISSON)
    assert alike is not None
    due_s = POISSON.due_s(RATE_RPS, 0, 0, 140.0)
    offered = Offered(due_s, np.full(len(due_s), 500), np.full(len(due_s), 100))
    there = carried(offered, np.arange(len(due_s)), loaded(offered), alike)
    assert np.isfinite(there).all()


def test_a_long_draw_has_the_rate_that_it_is_asked_for(long: LongDraw) -> None:
    drawn = long.at(RATE_RPS)
    assert len(drawn.due_s) / drawn.due_s[-1] == pytest.approx(RATE_RPS, rel=0.01)


def test_at_a_rate_so_low_that_a_long_draw_would_take_years_nothing_is_carried(long: LongDraw) -> None:
    due_s = np.arange(100.0) * 1000
    offered = Offered(due_s, np.full(100, 500), np.arange(1, 101))
    assert long.at(0.001).due_s[-1] < 500_000
    assert LongRun(offered, long, 0.001, TOKEN_S).carry(np.arange(100), loaded(offered)) is None


def test_conversations_have_no_long_draw_since_later_turns_wait_for_the_server() -> None:
    assert long_draw(Conversations(), POISSON) is None


def test_under_way_counts_requests_from_their_due_time_to_their_last_token() -> None:
    offered = Offered(np.array([0.0, 0.0, 100.0]), np.array([10, 10, 10]), np.array([100, 100, 100]))
    assert np.exp(features(offered, TOKEN_S)[:, 1]) - 1 == pytest.approx([2.0, 2.0, 1.0])
