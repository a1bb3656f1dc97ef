"""What a session may cost: by minutes and by dollars, whichever is over first."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.errors import CloudUsageError

_SECONDS_PER_HOUR = 3600.0
_CENTS_PER_USD = 100.0


def cost_usd(price_cents_per_hour: int, seconds: float) -> float:
    """What `seconds` of a whole machine cost; providers bill somewhat less, as they do not count the boot."""
    return price_cents_per_hour / _CENTS_PER_USD * max(seconds, 0.0) / _SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The caps of a session. reserve_s: kept for bringing results home and for ending the machine.

    Raises CloudUsageError where the caps leave no time for work.
    """

    price_cents_per_hour: int
    max_minutes: float
    max_usd: float | None = None
    reserve_s: float = 240.0

    def __post_init__(self) -> None:
        """Refuse caps that only the reserve would use."""
        if self.max_minutes <= 0 or (self.max_usd is not None and self.max_usd <= 0):
            raise CloudUsageError("a session needs a limit above 0, in minutes and in dollars")
        if self.work_s <= 0:
            raise CloudUsageError(
                f"the caps allow {self.whole_s / 60:.1f} min and {self.reserve_s / 60:.1f} min of them are kept for "
                "the last fetch and for ending the machine: raise --max-minutes or --max-usd"
            )

    @property
    def whole_s(self) -> float:
        """From the launch to the end of the machine."""
        by_minutes_s = self.max_minutes * 60.0
        if self.max_usd is None or self.price_cents_per_hour == 0:
            return by_minutes_s
        return min(by_minutes_s, self.max_usd * _CENTS_PER_USD / self.price_cents_per_hour * _SECONDS_PER_HOUR)

    @property
    def work_s(self) -> float:
        """From the launch to the moment when work stops and results come home."""
        return self.whole_s - self.reserve_s

    @property
    def ceiling_usd(self) -> float:
        """The most that the session can cost while its end is confirmed in time."""
        return cost_usd(self.price_cents_per_hour, self.whole_s)
