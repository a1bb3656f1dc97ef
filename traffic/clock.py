"""Where time comes from. A step of UTC is an input like any other: both clocks are handed in together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

_INSTANT_S = 1e-6
"""Nobody waits for so little: sums of floats differ by more than nothing."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Monotonic seconds and UTC of one event loop.

    now_s: the loop's own clock, on which due times and sleeps are counted. utc_s: POSIX seconds, for records only.
    cpu_s: seconds that this process has computed; None under virtual time, where computing takes none.
    """

    now_s: Callable[[], float]
    utc_s: Callable[[], float]
    cpu_s: Callable[[], float | None]

    def utc(self) -> datetime:
        """UTC now."""
        return datetime.fromtimestamp(self.utc_s(), tz=UTC)


def running_clock() -> Clock:
    """The clock of the running loop: real time, or the virtual loop's own."""
    loop = asyncio.get_running_loop()
    utc_s = getattr(loop, "utc_s", time.time)
    cpu_s = getattr(loop, "cpu_s", time.process_time)
    return Clock(now_s=loop.time, utc_s=utc_s, cpu_s=cpu_s)


async def sleep_until(moment_s: float) -> None:
    """Sleep to an absolute loop time, never less; a late caller is not delayed further.

    uvloop rounds a timer to the nearest millisecond: after one that rang early, the rest is spent turning the loop.
    """
    now_s = asyncio.get_running_loop().time
    delay_s = moment_s - now_s()
    while delay_s > 0:
        await asyncio.sleep(delay_s)
        delay_s = moment_s - now_s() - _INSTANT_S


def next_tick(tick: int, woke_s: float, step_s: float) -> int:
    """The tick to wait for after this one, of those every step_s; woke_s: when this one came.

    Who woke late does not work off the ticks that were missed: on a machine that is merely slow, each would come later
    than the one before. What is done between two ticks may make the next one late, so woke_s is before it.
    """
    return max(tick, math.floor(woke_s / step_s)) + 1
