"""The one place that rounds: every number that a reader sees goes through here.

None, and whatever is not finite, reads "not measured": a null in a document is never 0 on a page.
"""

from __future__ import annotations

import math

from gates.capacity import rate_text

NOT_MEASURED = "not measured"
NOT_KNOWN = "not known"

_LARGEST_PERCENT = 99_999


def ms(value_s: float | None, *, unit: bool = True) -> str:
    """Seconds as milliseconds, about four digits: 0.300 ms, 42.10 ms, 412.3 ms, 1,243 ms."""
    if value_s is None or not math.isfinite(value_s * 1000):
        return NOT_MEASURED
    value_ms = value_s * 1000
    size = abs(value_ms)
    decimals = 3 if size < 1 else 2 if size < 100 else 1 if size < 1000 else 0  # noqa: PLR2004 - four digits
    return _with_unit(_plain(f"{value_ms:,.{decimals}f}"), "ms", unit=unit)


def limit_ms(limit_s: float) -> str:
    """A limit in seconds as milliseconds, with the digits that it was given: 50 ms, 2,000 ms."""
    return f"{limit_s * 1000:,.10g} ms"


def seconds(value_s: float | None, *, unit: bool = True) -> str:
    """Seconds: 0.35 s, 61.2 s, 120 s, 1,800 s."""
    if value_s is None or not math.isfinite(value_s):
        return NOT_MEASURED
    size = abs(value_s)
    decimals = 0 if value_s == round(value_s) else 2 if size < 10 else 1 if size < 100 else 0  # noqa: PLR2004 - digits
    return _with_unit(_plain(f"{value_s:,.{decimals}f}"), "s", unit=unit)


def rate(value_rps: float | None, *, unit: bool = True) -> str:
    """A rate as it was sent: 11.50 req/s."""
    return _with_unit(_rate_digits(value_rps), "req/s", unit=unit)


def tokens_per_s(value: float | None, *, unit: bool = True) -> str:
    """Output tokens per second: 2,345 tokens/s."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return _with_unit(_plain(f"{value:,.{0 if abs(value) >= 100 else 1}f}"), "tokens/s", unit=unit)  # noqa: PLR2004 - digits


def watts(value_w: float | None, *, unit: bool = True) -> str:
    """Power: 79.4 W, 612 W, 4,880 W."""
    if value_w is None or not math.isfinite(value_w):
        return NOT_MEASURED
    return _with_unit(_plain(f"{value_w:,.{0 if abs(value_w) >= 100 else 1}f}"), "W", unit=unit)  # noqa: PLR2004 - digits


def joules(value_j: float | None, *, unit: bool = True) -> str:
    """Energy of one token, three digits: 0.412 J, 12.3 J."""
    if value_j is None or not math.isfinite(value_j):
        return NOT_MEASURED
    decimals = 3 if abs(value_j) < 1 else 2 if abs(value_j) < 10 else 1  # noqa: PLR2004 - digits
    return _with_unit(_plain(f"{value_j:,.{decimals}f}"), "J", unit=unit)


def usd(value_usd: float | None) -> str:
    """Dollars: $0.0312, $0.42, $12.30."""
    if value_usd is None or not math.isfinite(value_usd):
        return NOT_KNOWN
    return f"${value_usd:,.{4 if 0 < abs(value_usd) < 0.1 else 2}f}"  # noqa: PLR2004 - digits


def count(value: float | None) -> str:
    """A count, or a mean of counts, with separators: 1,344."""
    return NOT_MEASURED if value is None or not math.isfinite(value) else _plain(f"{value:,.0f}")


def share(value: float | None) -> str:
    """A share without sign in percent: 2.8 %."""
    return _percent(value, "")


def confidence(value: float) -> str:
    """A confidence that was chosen, not measured: 95 %, 97.5 %."""
    return f"{value * 100:.4g} %"


def signed_share(value: float | None) -> str:
    """A change in percent, always signed except for nothing: +2.9 %, -2.9 %, 0.0 %."""
    return _percent(value, "+")


def signed_interval(ends: tuple[float, float] | None) -> str:
    """An interval of a change: -3.4 % to -2.4 %."""
    return NOT_MEASURED if ends is None else f"{signed_share(ends[0])} to {signed_share(ends[1])}"


def points(value_share: float | None, *, unit: bool = True) -> str:
    """A difference of two shares in percentage points, always signed except for nothing: -2.0 points."""
    if value_share is None or not math.isfinite(value_share * 100):
        return NOT_MEASURED
    return _with_unit(_plain(f"{value_share * 100:+,.1f}"), "points", unit=unit)


def of(part: int, whole: int) -> str:
    """A count of a count: 3 of 3."""
    return f"{count(part)} of {count(whole)}"


def plural(number: int, noun: str) -> str:
    """A count with its noun: 1 pair, 3 pairs."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _percent(value: float | None, sign: str) -> str:
    if value is None or math.isnan(value):
        return NOT_MEASURED
    if abs(value) > _LARGEST_PERCENT / 100:
        if math.isinf(value):
            return NOT_MEASURED
        return f"{'above +' if value > 0 else 'below -'}{_LARGEST_PERCENT:,} %"
    return f"{_plain(f'{value * 100:{sign},.1f}')} %"


def _rate_digits(value_rps: float | None) -> str:
    if value_rps is None or not math.isfinite(value_rps):
        return NOT_MEASURED
    return _plain(rate_text(value_rps) if abs(value_rps) < 1000 else f"{value_rps:,.0f}")  # noqa: PLR2004 - no exponent


def _plain(text: str) -> str:
    """No sign on a zero: it would claim a direction."""
    return text.lstrip("+-") if not text.strip("+-0.,") else text


def _with_unit(text: str, name: str, *, unit: bool) -> str:
    return f"{text} {name}" if unit and text != NOT_MEASURED else text
