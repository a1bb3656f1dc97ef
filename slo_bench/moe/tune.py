"""The conductor of a search: some processes compile, one on each GPU times what is ready, a journal keeps it all.

Nothing is lost by a stop at any moment but what was being measured. A budget ends the search, not the end of it: the
finalists of every batch size are timed and chosen whatever the time, and how long that took beyond the budget is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from slo_bench.moe.bench import Batch, BenchFacts, Compiled, KernelCompiler, Layer
from slo_bench.moe.ladder import Step
from slo_bench.moe.tune_choice import FINALISTS, SizeChoice, choose
from slo_bench.moe.tune_lane import Lane, OpenBench, final_cost_s
from slo_bench.moe.tune_order import CompileQueue, deal
from slo_bench.moe.tune_search import Search
from slo_bench.moe.tuning_journal import CompiledLine, Journal, Line, TimedLine, numbers
from traffic.clock import running_clock
from traffic.errors import EngineError

CHUNK = 48
"""Configurations in one request to a bench on a first look: so long is a stop or a new result waited for."""

COMPANY = 8
"""While more is being compiled, this many wait for each other: times from one request are the best to compare."""

TELL_S = 10.0
"""A line of progress comes this often."""

_SILENCE_S = 1200.0
"""No compilation takes so long."""

_INSTANT_S = 1e-3
"""Nobody waits for so little: what is left of a budget shrinks by rounding too."""

_DEATHS_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Machines:
    """Who does the work: a bench for each GPU, and so many compilers. Opening may raise EngineError."""

    open_benches: Sequence[OpenBench]
    open_compiler: Callable[[], Awaitable[KernelCompiler]]
    compilers: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came out. spent_s: over all starts of this search. beyond_s: how much of it was beyond the budget.

    is_complete: whether every configuration was compiled and looked at, or the budget ended the search before.
    left_out: how many were not, because others with their tile are far too slow everywhere.
    """

    choices: Mapping[int, SizeChoice]
    facts: BenchFacts
    spent_s: float
    beyond_s: float
    is_complete: bool
    left_out: int


