"""How far the clock of another machine is from ours, by round trips (Cristian, 1989; NTP's clock filter, RFC 5905).

Each machine counts CLOCK_MONOTONIC from a start of its own. Whoever asks another for its clock knows that it was read
between the question and the answer. Taken as read half-way, it is wrong by half the round trip at most, so the shortest
one of many is the best.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

ROUND_TRIPS = 50
"""Enough to meet one that waited for nobody."""


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """asked_s, answered_s: by our clock. there_s: what the other clock said in between."""

    asked_s: float
    there_s: float
    answered_s: float


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The other clock minus ours, and the most that this may be wrong by; seconds."""

    offset_s: float
    bound_s: float

    def there(self, moment_s: float) -> float:
        """A moment of our clock, on the other one."""
        return moment_s + self.offset_s


@dataclass(frozen=True, slots=True)
class WorkerClock:
    """The clock of one load worker, measured before a load and after it.

    worker: where it ran. after: None where it was lost.
    """

    worker: str
    before: ClockOffset
    after: ClockOffset | None

    @property
    def drift_s(self) -> float | None:
        """What its offset changed by over the load."""
        return None if self.after is None else self.after.offset_s - self.before.offset_s

    @property
    def error_s(self) -> float | None:
        """The most that its moments may be off our clock, anywhere in the load; None where it was lost.

        It keeps the schedule by the offset from before, so what the clocks drift apart counts in full at the end.
        """
        if self.after is None or self.drift_s is None:
            return None
        return max(self.before.bound_s, abs(self.drift_s) + self.after.bound_s)


def offset_of(trips: Sequence[RoundTrip]) -> ClockOffset:
    """The offset by the shortest of these round trips, at least one."""
    best = min(trips, key=lambda trip: trip.answered_s - trip.asked_s)
    return ClockOffset(
        offset_s=best.there_s - (best.asked_s + best.answered_s) / 2,
        bound_s=(best.answered_s - best.asked_s) / 2,
    )


async def measured_offset(
    ask: Callable[[], Awaitable[float]], now_s: Callable[[], float], trips: int = ROUND_TRIPS
) -> ClockOffset:
    """Ask another clock that many times. It has no deadline of its own."""
    made = []
    for _ in range(trips):
        asked_s = now_s()
        there_s = await ask()
        made.append(RoundTrip(asked_s, there_s, now_s()))
    return offset_of(made)
