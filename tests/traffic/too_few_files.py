"""A probe whose 200 answers are all under way at once, server and client in this one process; prints the verdict."""

from __future__ import annotations

import asyncio
import json

from engines import schedule
from fake_server import FakeServer, in_turn, timed, token
from whole_path import SLO

from gates.verdict import judge_probe
from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.probe import ProbeFacts, run_probe


async def main() -> ProbeFacts:
    held = timed((0.1, token("x")), ends=False)
    plan = schedule([index * 0.005 for index in range(200)], end_s=1.0, drain_s=1.0)
    async with FakeServer(in_turn([*held, (60.0, b"")])) as server, Endpoint(server.url) as endpoint:
        return await run_probe(HttpEngine(endpoint, "m"), plan)


verdict = judge_probe(asyncio.run(main()), SLO)
print(json.dumps({"outcome": verdict.outcome, "reasons": " / ".join(verdict.invalid_reasons)}))
