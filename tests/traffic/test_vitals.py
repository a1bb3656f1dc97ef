"""What a client learns of itself: stalls, steps of its clock, its use of a core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from traffic.clock import running_clock, sleep_until
from traffic.virtual_time import VirtualLoop
from traffic.vitals import Vitals


def watched(loop: Callable[[], VirtualLoop], *, late_s: float = 0.0) -> Vitals:
    """Ten seconds of ticks, four a second; the twelfth comes late."""

    async def main() -> Vitals:
        vitals = Vitals(running_clock())
        for tick in range(1, 41):
            await sleep_until(tick * 0.25 + (late_s if tick == 12 else 0.0))
            vitals.look(tick * 0.25)
        return vitals

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())


def stepping(*steps: tuple[float, float]) -> Callable[[], VirtualLoop]:
    """A loop whose UTC is moved by (moment, seconds)."""

    class Stepping(VirtualLoop):
        def utc_s(self) -> float:
            return super().utc_s() + sum(by_s for at_s, by_s in steps if self.time() > at_s)

    return Stepping


def test_a_calm_client_has_nothing_to_tell() -> None:
    vitals = watched(VirtualLoop)
    assert (vitals.stall_max_s, vitals.clock_step_s) == (pytest.approx(0.0), pytest.approx(0.0))


def test_a_stall_is_how_late_a_tick_came() -> None:
    assert watched(VirtualLoop, late_s=0.2).stall_max_s == pytest.approx(0.2)


@pytest.mark.parametrize("by_s", [30.0, -30.0])
def test_a_step_of_utc_that_is_taken_back_is_seen(by_s: float) -> None:  # R12
    assert watched(stepping((4.0, by_s), (6.0, -by_s))).clock_step_s == pytest.approx(by_s)


def test_of_several_steps_the_largest_distance_from_the_start_counts() -> None:
    assert watched(stepping((2.0, 3.0), (4.0, -10.0), (6.0, 8.0))).clock_step_s == pytest.approx(-7.0)


def test_the_share_of_a_core_is_cpu_time_over_time() -> None:
    class Busy(VirtualLoop):
        def cpu_s(self) -> float:  # type: ignore[override]
            return 100.0 + 0.35 * self.time()

    async def main() -> float | None:
        vitals = Vitals(running_clock())
        await asyncio.sleep(4.0)
        return vitals.cpu_share

    with asyncio.Runner(loop_factory=Busy) as runner:
        assert runner.run(main()) == pytest.approx(0.35)


def test_under_virtual_time_there_is_no_share_of_a_core() -> None:
    assert watched(VirtualLoop).cpu_share is None
