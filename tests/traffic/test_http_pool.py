"""One connection under httpx2: what it hands on, how long it waits, and what becomes of the network's errors."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import httpcore2 as httpcore
import pytest
from fake_server import DONE, event, finish, head, in_turn, timed, token, whole_answer
from flights import against, fly
from memory_server import MemoryServer, MemoryTransport, joined

from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.http_pool import Stream
from traffic.records import End
from traffic.virtual_time import run_virtual


def on_a_stream(use: Callable[[Stream, MemoryTransport], Coroutine[Any, Any, None]]) -> None:
    """Run `use` with a stream and the other end of its connection."""

    async def run() -> None:
        stream = Stream()
        near = joined(stream, asyncio.Protocol())
        await use(stream, near.other)

    run_virtual(run())


def loop_s() -> float:
    return asyncio.get_running_loop().time()


class TestReading:
    def test_what_came_is_read_in_parts_no_larger_than_asked_for_and_then_the_end(self) -> None:
        async def use(stream: Stream, far: MemoryTransport) -> None:
            far.write(b"ab")
            far.write(b"cde")
            far.close()
            await asyncio.sleep(1.0)
            assert [await stream.read(3), await stream.read(3), await stream.read(3)] == [b"abc", b"de", b""]

        on_a_stream(use)

    def test_each_wait_is_bounded_anew(self) -> None:
        async def use(stream: Stream, far: MemoryTransport) -> None:
            for bound_s in (5.0, 5.0, 2.0, 10.0):
                asyncio.get_running_loop().call_later(1.5, far.write, b"x")
                assert await stream.read(10, timeout=bound_s) == b"x"
            assert loop_s() == 6.0
            with pytest.raises(httpcore.ReadTimeout):
                await stream.read(10, timeout=3.0)
            assert loop_s() == 9.0

        on_a_stream(use)

    def test_a_reset_is_an_error_after_what_had_come(self) -> None:
        async def use(stream: Stream, far: MemoryTransport) -> None:
            far.write(b"x")
            far.abort()
            assert await stream.read(10) == b"x"
            with pytest.raises(httpcore.ReadError, match="reset"):
                await stream.read(10)
            with pytest.raises(httpcore.WriteError):
                await stream.write(b"y")

        on_a_stream(use)

    def test_a_wait_that_is_cancelled_leaves_the_stream_readable(self) -> None:
        async def use(stream: Stream, far: MemoryTransport) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await stream.read(10, timeout=60.0)
            far.write(b"x")
            assert await stream.read(10) == b"x"

        on_a_stream(use)


class TestWriting:
    @pytest.mark.parametrize("resumes", [True, False])
    def test_it_waits_while_the_other_side_takes_nothing_and_not_for_ever(self, resumes: bool) -> None:
        async def use(stream: Stream, _: MemoryTransport) -> None:
            stream.pause_writing()
            if resumes:
                asyncio.get_running_loop().call_later(1.0, stream.resume_writing)
                await stream.write(b"x", timeout=5.0)
                assert loop_s() == 1.0
            else:
                with pytest.raises(httpcore.WriteTimeout):
                    await stream.write(b"x", timeout=5.0)
                assert loop_s() == 5.0

        on_a_stream(use)


def test_a_timeout_of_the_operating_system_is_no_bound_of_ours() -> None:
    async def use(server: MemoryServer, endpoint: Endpoint) -> None:
        flight = await fly(HttpEngine(endpoint, "m"))
        assert (flight.end, flight.error) == (End.FAILED, "cannot connect: connection timed out")
        assert server.tried == 1

    handler = in_turn(whole_answer(4))
    against(handler, use, server=MemoryServer(handler, refuse=lambda _: errno.ETIMEDOUT))


def test_a_body_that_ends_with_its_connection_is_read_to_its_end() -> None:
    body = b"".join(map(event, [token("a"), token("b"), finish(), DONE]))

    async def use(_: MemoryServer, endpoint: Endpoint) -> None:
        flight = await fly(HttpEngine(endpoint, "m"))
        assert (flight.end, flight.output_tokens) == (End.FINISHED, 2)

    against(in_turn([(0.0, head("text/event-stream", "Connection: close") + body), (0.0, None)]), use)


def test_an_answer_that_the_client_gives_up_closes_its_connection_and_no_other() -> None:
    async def use(server: MemoryServer, endpoint: Endpoint) -> None:
        engine = HttpEngine(endpoint, "m")
        given_up = asyncio.create_task(fly(engine))
        await asyncio.sleep(1.0)
        given_up.cancel()
        other = asyncio.create_task(fly(engine))
        await asyncio.wait([given_up, other])
        assert given_up.cancelled()
        assert other.result().end is End.FINISHED
        assert (server.closed_by_client, server.connections) == (1, 2)

    answer = timed((0.5, token("a", usage=1)), (3.0, finish("stop", usage=1)), (3.0, DONE))
    against(in_turn(answer), use)
