"""The offset of another machine's clock, on made-up clocks: what is found holds the truth within its own bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from traffic.clock_line import offset_at, tell_clock
from traffic.clock_offset import ClockOffset, RoundTrip, WorkerClock, measured_offset, offset_of
from traffic.real_time import RealLoop
from traffic.virtual_time import run_virtual

TRUE_S = 86_400.25


def trip(at_s: float, there_s: float, back_s: float) -> RoundTrip:
    """A question that was under way for there_s, and its answer for back_s."""
    return RoundTrip(at_s, at_s + there_s + TRUE_S, at_s + there_s + back_s)


def test_equal_ways_give_the_offset_itself_and_half_a_round_trip_as_its_bound() -> None:
    found = offset_of([trip(5.0, 0.0002, 0.0002)])
    assert found.offset_s == pytest.approx(TRUE_S, abs=1e-9)
    assert found.bound_s == pytest.approx(0.0002)


@pytest.mark.parametrize(("there_s", "back_s"), [(0.0004, 0.0), (0.0, 0.0004), (0.0003, 0.0001)])
def test_unequal_ways_are_wrong_by_no_more_than_the_bound(there_s: float, back_s: float) -> None:
    found = offset_of([trip(5.0, there_s, back_s)])
    assert abs(found.offset_s - TRUE_S) == pytest.approx(abs(there_s - back_s) / 2, abs=1e-9)
    assert abs(found.offset_s - TRUE_S) <= found.bound_s + 1e-9


def test_the_shortest_round_trip_counts_whatever_the_others_say() -> None:
    delayed = [trip(at_s, 0.050, 0.0001) for at_s in range(20)]
    found = offset_of([*delayed, trip(20.0, 0.0001, 0.0002), *delayed])
    assert found.bound_s == pytest.approx(0.00015)
    assert found.offset_s == pytest.approx(TRUE_S, abs=0.0001)


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_is_always_inside_the_bound(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - made-up delays
    found = offset_of([trip(at, draw.expovariate(1000), draw.expovariate(5000)) for at in range(50)])
    assert abs(found.offset_s - TRUE_S) <= found.bound_s + 1e-9


def test_as_many_round_trips_are_made_as_wanted() -> None:
    ways_s: Iterator[float] = iter([0.004, 0.001, 0.002])

    async def main() -> ClockOffset:
        now_s = asyncio.get_running_loop().time

        async def ask() -> float:
            way_s = next(ways_s)
            await asyncio.sleep(way_s)
            there_s = now_s() + TRUE_S
            await asyncio.sleep(way_s)
            return there_s

        return await measured_offset(ask, now_s, 3)

    found = run_virtual(main())
    assert found.offset_s == pytest.approx(TRUE_S, abs=1e-9)
    assert found.bound_s == pytest.approx(0.001)
    assert next(ways_s, None) is None


def test_a_moment_of_ours_is_told_by_the_other_clock() -> None:
    assert ClockOffset(TRUE_S, 0.0).there(10.0) == pytest.approx(10.0 + TRUE_S)


@pytest.mark.parametrize("drift_s", [0.0007, -0.0007])
def test_what_the_clocks_drift_apart_counts_in_full(drift_s: float) -> None:
    clock = WorkerClock("a", ClockOffset(TRUE_S, 0.0002), ClockOffset(TRUE_S + drift_s, 0.0001))
    assert clock.drift_s == pytest.approx(drift_s)
    assert clock.error_s == pytest.approx(0.0008)


def test_clocks_that_keep_together_are_known_as_well_as_they_were_measured() -> None:
    assert WorkerClock("a", ClockOffset(5.0, 0.0004), ClockOffset(5.0, 0.0001)).error_s == pytest.approx(0.0004)


def test_the_clock_of_a_lost_worker_has_no_drift() -> None:
    clock = WorkerClock("a", ClockOffset(5.0, 0.0004), None)
    assert (clock.drift_s, clock.error_s) == (None, None)


def test_a_clock_told_over_a_connection_is_found_to_be_our_own() -> None:
    async def main() -> ClockOffset:
        server, port = await tell_clock("127.0.0.1")
        async with server, asyncio.timeout(10.0):
            return await offset_at("127.0.0.1", port)

    with asyncio.Runner(loop_factory=RealLoop) as runner:
        found = runner.run(main())
    assert abs(found.offset_s) <= found.bound_s
    assert found.bound_s < 0.05


def test_a_port_where_nobody_tells_a_clock_is_an_error_of_the_system() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server, asyncio.timeout(10.0):
            with pytest.raises(OSError):  # noqa: PT011 - reset or closed, as it comes
                await offset_at("127.0.0.1", server.sockets[0].getsockname()[1])

    with asyncio.Runner(loop_factory=RealLoop) as runner:
        runner.run(main())
