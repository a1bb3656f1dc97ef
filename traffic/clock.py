"""Where time comes from. A step of UTC is an input like any other: both clocks are handed in together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Clock:
    """Monotonic seconds and UTC of one event loop.

    now_s: the loop's own clock, on which due times and sleeps are counted. utc_s: POSIX seconds, for records only.
    """

    now_s: Callable[[], float]
    utc_s: Callable[[], float]

    def utc(self) -> datetime:
        """UTC now."""
        return datetime.fromtimestamp(self.utc_s(), tz=UTC)


def running_clock() -> Clock:
    """The clock of the running loop: real time, or the virtual loop's own."""
    loop = asyncio.get_running_loop()
    utc_s = getattr(loop, "utc_s", time.time)
    return Clock(now_s=loop.time, utc_s=utc_s)


async def sleep_until(moment_s: float) -> None:
    """Sleep to an absolute loop time; a late caller is not delayed further."""
    delay_s = moment_s - asyncio.get_running_loop().time()
    if delay_s > 0:
        await asyncio.sleep(delay_s)
