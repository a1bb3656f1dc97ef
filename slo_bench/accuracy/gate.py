"""Asks a running engine the items of the accuracy gate, some at a time, and grades what it answers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from gates.accuracy import AccuracyRun, ItemResult
from gates.answers import read_answer
from gates.gsm8k import Item, messages, prompt_sha256
from slo_bench.accuracy.items import ItemSet
from traffic.engine import Engine
from traffic.errors import EngineError
from traffic.in_flight import CANCEL_LIMIT_S
from traffic.records import End, Flight, Request
from traffic.sse import one_line

ATTEMPTS = 3
"""A request that fails is sent again; what fails three times is an error of the item."""

PAUSE_S = 2.0
"""Before the second attempt, and twice as long before the third."""

TAIL_CHARS = 300


async def run_gsm8k(
    engine: Engine,
    item_set: ItemSet,
    *,
    label: str,
    concurrency: int,
    token_budget: int,
    deadline_s: float,
    observe: Callable[[int], None] = lambda _: None,
) -> AccuracyRun:
    """Ask every item once, `concurrency` at a time, greedily and with no forced length; nothing is dropped.

    Where the items are fewer, or nearly done, some are asked again as company, so that to the last one all are answered
    beside so many requests; what the company says counts for nothing. token_budget: the longest answer. deadline_s: for
    all items together; those that are open then are errors. observe: called with the number of items that are done.
    Raises EngineError when cancelled requests do not end.
    """
    asking = _Asking(engine, item_set.items, token_budget, observe)
    await asking.run(concurrency, deadline_s)
    return AccuracyRun(
        label=label,
        items_source=item_set.source,
        items_sha256=item_set.sha256,
        prompt_sha256=prompt_sha256(),
        token_budget=token_budget,
        concurrency=concurrency,
        results=asking.results(f"no answer within the gate's {deadline_s:g} s"),
    )


class _Asking:
    """Items on their way."""

    def __init__(
        self, engine: Engine, items: Sequence[Item], token_budget: int, observe: Callable[[int], None]
    ) -> None:
        self._engine = engine
        self._items = items
        self._token_budget = token_budget
        self._observe = observe
        self._attempts: Counter[int] = Counter()
        self._done: dict[int, ItemResult] = {}

    async def run(self, concurrency: int, deadline_s: float) -> None:
        waiting = iter(self._items)
        company = itertools.cycle(self._items)
        is_over = asyncio.Event()

        async def work() -> None:
            for item in waiting:
                self._done[item.index] = await self._ask(item)
                self._observe(len(self._done))
            if len(self._done) == len(self._items):
                is_over.set()
            while not is_over.is_set():
                await self._accompany(next(company))

        workers = [asyncio.create_task(work(), name=f"gsm8k-{number}") for number in range(concurrency)]
        over = asyncio.create_task(is_over.wait(), name="gsm8k-over")
        try:
            # The first to end is `over`, or a worker with a fault of the program: until then all of them work.
            done, _ = await asyncio.wait((over, *workers), timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel((over, *workers))
        for task in done:
            task.result()

    async def _accompany(self, item: Item) -> None:
        """Keep one more request in flight; a server that refuses it is not hammered."""
        flight = Flight(answer=[])
        await self._engine.generate(self._request(item), flight)
        if flight.end is not End.FINISHED:
            await asyncio.sleep(PAUSE_S)

    def _request(self, item: Item) -> Request:
        prompt = messages(item.question)
        return Request(
            index=item.index,
            due_s=0.0,
            kind="gsm8k",
            input_tokens=sum(len(message.text.split()) for message in prompt),
            output_tokens=self._token_budget,
            force_length=False,
            messages=prompt,
        )

    async def _ask(self, item: Item) -> ItemResult:
        """Send one item until it is answered; an engine writes its failures into the flight."""
        request = self._request(item)
        while True:
            self._attempts[item.index] += 1
            attempts = self._attempts[item.index]
            flight = Flight(answer=[])
            await self._engine.generate(request, flight)
            if flight.end is End.FINISHED:
                return graded(item, flight, self._token_budget, attempts)
            if attempts == ATTEMPTS:
                return ItemResult(item.index, None, attempts=attempts, error=_writable(flight.error or f"{flight.end}"))
            await asyncio.sleep(PAUSE_S * attempts)

    def results(self, unanswered: str) -> tuple[ItemResult, ...]:
        """One result per item, in their order; `unanswered` is the error of the open ones."""
        return tuple(
            self._done.get(item.index)
            or ItemResult(item.index, None, attempts=self._attempts[item.index], error=unanswered)
            for item in self._items
        )


def graded(item: Item, flight: Flight, token_budget: int, attempts: int) -> ItemResult:
    """The result of an answered item. Where the server does not say why it ended, one that took the budget was cut."""
    completion = "".join(flight.answer or ())
    reason = flight.finish_reason
    is_cut = flight.output_tokens >= token_budget if reason is None else reason == "length"
    answer = read_answer(completion, is_cut=is_cut)
    return ItemResult(
        index=item.index,
        grade=answer.grade(item.gold),
        number=answer.number,
        found_by=answer.found_by,
        is_cut_off=answer.is_cut_off,
        finish_reason=None if reason is None else _writable(one_line(reason)),
        output_tokens=flight.output_tokens,
        attempts=attempts,
        tail=_writable(completion[-TAIL_CHARS:]),
    )


def _writable(text: str) -> str:
    """The text without half characters: a server may send them, and a UTF-8 file cannot hold them."""
    return text.encode("utf-8", errors="replace").decode()


async def _cancel(workers: Sequence[asyncio.Task[Any]]) -> None:
    """End what is still open, within a bound."""
    for worker in workers:
        worker.cancel()
    _, stuck = await asyncio.wait(workers, timeout=CANCEL_LIMIT_S)
    if stuck:
        raise EngineError(f"{len(stuck)} cancelled requests did not end within {CANCEL_LIMIT_S:.0f} s")
