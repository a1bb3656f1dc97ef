"""`slo_bench.doctor.null_server` in a process of its own, its load, and the truth beside what was read."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from slo_bench.doctor import null_server
from slo_bench.doctor.null_server import MODEL_ID
from traffic.endpoint import Endpoint
from traffic.errors import EngineError
from traffic.http_engine import HttpEngine
from traffic.records import Message, RequestRecord
from traffic.schedule import Draw, Schedule, open_loop
from traffic.workload import fixed_lengths

START_LIMIT_S = 20.0
_END_LIMIT_S = 5.0
_SLACK_S = 10.0
"""What is still under way that long after its answer should have ended is not waited for."""


@dataclass(frozen=True, slots=True)
class TrueAnswer:
    """What the server did for one request; seconds of CLOCK_MONOTONIC, which the client's loop has too.

    arrived_s: its first byte came. first_token_s, last_token_s: these were handed to the kernel.
    """

    arrived_s: float
    first_token_s: float
    last_token_s: float
    tokens: int

    @property
    def ttft_s(self) -> float:
        """From the first byte to the first token."""
        return self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None for one token."""
        return None if self.tokens < 2 else (self.last_token_s - self.first_token_s) / (self.tokens - 1)  # noqa: PLR2004 - one gap


@dataclass(frozen=True, slots=True)
class Truth:
    """A load as the server saw it, by requests' indices. late_p99_s: of its own sends, None where it sent nothing."""

    answers: Mapping[int, TrueAnswer]
    late_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One request as the client read it beside what was true, in seconds; the truth has no tpot_s for one token."""

    ttft_s: float
    true_ttft_s: float
    tpot_s: float | None
    true_tpot_s: float | None


def readings(records: Sequence[RequestRecord], truth: Truth) -> list[Reading]:
    """The cohort's requests that both sides saw to their end."""
    found = []
    for record in records:
        true = truth.answers.get(record.index)
        if true is not None and record.in_cohort and not record.has_failed and record.ttft_s is not None:
            found.append(Reading(record.ttft_s, true.ttft_s, record.tpot_s, true.tpot_s))
    return found


class NullEngine:
    """A running null server. url: its root. pid: its process."""

    def __init__(self, endpoint: Endpoint, pid: int) -> None:
        self._endpoint = endpoint
        self.url = endpoint.url
        self.pid = pid
        self.engine = HttpEngine(endpoint, MODEL_ID)

    async def truth(self) -> Truth:
        """What it did since the last call; ask between loads."""
        response = await self._endpoint.send("GET", "/truth")
        try:
            page = json.loads(await response.aread())
        finally:
            await response.aclose()
        return read_truth(page)


def read_truth(page: Mapping[str, Any]) -> Truth:
    """The server's page as facts; answers whose name is no index are not of a load."""
    answers = {
        int(name): TrueAnswer(arrived_s, first_s, last_s, tokens)
        for name, arrived_s, first_s, last_s, tokens in page["answers"]
        if name.isdigit()
    }
    return Truth(answers, page["late_p99_s"])


@asynccontextmanager
async def null_engine(*, ttft_s: float, itl_s: float, in_step: bool = False) -> AsyncIterator[NullEngine]:
    """Start a null server, and end it on every way out, our own death included: it ends with its standard input.

    Raises EngineError when it does not start.
    """
    times = ["--ttft-ms", f"{ttft_s * 1000:g}", "--itl-ms", f"{itl_s * 1000:g}", *(["--in-step"] if in_step else [])]
    process = await asyncio.create_subprocess_exec(
        # By its file, isolated: it needs nothing of ours, and starts whatever folder we stand in.
        *(sys.executable, "-I", "-S", null_server.__file__, "--end-with-stdin", *times),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with Endpoint(await _url(process)) as endpoint:
            yield NullEngine(endpoint, process.pid)
    finally:
        await _end(process)


async def _url(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    line = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_LIMIT_S):
            line = await process.stdout.readline()
    if not line:
        raise EngineError(f"the null server did not start within {START_LIMIT_S:g} s; is this machine overloaded?")
    return line.decode().strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.close()
    try:
        async with asyncio.timeout(_END_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def null_load(
    rate_rps: float, output_tokens: int, *, duration_s: float, answer_s: float, prompt_words: int, repeat: int = 0
) -> Schedule:
    """A Poisson load of equal requests; a prompt's first word is the request's index, by which the server names it.

    answer_s: how long one answer takes; the ramp is as long, and a little longer.
    """
    schedule = open_loop(
        Draw(fixed_lengths(prompt_words, output_tokens), seed=0, repeat=repeat),
        rate_rps=rate_rps,
        ramp_s=1.1 * answer_s,
        duration_s=duration_s,
        drain_limit_s=lambda _: answer_s + _SLACK_S,
        text=None,
    )
    rest = " word" * (prompt_words - 1)
    named = [replace(each, messages=(Message("user", f"{each.index}{rest}"),)) for each in schedule.requests]
    return replace(schedule, requests=tuple(named))
