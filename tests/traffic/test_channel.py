"""Messages between a bench and its workers arrive whole and in order, and an end is told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from engines import record

from traffic.channel import Begin, Channel, Report
from traffic.real_time import RealLoop


def joined(act: Callable[[Channel, Channel], Awaitable[None]], loop: type[asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        one, two = socket.socketpair()
        near, far = await Channel.over(one), await Channel.over(two)
        try:
            async with asyncio.timeout(5.0):
                await act(near, far)
        finally:
            near.close()
            far.close()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


loops = pytest.mark.parametrize("loop", [RealLoop, asyncio.SelectorEventLoop])


@loops
def test_messages_arrive_whole_and_in_order_however_large_they_are(loop: type[asyncio.AbstractEventLoop]) -> None:
    messages = [Begin(1.5), "x" * 3_000_000, Report((record(3), record(4)), 7, 5, is_over=False), Begin(2.5)]

    async def act(near: Channel, far: Channel) -> None:
        async def send() -> None:
            for message in messages:
                await near.send(message)

        sending = asyncio.create_task(send())
        assert [await far.receive() for _ in messages] == messages
        await sending

    joined(act, loop)


@loops
def test_the_end_of_the_other_side_is_none(loop: type[asyncio.AbstractEventLoop]) -> None:
    async def act(near: Channel, far: Channel) -> None:
        await near.send("last")
        near.close()
        assert [await far.receive(), await far.receive()] == ["last", None]

    joined(act, loop)


@loops
def test_who_hung_up_sends_nothing_more(loop: type[asyncio.AbstractEventLoop]) -> None:
    async def act(near: Channel, far: Channel) -> None:
        near.close()
        assert await far.receive() is None
        with pytest.raises(ConnectionError):
            await near.send("more")

    joined(act, loop)


def test_an_end_in_the_middle_of_a_message_is_none_too() -> None:
    async def main() -> object:
        one, two = socket.socketpair()
        with one:
            one.sendall((1000).to_bytes(4) + b"half a message")
        far = await Channel.over(two)
        try:
            return await far.receive()
        finally:
            far.close()

    assert asyncio.run(main()) is None
