"""The real event loop, under the monotonic clock itself.

uvloop's own loop.time() is that clock in whole milliseconds, rounded down: a first token would be stamped up to 1 ms
early, and due times could not be kept more finely. Here all processes of a machine read one clock with all its digits.
"""

from __future__ import annotations

import asyncio
import time

try:
    import uvloop
except ImportError:  # there is none for Windows
    _Loop: type[asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop
else:
    _Loop = uvloop.Loop


class RealLoop(_Loop):  # type: ignore[valid-type, misc]  # known at run time only
    """An event loop for real input and output; time() is time.monotonic()."""

    def time(self) -> float:
        """Seconds of CLOCK_MONOTONIC, the same in every process of this machine."""
        return time.monotonic()
