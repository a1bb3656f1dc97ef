"""Engines that do as they are told, hosts for them, and the facts that a probe of them would leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from slo_bench.hosts import EngineFacts
from traffic.probe import ProbeFacts, Stop
from traffic.records import End, Flight, Message, Request, RequestRecord
from traffic.schedule import Schedule, Window

Act = Callable[[Request, Flight], Awaitable[None]]
"""What an engine does with one request."""


def loop_s() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()


def answer(ttft_s: float = 0.1, tpot_s: float = 0.01, tokens: int | None = None) -> Act:
    """Answer with that many tokens, else as many as asked for."""

    async def act(request: Request, flight: Flight) -> None:
        await asyncio.sleep(ttft_s)
        flight.token(loop_s())
        for _ in range((request.output_tokens if tokens is None else tokens) - 1):
            await asyncio.sleep(tpot_s)
            flight.token(loop_s())
        flight.finish(loop_s(), End.FINISHED)

    return act


def fail(after_s: float = 0.0, error: str = "HTTP 500: out of memory", end: End = End.FAILED) -> Act:
    """Fail after a while; at 0.0 without ever waiting, as a refused connection does."""

    async def act(_: Request, flight: Flight) -> None:
        if after_s > 0:
            await asyncio.sleep(after_s)
        flight.finish(loop_s(), end, error)

    return act


def silent(tokens: int = 0, every_s: float = 0.1) -> Act:
    """Give some tokens, then nothing more, with the connection left open."""

    async def act(_: Request, flight: Flight) -> None:
        for _token in range(tokens):
            await asyncio.sleep(every_s)
            flight.token(loop_s())
        await asyncio.Event().wait()

    return act


def broken(error: BaseException, after_s: float = 0.1) -> Act:
    """Raise: a fault of the program, not of the server."""

    async def act(_: Request, __: Flight) -> None:
        await asyncio.sleep(after_s)
        raise error

    return act


def broken_when_cancelled(error: BaseException) -> Act:
    """Hang, and raise where it should let go."""

    async def act(_: Request, __: Flight) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    return act


def stubborn(hold_s: float) -> Act:
    """Hang, and after a cancellation hang on for hold_s."""

    async def act(_: Request, __: Flight) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(hold_s)

    return act


def blocking(block_s: float, then: Act) -> Act:
    """Stand still with the whole event loop for block_s of virtual time, as a call that does not yield would."""

    async def act(request: Request, flight: Flight) -> None:
        loop: Any = asyncio.get_running_loop()
        loop._virtual_now_s += block_s
        await then(request, flight)

    return act


class Scripted:
    """Does `act` with every request but those whose index is named in `other`."""

    def __init__(self, act: Act, other: Mapping[int, Act] | None = None) -> None:
        self.act = act
        self.other = dict(other or {})
        self.received: list[Request] = []
        self.open = 0
        self.most_open = 0

    async def generate(self, request: Request, flight: Flight) -> None:
        flight.sent_s = loop_s()
        self.received.append(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self.other.get(request.index, self.act)(request, flight)
        finally:
            self.open -= 1


@dataclass
class ScriptedHost:
    """A running host around a scripted engine; `count` is its tokenizer."""

    engine: Scripted
    facts: EngineFacts = field(default_factory=lambda: EngineFacts("attached", "scripted", None, None))
    needs_text: bool = False
    count: Callable[[Sequence[Message]], int | None] = lambda _: None
    idle_after_s: float = 0.0
    recipe: None = None
    death: Exception | None = None
    waits: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def compilations(self) -> tuple[str, ...]:
        new, self.told = tuple(self.told), []
        return new

    async def count_tokens(self, messages: Sequence[Message]) -> int | None:
        return self.count(messages)

    def check(self) -> None:
        if self.death is not None:
            raise self.death

    async def wait_idle(self, limit_s: float) -> None:
        self.waits.append(limit_s)
        await asyncio.sleep(self.idle_after_s)


def words(messages: Sequence[Message]) -> int:
    """A tokenizer whose tokens are words."""
    return sum(len(message.text.split()) for message in messages)


def requests(
    due_s: Sequence[float], *, cohort_from_s: float = 0.0, cohort_to_s: float = 1e9, tokens: int = 3
) -> tuple[Request, ...]:
    """One request per due time, all alike."""
    return tuple(
        Request(index, due, "plain", 10, tokens, in_cohort=cohort_from_s <= due < cohort_to_s)
        for index, due in enumerate(due_s)
    )


def schedule(
    due_s: Sequence[float], *, start_s: float = 0.0, end_s: float = 10.0, drain_s: float = 5.0, tokens: int = 3
) -> Schedule:
    """A schedule with those due times; the drain limit is drain_s after the window's end."""
    made = requests(due_s, cohort_from_s=start_s, cohort_to_s=end_s, tokens=tokens)
    scheduled = sum(request.in_cohort for request in made)
    return Schedule(Window(1.0, 0, start_s, end_s, end_s + drain_s, scheduled, tokens), made)


def record(index: int = 0, **changes: Any) -> RequestRecord:
    """A good answer of 11 tokens: TTFT 0.2 s, TPOT 20 ms, due every 0.1 s."""
    due_s = changes.pop("due_s", index * 0.1)
    ttft_s: float | None = changes.pop("ttft_s", 0.2)
    tpot_s: float = changes.pop("tpot_s", 0.02)
    tokens: int = changes.pop("output_tokens", 11)
    first_s = None if ttft_s is None else due_s + ttft_s
    last_s = None if first_s is None else first_s + tpot_s * (tokens - 1)
    good = RequestRecord(
        index=index,
        kind="plain",
        in_cohort=True,
        due_s=due_s,
        sent_s=due_s,
        first_token_s=first_s,
        last_token_s=last_s,
        ended_s=last_s,
        end=End.FINISHED,
        error="",
        input_tokens=100,
        prompt_tokens=100,
        cached_tokens=0,
        requested_output_tokens=tokens,
        force_length=True,
        output_tokens=tokens,
        output_tokens_estimated=False,
        chunk_gap_max_s=tpot_s if tokens > 1 else None,
        malformed_frames=0,
    )
    return replace(good, **changes)


def failed(good: RequestRecord, end: End = End.FAILED) -> RequestRecord:
    """The same request, had it failed at once."""
    return replace(
        good,
        end=end,
        error="HTTP 500: out of memory" if end is End.FAILED else "",
        first_token_s=None,
        last_token_s=None,
        ended_s=good.due_s + 0.001,
        output_tokens=0,
        chunk_gap_max_s=None,
    )


def probe_facts(records: Sequence[RequestRecord], *, stop: Stop = Stop.COMPLETE, **changes: Any) -> ProbeFacts:
    """Facts of a probe at 10 req/s whose window ends after the last due time; `window` is a mapping of changes."""
    end_s = max((each.due_s for each in records), default=0.0) + 0.1
    scheduled = sum(each.in_cohort for each in records)
    longest = max((each.requested_output_tokens for each in records), default=0)
    window = Window(10.0, 0, 0.0, end_s, end_s + 60.0, scheduled, longest)
    facts = ProbeFacts(
        window=replace(window, **changes.pop("window", {})),
        records=tuple(records),
        stop=stop,
        started_utc=datetime(2026, 12, 1, 10, 0, tzinfo=UTC),
        load_s=end_s + 1.0,
        saved_s=0.0,
        stall_max_s=0.001,
        clock_step_s=0.0,
    )
    return replace(facts, **changes)
