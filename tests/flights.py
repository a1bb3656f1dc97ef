"""Single requests against a fake server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fake_server import FakeServer, Handler, Script, in_turn

from traffic.endpoint import Endpoint, HttpEngine
from traffic.http_client import Bounds
from traffic.records import Flight, Message, Request

PATIENT = Bounds(connect_s=5.0, stall_s=5.0, total_s=5.0, call_s=5.0)
KEY = "sk-very-secret-key"


def ask(tokens: int = 4, *, force_length: bool = True) -> Request:
    text = (Message("system", "Be brief."), Message("user", "Hi, 世界"))
    return Request(0, 0.0, "chat", 10, tokens, force_length=force_length, messages=text)


async def fly(engine: HttpEngine, request: Request | None = None) -> Flight:
    flight = Flight()
    await engine.generate(request or ask(), flight)
    return flight


def against(
    handler: Handler, use: Callable[[FakeServer, Endpoint], Awaitable[None]], bounds: Bounds = PATIENT, **more: Any
) -> FakeServer:
    """Run `use` against a server with this handler."""

    async def run() -> FakeServer:
        async with FakeServer(handler) as server:
            async with Endpoint(f"{server.url}/v1", bounds=bounds, **more) as endpoint:
                await use(server, endpoint)
            return server

    return asyncio.run(run())


def one(script: Script, *, bounds: Bounds = PATIENT, request: Request | None = None, **more: Any) -> Flight:
    """The flight of one request that gets this script."""
    flights: list[Flight] = []

    async def use(_: FakeServer, endpoint: Endpoint) -> None:
        flights.append(await fly(HttpEngine(endpoint, "m"), request))

    against(in_turn(script), use, bounds, **more)
    return flights[0]
