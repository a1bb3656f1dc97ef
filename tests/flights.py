"""Single requests against a scripted server, in memory under virtual time or over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fake_server import FakeServer, Handler, Script, in_turn
from memory_server import MemoryServer

from traffic.endpoint import Endpoint
from traffic.http_client import Bounds
from traffic.http_engine import HttpEngine
from traffic.records import Flight, Message, Request
from traffic.virtual_time import run_virtual

PATIENT = Bounds(connect_s=5.0, stall_s=5.0, total_s=5.0, call_s=5.0)
"""Ends a test over a real socket that hangs."""

KEY = "sk-very-secret-key"


def ask(tokens: int = 4, *, force_length: bool = True) -> Request:
    text = (Message("system", "Be brief."), Message("user", "Hi, 世界"))
    return Request(0, 0.0, "chat", 10, tokens, force_length=force_length, messages=text)


async def fly(engine: HttpEngine, request: Request | None = None) -> Flight:
    flight = Flight()
    await engine.generate(request or ask(), flight)
    return flight


def against(
    handler: Handler,
    use: Callable[[MemoryServer, Endpoint], Awaitable[None]],
    bounds: Bounds | None = None,
    *,
    server: MemoryServer | None = None,
    **more: Any,
) -> MemoryServer:
    """Run `use` against a server with this handler, in memory; `server` for one with settings of its own."""

    async def run() -> MemoryServer:
        async with server or MemoryServer(handler) as its:
            async with Endpoint(f"{its.url}/v1", bounds=bounds, client=its.client, **more) as endpoint:
                await use(its, endpoint)
            return its

    return run_virtual(run())


def over_a_socket(
    handler: Handler, use: Callable[[FakeServer, Endpoint], Awaitable[None]], bounds: Bounds = PATIENT, **more: Any
) -> FakeServer:
    """As `against`, over a real socket of this machine."""

    async def run() -> FakeServer:
        async with FakeServer(handler) as server:
            async with Endpoint(f"{server.url}/v1", bounds=bounds, **more) as endpoint:
                await use(server, endpoint)
            return server

    return asyncio.run(run())


def one(script: Script, bounds: Bounds | None = None, *, request: Request | None = None) -> Flight:
    """The flight of one request that gets this script, in memory; it is sent at 0.0 s."""
    flights: list[Flight] = []

    async def use(_: MemoryServer, endpoint: Endpoint) -> None:
        flights.append(await fly(HttpEngine(endpoint, "m"), request))

    against(in_turn(script), use, bounds)
    return flights[0]


def one_over_a_socket(script: Script, bounds: Bounds = PATIENT, **more: Any) -> Flight:
    """As `one`, over a real socket."""
    flights: list[Flight] = []

    async def use(_: FakeServer, endpoint: Endpoint) -> None:
        flights.append(await fly(HttpEngine(endpoint, "m")))

    over_a_socket(in_turn(script), use, bounds, **more)
    return flights[0]
