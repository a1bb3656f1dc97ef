from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reports import numbers

ROUNDERS: tuple[Callable[[float | None], str], ...] = (
    numbers.ms,
    numbers.seconds,
    numbers.rate,
    numbers.tokens_per_s,
    numbers.watts,
    numbers.joules,
    numbers.count,
    numbers.share,
    numbers.signed_share,
    numbers.points,
)


@given(value=st.none() | st.floats())
@example(value=math.nan)
@example(value=math.inf)
@example(value=-math.inf)
@example(value=1.7e308)
@example(value=-0.0)
def test_no_number_reads_nan_or_infinite_or_as_a_signed_zero(value: float | None) -> None:
    for rounder in ROUNDERS:
        text = rounder(value)
        assert text
        assert "nan" not in text.lower()
        assert "inf" not in text.lower()
        if text.lstrip("+-").split(" ")[0].strip("0.") == "":
            assert not text.startswith(("+", "-"))
        if value is None or not math.isfinite(value):
            assert text == numbers.NOT_MEASURED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.ms(0.0003), "0.300 ms"),
        (numbers.ms(0.0421), "42.10 ms"),
        (numbers.ms(0.4123), "412.3 ms"),
        (numbers.ms(1.2434), "1,243 ms"),
        (numbers.ms(0.0), "0.000 ms"),
        (numbers.ms(0.0421, unit=False), "42.10"),
        (numbers.ms(None, unit=False), "not measured"),
        (numbers.limit_ms(2.0), "2,000 ms"),
        (numbers.limit_ms(0.05), "50 ms"),
        (numbers.limit_ms(0.0125), "12.5 ms"),
        (numbers.seconds(120), "120 s"),
        (numbers.seconds(0.354), "0.35 s"),
        (numbers.seconds(61.24), "61.2 s"),
        (numbers.seconds(1800.5), "1,800 s"),
        (numbers.rate(11.5), "11.50 req/s"),
        (numbers.rate(0.4213), "0.4213 req/s"),
        (numbers.rate(12345.6), "12,346 req/s"),
        (numbers.tokens_per_s(2345.4), "2,345 tokens/s"),
        (numbers.watts(79.44), "79.4 W"),
        (numbers.watts(4879.6), "4,880 W"),
        (numbers.joules(0.4123), "0.412 J"),
        (numbers.joules(12.34), "12.3 J"),
        (numbers.usd(12.3), "$12.30"),
        (numbers.usd(0.03121), "$0.0312"),
        (numbers.usd(0.0), "$0.00"),
        (numbers.usd(None), "not known"),
        (numbers.count(1344), "1,344"),
        (numbers.share(0.0282), "2.8 %"),
        (numbers.signed_share(0.0288), "+2.9 %"),
        (numbers.signed_share(-0.0288), "-2.9 %"),
        (numbers.signed_share(-0.0004), "0.0 %"),
        (numbers.signed_share(21.5), "+2,150.0 %"),
        (numbers.signed_share(1e9), "above +99,999 %"),
        (numbers.signed_interval((-0.034, -0.024)), "-3.4 % to -2.4 %"),
        (numbers.signed_interval(None), "not measured"),
        (numbers.confidence(0.95), "95 %"),
        (numbers.confidence(0.975), "97.5 %"),
        (numbers.of(3, 3), "3 of 3"),
        (numbers.plural(1, "pair"), "1 pair"),
        (numbers.plural(1200, "pair"), "1,200 pairs"),
    ],
)
def test_how_numbers_read(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(min_value=-1, max_value=900))
def test_a_share_is_within_half_of_its_last_digit(value: float) -> None:
    shown = float(numbers.signed_share(value).removesuffix(" %").replace(",", ""))
    assert shown == pytest.approx(value * 100, abs=0.0501)


@given(st.floats(min_value=1e-4, max_value=1e5))
def test_a_latency_keeps_three_digits(value_s: float) -> None:
    shown = float(numbers.ms(value_s, unit=False).replace(",", ""))
    assert shown == pytest.approx(value_s * 1000, rel=0.006)
