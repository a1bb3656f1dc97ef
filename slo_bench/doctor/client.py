"""The client's own ceiling on this host: how many requests and tokens a second it carries without being late."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal

from gates.capacity import Capacity, Observation, bracket, tally
from gates.validity import MEASURED, invalid_reasons
from slo_bench.doctor.document import HeldRow
from slo_bench.doctor.null_engine import Truth, null_engine, null_load, readings
from slo_bench.search import Measure, SearchSettings, next_step, round_rate
from traffic.arrivals import POISSON
from traffic.clock import running_clock, sleep_until
from traffic.garbage import resting_collector
from traffic.probe import ProbeFacts, run_probe
from traffic.summary import nearest_rank, summarise
from traffic.workers import LoadWorkers

SEND_LAG_S = 0.002
"""A rate is held while p99 of the send lag is within a fifth of what a valid probe may have, so that probes at the
ceiling do not fall out by chance. A restless host could not hold any rate to that: see `lag_limit_s`."""

SERVER_LATE_S = 0.010
"""A window in which the null server itself was this late (p99) says nothing of the client."""

TTFT_S, ITL_S = 0.050, 0.005
SHORT_TOKENS, LONG_TOKENS = 16, 128
PROMPT_WORDS = 1000
"""About chat-mix's mean prompt: it must be encoded and sent too."""

START_RPS = 50.0
GROWTH = 2.0
HIGHEST_FACTOR = 64.0
RESOLUTION_SHARE = 0.15
IDLE_RPS, IDLE_S = 100.0, 3.0
PAUSE_S = 1.0
WINDOWS = 18
"""About so many windows are looked at in all; their length follows from the time that is given."""

SHORTEST_WINDOW_S, USUAL_WINDOW_S, LONGEST_WINDOW_S = 0.5, 3.0, 8.0
LEAST_REQUESTS = 100
"""A window is longer where its rate brings fewer: their p99 would be the worst of them."""

_P99 = Decimal(99)


@dataclass(frozen=True, slots=True)
class Look:
    """One window at one rate. is_disturbed: the server was late itself, so it counts for nothing."""

    rate_rps: float
    output_tokens: int
    holds: bool
    is_disturbed: bool
    send_lag_p99_s: float
    ttft_error_p99_s: float | None


async def idle_lateness_s(seconds: float) -> float:
    """How late, in p99, a client that does nothing else wakes for due times like those of a load."""
    clock = running_clock()
    origin_s = clock.now_s()
    late_s = []
    for due_s in POISSON.due_s(IDLE_RPS, 0, 0, seconds).tolist():
        await sleep_until(origin_s + due_s)
        late_s.append(clock.now_s() - origin_s - due_s)
    return nearest_rank(sorted(late_s), _P99) or 0.0


def longest_pause_s(seconds: float, clock: Callable[[], float] = time.monotonic) -> float:
    """The longest that a computing process was stopped. Some hosts stop a virtual machine and call it no steal time."""
    last_s = clock()
    end_s, pause_s = last_s + seconds, 0.0
    while last_s < end_s:
        now_s = clock()
        pause_s, last_s = max(pause_s, now_s - last_s), now_s
    return pause_s


def lag_limit_s(idle_late_s: float) -> float:
    """The send lag, in p99, up to which a rate is held: on a restless host twice what an idle client has there.

    Never more than a valid probe may have.
    """
    return min(max(SEND_LAG_S, 2 * idle_late_s), MEASURED.send_lag_p99_s)


LookAt = Callable[[float, int], Awaitable[Look]]
"""Measures a window: request rate, tokens per answer."""


async def find_ceilings(look_at: LookAt, *, seconds: float) -> tuple[HeldRow | None, HeldRow | None]:
    """The highest rates held with short and with long answers; half of the time for each."""
    short = await find_ceiling(look_at, SHORT_TOKENS, start_rps=START_RPS, seconds=seconds / 2)
    start_rps = round_rate((START_RPS if short is None else short.rate_rps) / 4)
    return short, await find_ceiling(look_at, LONG_TOKENS, start_rps=start_rps, seconds=seconds / 2)