class Tuner:
    """One search. batches: of each size, one under each routing. budget_s: None for as long as it takes.

    tell: gets a line of progress now and then. journal: None keeps nothing.
    """

    def __init__(
        self,
        search: Search,
        machines: Machines,
        layer: Layer,
        batches: Mapping[int, Sequence[Batch]],
        *,
        journal: Journal | None = None,
        budget_s: float | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.search, self.machines, self.layer, self.batches = search, machines, layer, batches
        self.journal, self.budget_s, self.tell = journal, budget_s, tell
        space = search.space
        self._queue = CompileQueue(space.first, (each for each in space.configs if each not in search.failures))
        self._choices: dict[int, SizeChoice] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._facts: BenchFacts | None = None
        self._before_s = search.spent_s
        self._deaths = 0

    async def run(self) -> Tuned:
        """Search to the end. Raises EngineError where a default cannot run, or processes keep dying."""
        self._begun_s = running_clock().now_s()
        hands = deal(self.search.space.sizes, len(self.machines.open_benches))
        lanes = [
            Lane(opened, self.layer, [batch for size in hand for batch in self.batches[size]])
            for opened, hand in zip(self.machines.open_benches, hands, strict=False)
        ]
        measuring = [asyncio.create_task(self._measure(*pair)) for pair in zip(lanes, hands, strict=True)]
        self._workers = [asyncio.create_task(self._compile()) for _ in range(self.machines.compilers)]
        telling = asyncio.create_task(self._tell())
        try:
            await _finished(measuring, {*measuring, *self._workers})
        finally:
            every = [*measuring, *self._workers, telling]
            for task in every:
                task.cancel()
            await asyncio.gather(*every, return_exceptions=True)
        assert self._facts is not None  # noqa: S101 - every lane sets it
        beyond_s = 0.0 if self.budget_s is None else max(0.0, self._spent_s() - self.budget_s)
        is_complete = not self._queue and all(not ladder.waiting for ladder in self.search.ladders.values())
        return Tuned(
            dict(sorted(self._choices.items())),
            self._facts,
            self._spent_s(),
            beyond_s,
            is_complete,
            len(self.search.left_out),
        )

    def _spent_s(self) -> float:
        return self._before_s + running_clock().now_s() - self._begun_s

    def _left_s(self, sizes: Sequence[int]) -> float | None:
        """What is left of the budget before the end of these sizes must begin; None without one."""
        if self.budget_s is None:
            return None
        return self.budget_s - self._spent_s() - self._end_cost_s(sizes)

    def _end_cost_s(self, sizes: Sequence[int]) -> float:
        routings = len(self.search.space.routings)
        known = ((ladder := self.search.ladders[size]).time_s(ladder.default) for size in sizes)
        return sum(final_cost_s(time_s, FINALISTS, routings) for time_s in known if time_s is not None)

    def _record(self, line: Line) -> None:
        line = line.model_copy(update={"spent_s": self._spent_s()})
        if self.journal is not None:
            self.journal.append(line)
        self.search.apply(line)
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _compile(self) -> None:
        """One compiler takes from the queue until it is empty."""
        compiler = await self.machines.open_compiler()
        try:
            while (config := self._queue.take(self.search.bests(), self.search.leaves_out)) is not None:
                try:
                    done = await compiler.compile(config.entry())
                    self._deaths = 0
                except EngineError as error:
                    self._deaths += 1
                    if self._deaths > _DEATHS_IN_A_ROW:
                        raise
                    await compiler.close()
                    compiler = await self.machines.open_compiler()
                    done = Compiled(config.entry(), 0.0, failure=f"it ended the compiler: {error}")
                self._record(CompiledLine(config=numbers(config), took_s=done.took_s, failure=done.failure))
        finally:
            await compiler.close()

    async def _measure(self, lane: Lane, sizes: Sequence[int]) -> None:
        """One GPU: looks while there is something to look at and time, then the end of each of its sizes."""
        try:
            self._facts = await lane.start()
            while (left_s := self._left_s(sizes)) is None or left_s > _INSTANT_S:
                is_compiled = all(worker.done() for worker in self._workers)
                wanted = self.search.next_step(sizes, 1 if is_compiled else COMPANY)
                if wanted is not None:
                    await self._look(lane, *wanted)
                elif is_compiled:
                    break
                else:
                    await self._wait(left_s)
            for worker in self._workers:
                worker.cancel()
            for size in sizes:
                self._check_default(size)
                self._choices[size] = await choose(lane, self.search, size, self._record)
        finally:
            await lane.close()

    async def _look(self, lane: Lane, size: int, step: Step) -> None:
        cut = Step(step.rung, step.routing, step.configs[:CHUNK])
        rows = await lane.look(size, cut, self.search.most_s(size, cut))
        self._record(TimedLine(tokens=size, routing=cut.routing, rung=cut.rung, rows=rows))
        self._check_default(size)

    def _check_default(self, size: int) -> None:
        ladder = self.search.ladders[size]
        if ladder.default in ladder.failed:
            raise EngineError(
                f"vLLM's default for {size} tokens cannot run ({self.search.failures[ladder.default]}): see that GPU "
                "and shape are those that you serve"
            )

    async def _wait(self, left_s: float | None) -> None:
        """Until something is compiled, the last compiler ends, or the budget does."""
        news = asyncio.create_task(self._news.wait())
        limit_s = _SILENCE_S if left_s is None else min(left_s, _SILENCE_S)
        running = [worker for worker in self._workers if not worker.done()]
        try:
            done, _ = await asyncio.wait({news, *running}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if not done and limit_s == _SILENCE_S:
            raise EngineError(
                f"no compiler has answered for {_SILENCE_S / 60:.0f} minutes: see whether the host is alive"
            )

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            self.tell(self._progress())

    def _progress(self) -> str:
        """Where it stands, and about how long it still takes."""
        search = self.search
        ready, known = len(search.compiled), search.able
        taken, wanted = search.first_looks
        gains = [
            1 - best_s / default_s
            for ladder in search.ladders.values()
            if (best_s := ladder.best_s) and (default_s := ladder.time_s(ladder.default))
        ]
        found = f"best so far up to {max(gains):.0%} below the default" if gains else "nothing timed yet"
        if self._choices or (ready == known and taken >= wanted):
            left = f"{len(self._choices)} of {len(search.space.sizes)} batch sizes chosen"
        else:
            left = f"about {self._remaining_s(ready / known, taken / wanted) / 60:.1f} min left"
        return f"{ready} of {known} compiled, {taken} of {wanted} first looks, {found}, {left}"

    def _remaining_s(self, *shares: float) -> float:
        """As long as the slower part goes on at its pace, and the end; no longer than the budget."""
        gone_s = self._spent_s() - self._before_s
        slowest = max(min(shares), 1e-3)
        pace_s = gone_s * (1 - slowest) / slowest + self._end_cost_s(self.search.space.sizes)
        return pace_s if self.budget_s is None else min(pace_s, max(0.0, self.budget_s - self._spent_s()))


async def _finished(wanted: Sequence[asyncio.Task[None]], every: set[asyncio.Task[None]]) -> None:
    """Until all that are wanted are done; what one of them raises is raised at once."""
    pending = every
    while not all(task.done() for task in wanted):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()
