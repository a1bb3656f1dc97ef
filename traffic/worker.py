"""A load worker: a process that sends its part of a schedule and reports what came of it.

It is started by `traffic.workers`, does what it is told through its channel, and ends when the other side is gone, so
no worker outlives its bench.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from traffic.channel import Begin, Channel, Failed, Halt, Last, Prepare, Ready, Report
from traffic.clock import next_tick, running_clock
from traffic.endpoint import Endpoint
from traffic.engine import Engine
from traffic.errors import SloBenchError
from traffic.garbage import resting_collector
from traffic.http_engine import HttpEngine
from traffic.real_time import RealLoop
from traffic.recipe import EngineRecipe
from traffic.records import RequestRecord
from traffic.sender import LocalSender

REPORT_S = 0.1
"""Between two reports, which are ticks too. The bench looks up every quarter second and the referee every second."""

MakeEngine = Callable[[EngineRecipe], AbstractAsyncContextManager[Engine]]


def main(descriptor: str) -> None:
    """Serve the bench at the other end of this socket until it hangs up."""
    with asyncio.Runner(loop_factory=RealLoop) as runner:
        runner.run(_serve(socket.socket(fileno=int(descriptor))))


async def _serve(end: socket.socket) -> None:
    await attend(await Channel.over(end))


@asynccontextmanager
async def engine_from(recipe: EngineRecipe) -> AsyncIterator[Engine]:
    """The engine that a recipe describes, with connections of its own."""
    way = recipe.endpoint
    endpoint = Endpoint(
        way.url,
        api_key=way.api_key,
        headers=way.headers,
        ca_file=way.ca_file,
        bounds=way.bounds,
        client=way.client,
    )
    async with endpoint:
        yield HttpEngine(
            endpoint,
            recipe.model,
            extra_body=recipe.extra_body,
            forces_length=recipe.forces_length,
            continuous_usage=recipe.continuous_usage,
        )


async def attend(channel: Channel, make: MakeEngine = engine_from) -> None:
    """Be the engine of the recipe that the bench sends first, until it hangs up. What goes wrong is told to it."""
    try:
        recipe = await channel.receive()
        if isinstance(recipe, EngineRecipe):
            async with make(recipe) as engine:
                await channel.send(Ready())
                await _loads(engine, channel)
    except ConnectionError:
        pass  # the bench is gone: nobody is left to tell
    except Exception as error:  # noqa: BLE001 - a fault of the program must be seen over there
        await channel.send(Failed(_portable(error)))
    finally:
        channel.close()


async def _loads(engine: Engine, channel: Channel) -> None:
    """Load after load."""
    while isinstance(order := await channel.receive(), Prepare):
        with resting_collector():
            await channel.send(Ready())
            begin = await channel.receive()
            if not isinstance(begin, Begin):
                return
            await _load(engine, order, begin, channel)


async def _load(engine: Engine, prepared: Prepare, begin: Begin, channel: Channel) -> None:
    """One load, from its start to its last message."""
    ended: list[RequestRecord] = []
    sender = LocalSender(engine, prepared.part, ended.append, origin_s=begin.origin_s)
    halt = asyncio.create_task(channel.receive(), name="halt")
    clock, tick, woke_s = running_clock(), 0, 0.0
    try:
        while True:
            tick = next_tick(tick, woke_s, REPORT_S)
            moment_s = begin.origin_s + tick * REPORT_S
            await asyncio.wait((halt,), timeout=max(0.0, moment_s - clock.now_s()))
            woke_s = clock.now_s() - begin.origin_s
            if halt.done():
                break
            sender.look(moment_s)
            report = Report(tuple(ended), sender.sent, sender.in_flight, sender.is_over())
            ended.clear()
            await channel.send(report)
        order = halt.result()
        if isinstance(order, Halt):
            await channel.send(Last(await sender.stop(order.load_s, order.cohort_end)))
    finally:
        halt.cancel()
        await sender.abandon()


def _portable(error: Exception) -> Exception:
    """The error, as one that can be pickled and says where it was raised."""
    if isinstance(error, SloBenchError):
        return error
    return RuntimeError("".join(traceback.format_exception(error)))