async def find_ceiling(look_at: LookAt, output_tokens: int, *, start_rps: float, seconds: float) -> HeldRow | None:
    """Growth and bisection as for a server, without repeats, but a rate fails only when it does so twice.

    None when no rate was held. No window begins after `seconds`.
    """
    settings = SearchSettings(
        start_rps, GROWTH, RESOLUTION_SHARE, pass_repeats=0, fail_repeats=0, highest_rps=HIGHEST_FACTOR * start_rps
    )
    clock = running_clock()
    end_s = clock.now_s() + seconds
    seen: list[Observation] = []
    held: dict[float, Look] = {}
    has_failed_once: set[float] = set()
    while isinstance(step := next_step(settings, seen), Measure) and clock.now_s() < end_s:
        look = await look_at(step.rate_rps, output_tokens)
        if look.holds:
            held[look.rate_rps] = look
            seen.append(Observation(look.rate_rps, 0, passed=True))
        elif look.is_disturbed:
            continue
        elif look.rate_rps in has_failed_once:
            seen.append(Observation(look.rate_rps, 0, passed=False))
        else:
            has_failed_once.add(look.rate_rps)
    return _row(seen, held, is_whole=isinstance(step, Capacity))


def _row(seen: Sequence[Observation], held: dict[float, Look], *, is_whole: bool) -> HeldRow | None:
    low, high = bracket(tally(seen))
    if low is None:
        return None
    look = held[low.rate_rps]
    return HeldRow(
        rate_rps=look.rate_rps,
        output_tokens=look.output_tokens,
        failed_rps=None if high is None else high.rate_rps,
        is_least=high is None or not is_whole,
        send_lag_p99_s=look.send_lag_p99_s,
        ttft_error_p99_s=look.ttft_error_p99_s,
    )


@asynccontextmanager
async def null_client(*, load_workers: int, seconds: float, limit_s: float) -> AsyncIterator[LookAt]:
    """A null engine on a core of its own where there are two, and this client, ready to look at it.

    seconds: that all looks may take. limit_s: of the send lag's p99.
    """
    async with AsyncExitStack() as stack:
        null = await stack.enter_async_context(null_engine(ttft_s=TTFT_S, itl_s=ITL_S))
        stack.enter_context(apart_from(null.pid))
        workers: LoadWorkers | None = None
        if load_workers > 1:
            workers = await stack.enter_async_context(LoadWorkers(null.engine.recipe(), load_workers))
        number = 0

        async def look_at(rate_rps: float, output_tokens: int) -> Look:
            nonlocal number
            number += 1
            answer_s = TTFT_S + output_tokens * ITL_S
            window_s = window_length_s(rate_rps, seconds)
            schedule = null_load(
                rate_rps,
                output_tokens,
                duration_s=window_s,
                answer_s=answer_s,
                prompt_words=PROMPT_WORDS,
                repeat=number,
            )
            with resting_collector():
                facts = await run_probe(null.engine, schedule, workers=workers)
            return look_of(facts, await null.truth(), limit_s)

        yield look_at


def window_length_s(rate_rps: float, seconds: float) -> float:
    """Of a window, when all together may take so many seconds."""
    usual_s = min(USUAL_WINDOW_S, max(SHORTEST_WINDOW_S, seconds / WINDOWS))
    needed_s = min(LONGEST_WINDOW_S, seconds / 4, LEAST_REQUESTS / rate_rps)
    return max(usual_s, needed_s)


def look_of(facts: ProbeFacts, truth: Truth, limit_s: float) -> Look:
    """Whether the client held the rate: as a valid probe must, with its send lag's p99 within limit_s."""
    summary = summarise(facts)
    bounds = replace(MEASURED, send_lag_p99_s=limit_s)
    errors_s = sorted(each.ttft_s - each.true_ttft_s for each in readings(facts.records, truth))
    return Look(
        rate_rps=facts.window.rate_rps or 0.0,
        output_tokens=facts.window.longest_output_tokens,
        holds=summary.n > summary.failed == 0 and not invalid_reasons(facts, summary, (), bounds),
        is_disturbed=(truth.late_p99_s or 0.0) > SERVER_LATE_S,
        send_lag_p99_s=summary.send_lag_p99_s or 0.0,
        ttft_error_p99_s=nearest_rank(errors_s, _P99),
    )


@contextmanager
def apart_from(pid: int) -> Iterator[None]:
    """That process on the last core that we may use, and we on the others, as long as there are two."""
    ours = os.sched_getaffinity(0)
    if len(ours) > 1:
        last = max(ours)
        os.sched_setaffinity(pid, {last})
        os.sched_setaffinity(0, ours - {last})
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)
