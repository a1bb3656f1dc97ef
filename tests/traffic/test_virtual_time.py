"""A loop whose clock jumps: order, exactness, and its doors to the real world, which are shut."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.clock import running_clock, sleep_until
from traffic.errors import VirtualTimeError
from traffic.virtual_time import VirtualLoop, run_virtual


def test_the_clock_stands_at_the_end_of_a_long_sleep() -> None:
    async def main() -> float:
        await asyncio.sleep(7200)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(7200)


def test_a_sleep_of_weeks_is_one_jump() -> None:
    async def main() -> float:
        await asyncio.sleep(30 * 86400)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(30 * 86400)


def test_utc_is_the_first_second_of_2000_plus_loop_time() -> None:
    async def main() -> tuple[datetime, datetime]:
        clock = running_clock()
        before = clock.utc()
        await asyncio.sleep(90)
        return before, clock.utc()

    assert run_virtual(main()) == (datetime(2000, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, 0, 1, 30, tzinfo=UTC))


def test_computing_takes_no_time() -> None:
    async def main() -> float:
        sum(range(10_000))
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=30))
def test_every_task_wakes_at_its_own_moment_and_in_order(moments_s: list[float]) -> None:
    async def main() -> list[tuple[float, float]]:
        woken: list[tuple[float, float]] = []

        async def wake(moment_s: float) -> None:
            await sleep_until(moment_s)
            woken.append((moment_s, asyncio.get_running_loop().time()))

        await asyncio.gather(*(wake(moment_s) for moment_s in moments_s))
        return woken

    woken = run_virtual(main())
    assert [moment_s for moment_s, _ in woken] == sorted(moments_s)
    assert all(now_s == pytest.approx(moment_s, abs=1e-8) for moment_s, now_s in woken)


def test_a_late_caller_is_not_delayed_further() -> None:
    async def main() -> float:
        await asyncio.sleep(10)
        await sleep_until(3.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 10.0


def test_timeouts_end_at_their_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 2.5


def test_waiting_for_what_can_never_come_is_an_error_that_names_the_tasks() -> None:
    async def main() -> None:
        task = asyncio.create_task(asyncio.Event().wait(), name="the patient one")
        await task

    with pytest.raises(VirtualTimeError, match="the patient one"):
        run_virtual(main())


async def _read_a_pipe() -> None:
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(asyncio.Protocol, None)


async def _wait_for_a_descriptor() -> None:
    asyncio.get_running_loop().add_reader(0, print)


async def _read_a_socket() -> None:
    with socket.socket() as raw:
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_recv(raw, 1)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda: asyncio.open_connection("127.0.0.1", 9), "a socket"),
        (lambda: asyncio.start_server(print, "127.0.0.1", 0), "a listening socket"),
        (lambda: asyncio.get_running_loop().getaddrinfo("localhost", 80), "name resolution"),
        (lambda: asyncio.to_thread(print), "an executor"),
        (lambda: asyncio.create_subprocess_exec(sys.executable, stdout=subprocess.PIPE), "a subprocess"),
        (lambda: asyncio.create_subprocess_shell("true"), "a subprocess"),
        (_read_a_pipe, "a pipe"),
        (_wait_for_a_descriptor, "a file descriptor"),
        (_read_a_socket, "a socket"),
    ],
    ids=["connection", "server", "resolver", "thread", "program", "shell", "pipe", "descriptor", "raw socket"],
)
def test_the_real_world_is_refused_with_its_name(act: Callable[[], Awaitable[object]], what: str) -> None:
    async def main() -> None:
        await act()

    with pytest.raises(VirtualTimeError, match=f"^{what} cannot be used under virtual time"):
        run_virtual(main())


def test_two_runs_take_the_same_turns() -> None:
    async def main() -> list[str]:
        turns: list[str] = []

        async def walk(name: str, pace_s: float) -> None:
            for step in range(20):
                await asyncio.sleep(pace_s)
                turns.append(f"{name}{step}")

        await asyncio.gather(walk("a", 0.3), walk("b", 0.1), walk("c", 0.2))
        return turns

    assert run_virtual(main()) == run_virtual(main())


def test_a_task_left_behind_is_cancelled_as_asyncio_run_does() -> None:
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append("cancelled")

    async def main() -> None:
        task = asyncio.create_task(linger())
        await asyncio.sleep(1)
        assert not task.done()

    run_virtual(main())
    assert ended == ["cancelled"]


def test_a_loop_starts_at_zero() -> None:
    loop = VirtualLoop()
    assert loop.time() == 0.0
    loop.close()
