"""Minutes and dollars: the cap that is over first ends the session, and a part of it is kept for its end."""

from __future__ import annotations

import pytest

from cloud.budget import Budget, cost_usd
from cloud.errors import CloudUsageError

H100_CENTS = 429


def test_the_published_command_costs_21_45_usd_at_most() -> None:
    budget = Budget(price_cents_per_hour=H100_CENTS, max_minutes=300)
    assert budget.whole_s == 18_000
    assert budget.ceiling_usd == pytest.approx(21.45)
    assert budget.work_s == 18_000 - 240


@pytest.mark.parametrize(
    ("cents", "seconds", "usd"),
    [
        (H100_CENTS, 3600.0, 4.29),
        (129, 1800.0, 0.645),
        (3192, 1.0, 0.0088667),
        (H100_CENTS, 0.0, 0.0),
        (0, 7200.0, 0.0),
    ],
)
def test_cost_is_the_hourly_price_of_the_whole_machine_by_the_second(cents: int, seconds: float, usd: float) -> None:
    assert cost_usd(cents, seconds) == pytest.approx(usd, rel=1e-5)


def test_a_clock_that_was_set_back_earns_nothing() -> None:
    assert cost_usd(H100_CENTS, -3600.0) == 0.0


@pytest.mark.parametrize(
    ("max_minutes", "max_usd", "whole_s"),
    [
        (60.0, None, 3600.0),
        (60.0, 100.0, 3600.0),  # the minutes are over first
        (600.0, 4.0, 7200.0),  # the dollars are
        (120.0, 4.0, 7200.0),  # both at once
    ],
)
def test_the_cap_that_is_over_first_is_the_session_s(max_minutes: float, max_usd: float | None, whole_s: float) -> None:
    budget = Budget(price_cents_per_hour=200, max_minutes=max_minutes, max_usd=max_usd)
    assert budget.whole_s == pytest.approx(whole_s)
    assert budget.ceiling_usd == pytest.approx(2.0 * whole_s / 3600)


def test_a_cap_in_dollars_is_never_exceeded_at_any_price() -> None:
    for cents in (1, 3, 129, H100_CENTS, 3192, 99_999):
        budget = Budget(price_cents_per_hour=cents, max_minutes=10_000, max_usd=7.0, reserve_s=1.0)
        assert budget.ceiling_usd <= 7.0 + 1e-9


def test_a_machine_without_a_price_is_limited_by_minutes_alone() -> None:
    budget = Budget(price_cents_per_hour=0, max_minutes=30, max_usd=1.0)
    assert (budget.whole_s, budget.ceiling_usd) == (1800.0, 0.0)


@pytest.mark.parametrize(
    ("max_minutes", "max_usd"), [(0.0, None), (-5.0, None), (60.0, 0.0), (60.0, -1.0), (0.0, 10.0), (-5.0, -1.0)]
)
def test_a_limit_of_nothing_is_refused(max_minutes: float, max_usd: float | None) -> None:
    with pytest.raises(CloudUsageError) as refused:
        Budget(price_cents_per_hour=H100_CENTS, max_minutes=max_minutes, max_usd=max_usd)
    assert str(refused.value) == "a session needs a limit above 0, in minutes and in dollars"


@pytest.mark.parametrize(("max_minutes", "max_usd"), [(4.0, None), (3.0, None), (300.0, 0.286)])
def test_caps_that_the_end_alone_would_use_up_are_refused_with_what_to_raise(
    max_minutes: float, max_usd: float | None
) -> None:
    with pytest.raises(CloudUsageError) as refused:
        Budget(price_cents_per_hour=H100_CENTS, max_minutes=max_minutes, max_usd=max_usd)
    whole = 4.0 if max_usd is not None else max_minutes
    assert str(refused.value) == (
        f"the caps allow {whole:.1f} min and 4.0 min of them are kept for the last fetch and for ending the machine: "
        "raise --max-minutes or --max-usd"
    )


def test_a_second_more_than_the_reserve_is_a_second_of_work() -> None:
    budget = Budget(price_cents_per_hour=H100_CENTS, max_minutes=1, reserve_s=59.0)
    assert budget.work_s == pytest.approx(1.0)
