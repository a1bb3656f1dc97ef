"""The real loop: one clock with all its digits, and nobody woken early."""

from __future__ import annotations

import asyncio
import time

from traffic.clock import sleep_until
from traffic.real_time import RealLoop


def test_loop_time_is_the_monotonic_clock_of_the_machine() -> None:
    async def main() -> list[bool]:
        loop = asyncio.get_running_loop()
        return [time.monotonic() <= loop.time() <= time.monotonic() for _ in range(100)]

    with asyncio.Runner(loop_factory=RealLoop) as runner:
        assert all(runner.run(main()))


def test_nobody_is_woken_before_the_moment() -> None:
    async def main() -> list[float]:
        early_s = []
        for step in range(20):
            moment_s = time.monotonic() + 0.0005 + step * 0.00013
            await sleep_until(moment_s)
            early_s.append(moment_s - time.monotonic())
        return early_s

    with asyncio.Runner(loop_factory=RealLoop) as runner:
        assert max(runner.run(main())) < 2e-6
