"""Looks at a server's metrics each second, beside the load and never in its way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from slo_bench.simulate.metrics import ServerMetrics
from traffic.clock import running_clock, sleep_until
from traffic.errors import SloBenchError
from traffic.server_facts import Gap, Look, ServerSample, relevant, sample

EVERY_S = 1.0
"""vLLM's own log counts in seconds too; a probe of 120 s has enough of them to tell episodes apart."""

LIMIT_S = 5.0
"""A server under overload answers late, and that is when its counts are wanted: longer than the step between looks."""

Fetch = Callable[[], Awaitable[str | None]]
"""One page of one server, as `traffic.endpoint.Endpoint.metrics` gives it."""


def pages(fetches: Sequence[Fetch]) -> Look:
    """One look at all replicas of a server at once; None, so a gap, when any has no page: a partial sum is none."""

    async def look() -> str | None:
        texts = await asyncio.gather(*(fetch() for fetch in fetches))
        known = [text for text in texts if text is not None]
        return "\n".join(known) if len(known) == len(texts) else None

    return look


def simulated_look(metrics: ServerMetrics) -> Look:
    """A look at the simulated engine's counts as they stand, without HTTP or text, so under virtual time too.

    metrics: told of every step by the engine (`SimulatedEngine(model, metrics.step)`), else its histograms stay empty.
    """

    async def look() -> ServerSample:
        clock = running_clock()
        return metrics.sample(moment_s=clock.now_s(), utc_s=clock.utc_s())

    return look


class Scraper:
    """Takes a look every second as long as it is entered, and keeps what it saw.

    One task, at absolute times, one look at a time. A look that fails, takes longer than limit_s or could not begin in
    time is a gap, written down with its reason; nothing that goes wrong in here reaches the load. Pages are kept as
    text until somebody asks: reading one holds the event loop for several milliseconds, as much as a send may be late,
    so ask between windows.
    """

    def __init__(self, look: Look, *, every_s: float = EVERY_S, limit_s: float = LIMIT_S) -> None:
        self._look = look
        self._every_s = every_s
        self._limit_s = limit_s
        self._pages: list[tuple[float, float, str]] = []
        self._samples: list[ServerSample] = []
        self._gaps: list[Gap] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin, with a first look at once."""
        self._task = asyncio.create_task(self._run(), name="scraper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; a look under way is given up, and so is one that does not let go."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=self._limit_s)

    @property
    def samples(self) -> tuple[ServerSample, ...]:
        """Every look that succeeded so far, in order."""
        for moment_s, utc_s, text in self._pages:
            self._samples.append(sample(text, moment_s=moment_s, utc_s=utc_s))
        self._pages.clear()
        return tuple(self._samples)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Every look that gave nothing so far, in order."""
        return tuple(self._gaps)

    def between(self, start_s: float, end_s: float) -> tuple[ServerSample, ...]:
        """The samples of a window: start_s <= moment <= end_s, loop time."""
        return tuple(each for each in self.samples if start_s <= each.moment_s <= end_s)

    async def _run(self) -> None:
        clock = running_clock()
        origin_s, tick = clock.now_s(), 0
        while self._task is not None:  # a look that swallowed the cancellation ends here
            await sleep_until(origin_s + tick * self._every_s)
            await self._once()
            late = math.floor((clock.now_s() - origin_s) / self._every_s)
            for missed in range(tick + 1, late + 1):
                self._miss(origin_s + missed * self._every_s, "the look before was still under way, or the client busy")
            tick = max(tick, late) + 1

    async def _once(self) -> None:
        clock = running_clock()
        asked_s = clock.now_s()
        try:
            async with asyncio.timeout(self._limit_s):
                seen = await self._look()
        except TimeoutError:
            self._miss(asked_s, f"no answer within {self._limit_s:g} s")
        except SloBenchError as error:
            self._miss(asked_s, str(error))
        except Exception as error:  # noqa: BLE001 - a fault in here must not cost a measurement; it is written down
            self._miss(asked_s, f"{type(error).__name__}: {error}")
        else:
            self._keep(seen, asked_s)

    def _keep(self, seen: str | ServerSample | None, asked_s: float) -> None:
        clock = running_clock()
        if seen is None:
            self._miss(asked_s, "the server has no such page")
        elif isinstance(seen, str):
            self._pages.append((clock.now_s(), clock.utc_s(), relevant(seen)))
        else:
            self._samples.append(seen)

    def _miss(self, moment_s: float, reason: str) -> None:
        clock = running_clock()
        self._gaps.append(Gap(moment_s, clock.utc_s() + moment_s - clock.now_s(), reason))


@asynccontextmanager
async def watching(look: Look | None) -> AsyncIterator[Scraper | None]:
    """A scraper for as long as the block lasts; None for a server that shows no counts."""
    if look is None:
        yield None
        return
    async with Scraper(look) as scraper:
        yield scraper
