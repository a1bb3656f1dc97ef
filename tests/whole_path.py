"""The whole path, client to verdict: a probe over HTTP against a scripted server in memory, under virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from engines import schedule
from fake_server import Handler, Script, in_turn
from memory_server import MemoryServer

from gates.slo import Metric, Objective
from gates.verdict import ProbeVerdict, judge_probe
from traffic.endpoint import Endpoint
from traffic.engine import Engine
from traffic.http_client import Bounds
from traffic.http_engine import HttpEngine
from traffic.probe import ProbeFacts, run_probe
from traffic.records import RequestRecord
from traffic.schedule import Schedule
from traffic.virtual_time import run_virtual

SLO = (
    Objective(Metric.TTFT, Decimal(50), 2.0),
    Objective(Metric.TPOT, Decimal(50), 0.050),
    Objective(Metric.ITL, Decimal(50), 10.0),
)
"""The default limits, and one for pauses, at the median: two requests are a sample."""


def probe(
    server: MemoryServer,
    plan: Schedule,
    *,
    bounds: Bounds | None = None,
    around: Callable[[Engine], Engine] = lambda engine: engine,
    **more: Any,
) -> ProbeFacts:
    """A probe of that server. around: puts something between the probe and the engine; more: goes to `run_probe`."""

    async def run() -> ProbeFacts:
        async with server, Endpoint(server.url, bounds=bounds, client=server.client) as endpoint:
            return await run_probe(around(HttpEngine(endpoint, "m")), plan, **more)

    return run_virtual(run())


def judged(
    script: Script | Handler,
    *,
    tokens: int = 2,
    force_length: bool = True,
    slo: Sequence[Objective] = SLO,
    bounds: Bounds | None = None,
) -> ProbeVerdict:
    """The verdict on two requests for so many tokens, due at 0.1 and 0.6 s, that both get this script."""
    plan = schedule([0.1, 0.6], end_s=1.0, drain_s=200.0, tokens=tokens)
    asked = tuple(replace(request, force_length=force_length) for request in plan.requests)
    server = MemoryServer(script if callable(script) else in_turn(script))
    return judge_probe(probe(server, replace(plan, requests=asked), bounds=bounds), slo)


def only(verdict: ProbeVerdict) -> RequestRecord:
    """The one record, where all requests fared alike."""
    first, *others = verdict.facts.records
    assert others
    for other in others:
        assert said(other) == said(first)
        assert [other.ttft_s, other.tpot_s, other.e2e_s] == pytest.approx([first.ttft_s, first.tpot_s, first.e2e_s])
    return first


def said(record: RequestRecord) -> tuple[object, ...]:
    """What a record says, times aside."""
    counts = (record.output_tokens, record.output_tokens_estimated, record.prompt_tokens, record.cached_tokens)
    return (record.end, record.error, *counts, record.malformed_frames)
