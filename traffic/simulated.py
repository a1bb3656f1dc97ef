"""The simulated engine on an event loop: the step model, paced by the loop's clock, real or virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from traffic.records import End, Flight, Request
from traffic.step_model import Job, Stage, StepModel, StepOutcome

LOOK_S = 0.5
"""How old the token count of a running flight can be: writing all of them after every step would cost more than the
rest of the engine. First tokens are written at once, and the last facts before a request ends in any way."""

TokenCallback = Callable[[float, int], None]
"""Told after each step that gave the request tokens: when (loop time, s) and how many. Must not raise."""


@dataclass(slots=True)
class _Open:
    """A request under way: where its facts go, what wakes its caller, and how many tokens its listener knows of."""

    flight: Flight
    done: asyncio.Future[None]
    on_token: TokenCallback | None
    told_tokens: int = 0


class SimulatedEngine:
    """Answers requests at the model's own times. An async context manager: nothing of it runs after leaving.

    One timer stands at the end of the step under way. The next step starts where the model says that this one ended,
    not where the loop woke up, so a late wake-up delays nobody's tokens and shifts no later step; only a model that was
    idle starts at the loop's now. on_step: told what each step did, before the requests are.
    """

    def __init__(self, model: StepModel, on_step: Callable[[StepOutcome], None] | None = None) -> None:
        self.model = model
        self._on_step = on_step
        self._open: dict[Job, _Open] = {}
        self._listening: dict[Job, _Open] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_end_s = 0.0
        self._next_look_s = 0.0

    async def __aenter__(self) -> Self:
        """Start to take requests on the running loop."""
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; what is still under way ends as failed."""
        loop, self._loop = self._loop, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for job, each in self._open.items():
            self.model.abort(job)
            self._write(job, each.flight)
            each.flight.finish(loop.time() if loop else self._last_end_s, End.FAILED, "the engine was stopped")
            if not each.done.done():
                each.done.set_result(None)
        self._open.clear()
        self._listening.clear()
        self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, running, or being computed for a request that was aborted."""
        return self._idle.is_set()

    async def wait_idle(self) -> None:
        """Return when the engine is idle; the bound is the caller's."""
        await self._idle.wait()

    async def generate(self, request: Request, flight: Flight, on_token: TokenCallback | None = None) -> None:
        """Answer with exactly request.output_tokens tokens; see `traffic.engine.Engine`. The prompt's text is not read.

        A request that can never fit, or comes before or after the engine's life, is written into the flight as failed.
        """
        if self._loop is None:
            flight.finish(asyncio.get_running_loop().time(), End.FAILED, "the engine is not running")
            return
        flight.sent_s = self._loop.time()
        try:
            job = self.model.submit(flight.sent_s, request.input_tokens, request.output_tokens)
        except ValueError as error:
            flight.finish(flight.sent_s, End.FAILED, str(error))
            return
        flight.prompt_tokens = request.input_tokens
        flight.cached_tokens = 0
        each = _Open(flight, self._loop.create_future(), on_token)
        self._open[job] = each
        if on_token is not None:
            self._listening[job] = each
        self._idle.clear()
        if self._timer is None:
            # Not at once: whoever else is due at this very moment belongs in the same first step.
            self._timer = self._loop.call_soon(self._start)
        try:
            await each.done
        except asyncio.CancelledError:
            if self._open.pop(job, None) is not None:
                self._listening.pop(job, None)
                self.model.abort(job)
                self._write(job, flight)
            raise

    def _write(self, job: Job, flight: Flight) -> None:
        """Bring a flight up to the last completed step."""
        seen = self.model.progress(job)
        flight.output_tokens = seen.output_tokens
        flight.first_token_s = seen.first_token_s
        flight.last_token_s = seen.last_token_s
        flight.chunk_gap_max_s = seen.gap_max_s

    def _start(self) -> None:
        """Leave idleness, now."""
        if self._loop is not None:
            self._begin(self._loop, max(self._loop.time(), self._last_end_s))

    def _begin(self, loop: asyncio.AbstractEventLoop, start_s: float) -> None:
        """Begin a step at start_s and stand a timer at its end; idle when there is none."""
        end_s = self.model.begin_step(start_s)
        if end_s is None and self.model.waiting:
            # Submitted after the last step's end but before the loop woke up for it: the model was idle in between.
            end_s = self.model.begin_step(max(loop.time(), start_s))
        if end_s is None:
            self._timer = None
            self._idle.set()
        else:
            self._timer = loop.call_at(end_s, self._advance)

    def _advance(self) -> None:
        """End the step under way, tell everybody, begin the next."""
        if self._loop is None:
            return
        outcome = self.model.end_step()
        self._last_end_s = outcome.end_s
        if self._on_step is not None:
            self._on_step(outcome)
        for job in outcome.first:
            if each := self._open.get(job):
                each.flight.token(outcome.end_s)
        if self._listening:
            self._tell(outcome.end_s)
        for job in outcome.finished:
            each = self._open.pop(job)
            self._listening.pop(job, None)
            self._write(job, each.flight)
            each.flight.finish_reason = "length"
            each.flight.finish(outcome.end_s, End.FINISHED)
            if not each.done.done():
                each.done.set_result(None)
        if outcome.end_s >= self._next_look_s:
            self._look(outcome.end_s)
        self._begin(self._loop, outcome.end_s)

    def _tell(self, now_s: float) -> None:
        for job, each in self._listening.items():
            tokens = self.model.tokens(job)
            if tokens > each.told_tokens and each.on_token is not None:
                each.on_token(now_s, tokens - each.told_tokens)
                each.told_tokens = tokens

    def _look(self, now_s: float) -> None:
        """Bring the counts of the running flights up to date, for a live view; gaps wait until the end."""
        self._next_look_s = now_s + LOOK_S
        for job, each in self._open.items():
            if job.stage is Stage.DECODE:
                each.flight.output_tokens = self.model.tokens(job)
                each.flight.last_token_s = now_s
