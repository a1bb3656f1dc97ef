"""The kinds of R01 to R09 once more over a real socket, at fifty times the speed and all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fake_server import FakeServer, Received, Script, scaled
from field_reports import KINDS
from flights import PATIENT
from memory_server import MemoryServer

from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.records import Flight, Message, Request
from traffic.virtual_time import run_virtual

FACTOR = 0.02
EARLY_S = 0.001
"""An event loop may ring that much early."""


async def fly(server: FakeServer | MemoryServer, **client: object) -> dict[str, Flight]:
    """Every kind at once; the user's message names it."""
    flights = {name: Flight() for name in KINDS}
    async with server, Endpoint(server.url, bounds=PATIENT, **client) as endpoint:  # type: ignore[arg-type]
        engine = HttpEngine(endpoint, "m")
        requests = [Request(0, 0.0, "", 10, 256, messages=(Message("user", name),)) for name in KINDS]
        async with asyncio.timeout(10.0):
            await asyncio.gather(*map(engine.generate, requests, flights.values()))
    return flights


def by_name(scripts: Mapping[str, Script], request: Received) -> Script:
    return scripts[request.json["messages"][0]["content"]]


def test_every_kind_reads_the_same_over_a_real_socket() -> None:
    quick = {name: scaled(script, FACTOR) for name, script in KINDS.items()}
    real = asyncio.run(fly(FakeServer(lambda request: by_name(quick, request))))
    server = MemoryServer(lambda request: by_name(quick, request))
    virtual = run_virtual(fly(server, client=server.client))
    for name, flight in real.items():
        exact = virtual[name]
        counts = (flight.output_tokens, flight.output_tokens_estimated, flight.prompt_tokens, flight.malformed_frames)
        assert counts == (
            exact.output_tokens,
            exact.output_tokens_estimated,
            exact.prompt_tokens,
            exact.malformed_frames,
        ), name
        assert (flight.end, flight.error) == (exact.end, exact.error), name
        assert (flight.first_token_s is None) == (exact.first_token_s is None), name
        if flight.first_token_s is not None:
            assert flight.sent_s is not None
            assert exact.first_token_s is not None
            assert flight.first_token_s - flight.sent_s >= exact.first_token_s - EARLY_S, name
