"""Which connection serves which request, and that none is handed out that cannot."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2 as httpx
import pytest
from fake_server import CLOSE, Handler, Received, Script, in_turn, reply
from memory_server import MemoryServer

from traffic.http_pool import KEEP_ALIVE_S
from traffic.virtual_time import run_virtual
from traffic.wire import Feed, Limits
from traffic.wire_pool import DroppedError, WirePool

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
REQUEST = b"GET /%s HTTP/1.1\r\n\r\n"


class Read:
    """A sink that takes everything."""

    is_complete = True

    def open(self, _: int) -> Feed:
        return lambda data, now_s: True  # noqa: ARG005 - the signature of a sink


class Pool:
    """A pool with its server."""

    def __init__(self, server: MemoryServer, *, keep_alive: bool = True) -> None:
        self.server = server
        self.wires = WirePool(server.connect, tls=TLS, keep_alive=keep_alive, connect_s=10.0)

    async def get(self, name: bytes = b"", *, total_s: float = 60.0) -> None:
        limits = Limits(5.0, asyncio.get_running_loop().time() + total_s)
        await self.wires.exchange(httpx.URL(self.server.url), REQUEST % name, Read(), limits)

    @property
    def used(self) -> list[int]:
        """The connection of each request."""
        return [received.connection for received in self.server.received]


def with_a_pool(handler: Handler, use: Callable[[Pool], Awaitable[None]], *, keep_alive: bool = True) -> None:
    async def run() -> None:
        async with MemoryServer(handler) as server:
            pool = Pool(server, keep_alive=keep_alive)
            await use(pool)
            pool.wires.close()

    run_virtual(run())


def slow_or_quick(request: Received) -> Script:
    """Each name is how many seconds its answer takes."""
    (_, data), *_ = reply(200, {})
    return [(float(request.path[1:] or 0), data)]


def test_the_connection_that_served_last_serves_first() -> None:
    async def use(pool: Pool) -> None:
        await asyncio.gather(pool.get(b"1"), pool.get(b"3"), pool.get(b"2"))
        await pool.get()
        await asyncio.gather(pool.get(b"0.1"), pool.get(b"0.1"), pool.get(b"0.1"))
        assert pool.used == [1, 2, 3, 2, 2, 3, 1]

    with_a_pool(slow_or_quick, use)


def test_a_connection_that_was_idle_for_too_long_is_closed_and_never_used() -> None:
    async def use(pool: Pool) -> None:
        await asyncio.gather(pool.get(b"1"), pool.get(b"1"))
        await asyncio.sleep(KEEP_ALIVE_S - 1.0)
        await pool.get()
        assert pool.used[-1] == 2
        await asyncio.sleep(2.0)
        await pool.get()
        assert (pool.used[-1], len(pool.wires._idle)) == (2, 1), "the other one has gone"
        await asyncio.sleep(KEEP_ALIVE_S + 0.1)
        await pool.get()
        assert pool.used[-1] == 3

    with_a_pool(slow_or_quick, use)


def test_a_connection_that_the_server_closed_is_not_handed_out() -> None:
    async def use(pool: Pool) -> None:
        await pool.get()
        await asyncio.sleep(1.0)
        await pool.get()
        assert pool.used == [1, 2]

    with_a_pool(in_turn([*reply(200, {}), (0.5, None)]), use)


def test_without_keep_alive_each_request_has_a_connection_of_its_own() -> None:
    async def use(pool: Pool) -> None:
        for _ in range(3):
            await pool.get()
        assert pool.used == [1, 2, 3]

    with_a_pool(slow_or_quick, use, keep_alive=False)


class TestR11:
    def test_a_connection_given_up_under_a_request_says_so_only_if_it_had_been_idle(self) -> None:
        async def use(pool: Pool) -> None:
            await pool.get()
            with pytest.raises(DroppedError):
                await pool.get()
            with pytest.raises(httpx.RemoteProtocolError):
                await pool.get()

        with_a_pool(in_turn(reply(200, {}), [CLOSE]), use)

    def test_after_a_byte_of_the_response_nothing_goes_out_again(self) -> None:
        async def use(pool: Pool) -> None:
            await pool.get()
            with pytest.raises(httpx.RemoteProtocolError):
                await pool.get()

        with_a_pool(in_turn(reply(200, {}), [(0.0, b"H"), CLOSE]), use)


class TestConnecting:
    @pytest.mark.parametrize(
        ("connect_s", "number", "total_s", "kind"),
        [
            (0.0, errno.ECONNREFUSED, 60.0, httpx.ConnectError),
            (0.0, errno.ETIMEDOUT, 60.0, httpx.ConnectError),
            (30.0, None, 60.0, httpx.ConnectTimeout),
            (30.0, None, 2.0, TimeoutError),
        ],
    )
    def test_each_way_to_fail_has_its_error(
        self, connect_s: float, number: int | None, total_s: float, kind: type[Exception]
    ) -> None:
        async def run() -> None:
            server = MemoryServer(slow_or_quick, connect_s=connect_s, refuse=lambda _: number)
            with pytest.raises(kind) as caught:
                await Pool(server).get(total_s=total_s)
            assert type(caught.value) is kind

        run_virtual(run())

    def test_a_request_that_is_cancelled_while_it_connects_leaves_no_connection(self) -> None:
        async def use(pool: Pool) -> None:
            for turns in range(12):
                task = asyncio.create_task(pool.get(b"9"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                await asyncio.sleep(1.0)
                assert (pool.server.busy, pool.server._tasks) == (0, set())
                assert not pool.wires._busy
                assert not pool.wires._idle

        with_a_pool(slow_or_quick, use)


def test_a_pool_that_is_closed_ends_what_is_under_way() -> None:
    async def use(pool: Pool) -> None:
        task = asyncio.create_task(pool.get(b"30"))
        await asyncio.sleep(1.0)
        pool.wires.close()
        with pytest.raises(httpx.RemoteProtocolError):
            await task

    with_a_pool(slow_or_quick, use)


def test_a_pool_that_is_closed_keeps_no_connection_that_comes_about_later() -> None:
    async def run() -> None:
        server = MemoryServer(slow_or_quick, connect_s=1.0)
        pool = Pool(server)
        task = asyncio.create_task(pool.get())
        await asyncio.sleep(0.5)
        pool.wires.close()
        await task
        await asyncio.sleep(0.1)
        assert (server.connections, server._tasks, pool.wires._idle) == (1, set(), deque())

    run_virtual(run())


@pytest.mark.process
def test_the_first_request_of_a_process_imports_nothing() -> None:
    """What it imported would be in its time to the first token."""
    program = """
import asyncio, sys
from fake_server import FakeServer, in_turn, whole_answer
from flights import fly
from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.real_time import RealLoop

async def main():
    async with FakeServer(in_turn(whole_answer(4))) as server, Endpoint(server.url) as endpoint:
        before = set(sys.modules)
        await fly(HttpEngine(endpoint, "m"))
        print(sorted(set(sys.modules) - before))

with asyncio.Runner(loop_factory=RealLoop) as runner:
    runner.run(main())
"""
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert done.stdout == "[]\n"
