"""The search of the client's own ceiling, on clients whose ceiling is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from engines import failed, probe_facts, record

from slo_bench.doctor.client import (
    LONG_TOKENS,
    SEND_LAG_S,
    SHORT_TOKENS,
    Look,
    LookAt,
    find_ceiling,
    find_ceilings,
    idle_lateness_s,
    lag_limit_s,
    longest_pause_s,
    look_of,
    window_length_s,
)
from slo_bench.doctor.document import HeldRow
from slo_bench.doctor.null_engine import TrueAnswer, Truth
from traffic.virtual_time import run_virtual

LOOK_S = 2.0


class Client:
    """Needs request_s + tokens x token_s for a request. spoil: what a busy machine does to the n-th look."""

    def __init__(
        self, request_s: float, token_s: float = 0.0, spoil: Callable[[int], dict[str, Any]] = lambda _: {}
    ) -> None:
        self.request_s, self.token_s, self.spoil = request_s, token_s, spoil
        self.rates: list[tuple[float, int]] = []

    async def look_at(self, rate_rps: float, output_tokens: int) -> Look:
        await asyncio.sleep(LOOK_S)
        self.rates.append((rate_rps, output_tokens))
        holds = rate_rps * (self.request_s + output_tokens * self.token_s) <= 1
        seen = {"holds": holds, "is_disturbed": False, **self.spoil(len(self.rates))}
        return Look(rate_rps, output_tokens, send_lag_p99_s=0.001, ttft_error_p99_s=None, **seen)


def search(look_at: LookAt, seconds: float = 1000.0) -> HeldRow | None:
    return run_virtual(find_ceiling(look_at, SHORT_TOKENS, start_rps=50.0, seconds=seconds))


def ceilings(look_at: LookAt, seconds: float = 1000.0) -> tuple[HeldRow | None, HeldRow | None]:
    return run_virtual(find_ceilings(look_at, seconds=seconds))


@pytest.mark.parametrize("true_rps", [3.0, 41.0, 50.0, 137.0, 640.0, 2900.0])
def test_the_ceiling_is_found_within_its_resolution(true_rps: float) -> None:
    row = search(Client(1 / true_rps).look_at)
    assert row is not None
    assert row.rate_rps <= true_rps * 1.0001
    assert row.failed_rps is not None
    assert row.failed_rps > true_rps
    assert row.failed_rps / row.rate_rps <= 1.15
    assert not row.is_least


def test_both_lengths_of_answers_are_looked_at() -> None:
    short, long = ceilings(Client(0.003, 0.0001).look_at)
    assert short is not None
    assert long is not None
    assert (short.output_tokens, long.output_tokens) == (SHORT_TOKENS, LONG_TOKENS)
    assert short.rate_rps == pytest.approx(1 / 0.0046, rel=0.15)
    assert long.rate_rps == pytest.approx(1 / 0.0158, rel=0.15)


def test_one_bad_look_on_a_busy_machine_fails_no_rate() -> None:
    row = search(Client(1 / 300, spoil=lambda number: {"holds": False} if number == 2 else {}).look_at)
    assert row is not None
    assert row.rate_rps == pytest.approx(300, rel=0.15)


def test_a_look_at_a_server_that_was_late_itself_counts_for_nothing() -> None:
    spoilt = Client(1 / 300, spoil=lambda number: {"holds": False, "is_disturbed": True} if number < 4 else {})
    row = search(spoilt.look_at)
    assert row is not None
    assert row.rate_rps == pytest.approx(300, rel=0.15)
    assert spoilt.rates[:4] == [(50.0, SHORT_TOKENS)] * 4


def test_no_look_begins_after_the_time_is_over_and_what_was_held_is_a_least() -> None:
    client = Client(1 / 500)
    row = search(client.look_at, seconds=3.0)
    assert len(client.rates) == 2
    assert row is not None
    assert (row.rate_rps, row.is_least) == (100.0, True)


def test_a_client_that_holds_nothing_has_no_ceiling() -> None:
    assert search(Client(1e9).look_at) is None
    assert ceilings(Client(1e9).look_at) == (None, None)


def test_an_idle_client_is_never_late_under_virtual_time() -> None:
    assert run_virtual(idle_lateness_s(3.0)) == pytest.approx(0.0, abs=1e-6)


def test_a_pause_is_where_the_clock_jumps() -> None:
    ticks = iter([5.0, 5.001, 5.002, 5.06, 5.061, 5.1])
    assert longest_pause_s(0.1, lambda: next(ticks)) == pytest.approx(0.058)


def test_a_restless_host_gets_a_wider_bound_but_never_one_that_no_probe_would_have() -> None:
    assert lag_limit_s(0.0) == lag_limit_s(0.0009) == SEND_LAG_S
    assert lag_limit_s(0.003) == 0.006
    assert lag_limit_s(0.2) == 0.010


def test_windows_share_the_time_and_are_longer_where_requests_are_few() -> None:
    assert window_length_s(400.0, 45.0) == 2.5
    assert window_length_s(400.0, 600.0) == 3.0
    assert window_length_s(20.0, 45.0) == 5.0
    assert window_length_s(1.0, 45.0) == 8.0
    assert window_length_s(1.0, 2.0) == 0.5


def truth(count: int, late_s: float = 0.001) -> Truth:
    return Truth({index: TrueAnswer(0.0, 0.198, 0.4, 11) for index in range(count)}, late_s)


def test_a_look_holds_when_the_client_was_in_time() -> None:
    records = [record(index, sent_s=index * 0.1 + 0.001) for index in range(120)]
    look = look_of(probe_facts(records), truth(120), 0.002)
    assert look.holds
    assert (look.rate_rps, look.output_tokens, look.is_disturbed) == (10.0, 11, False)
    assert look.send_lag_p99_s == pytest.approx(0.001)
    assert look.ttft_error_p99_s == pytest.approx(0.002)


@pytest.mark.parametrize("late", [2, 3])
def test_one_late_request_in_a_hundred_is_allowed(late: int) -> None:
    records = [record(index, sent_s=index * 0.1 + (0.003 if index < late else 0.0)) for index in range(200)]
    assert look_of(probe_facts(records), truth(200), 0.002).holds == (late <= 2)


def test_a_failed_request_an_unsent_one_and_no_request_do_not_hold() -> None:
    records = [record(index) for index in range(120)]
    assert not look_of(probe_facts([*records, failed(record(120))]), truth(121), 0.002).holds
    unsent = [record(120 + index, sent_s=None, ttft_s=None) for index in range(5)]
    assert not look_of(probe_facts([*records, *unsent]), truth(125), 0.002).holds
    assert not look_of(probe_facts([]), truth(0), 0.002).holds


def test_a_late_server_disturbs_a_look() -> None:
    assert look_of(probe_facts([record(0)]), truth(1, late_s=0.02), 0.002).is_disturbed
