"""A probe's schedule: every request with its due time, fixed before the first send."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from traffic.arrivals import POISSON, Arrivals
from traffic.conversations import Conversations, Turns, single_turns
from traffic.prompts import TextKey, TokenRatio
from traffic.randomness import CHUNK
from traffic.records import Message, Request
from traffic.workload import Workload

CACHE_BLOCK_TOKENS = 16
"""vLLM caches prefixes in blocks of this size; a shorter prompt is never found again."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What a schedule is drawn from: requests made of `workload`, due as `arrivals` says.

    seed and repeat give gaps and lengths, so that all arms see the same; start (servers started before this one) adds
    to the text, so that no prompt is sent twice to one server. attempt: adds to the text alone, for a window or a
    warm-up block that is measured again on one server.
    """

    workload: Workload
    seed: int
    repeat: int
    start: int = 0
    length_scale: float = 1.0
    force_length: bool = True
    attempt: int = 0
    arrivals: Arrivals = POISSON

    def text_key(self, rate_rps: float | None) -> TextKey:
        """What the text of a schedule at that rate is drawn from; None for a closed loop."""
        return TextKey(self.seed, self.start, rate_rps, self.repeat, self.attempt)


@dataclass(frozen=True, slots=True)
class Window:
    """What a probe measures; seconds after its start.

    The cohort is every request due in [window_start_s, window_end_s); load goes on, unmeasured, until drain_end_s at
    the latest. scheduled: requests in the cohort. longest_output_tokens: of the cohort. duplicate_prompts: requests
    of a cache block or more whose whole text had been scheduled before, against the workload's intent (0 where requests
    carry no text). concurrency: requests kept in flight by a closed loop, None for the open loop. shared_share: of the
    cohort's prompt tokens, how many the workload itself repeats as prefixes of earlier prompts: what an endless prefix
    cache could save at most.
    """

    rate_rps: float | None
    repeat: int
    window_start_s: float
    window_end_s: float
    drain_end_s: float
    scheduled: int
    longest_output_tokens: int
    duplicate_prompts: int = 0
    concurrency: int | None = None
    shared_share: float = 0.0

    @property
    def duration_s(self) -> float:
        """Length of the measured window."""
        return self.window_end_s - self.window_start_s


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requests in the order of their due times, and the window that they fill."""

    window: Window
    requests: tuple[Request, ...]


def open_loop(
    draw: Draw,
    *,
    rate_rps: float,
    ramp_s: float,
    duration_s: float,
    drain_limit_s: Callable[[int], float],
    text: TokenRatio | None,
) -> Schedule:
    """The schedule of one probe.

    ramp_s of the same mix and rate are dropped before the window of duration_s. drain_limit_s: longest requested output
    tokens of the cohort -> seconds that its last request may take. text: how to make prompts, None for lengths only.
    """
    window_end_s = ramp_s + duration_s
    due = _due(draw, rate_rps, window_end_s)
    longest = int(due.lengths.output_tokens[_may_be_inside(due, ramp_s)].max(initial=0))
    drain_end_s = window_end_s + drain_limit_s(longest)
    due = _due(draw, rate_rps, drain_end_s)
    cohort = (due.due_s >= ramp_s) & (due.due_s < window_end_s)
    texts: list[tuple[Message, ...]] = [()] * len(due.due_s)
    if text is not None:
        texts = draw.workload.texts(due.lengths, text, draw.text_key(rate_rps))
    requests = _requests(draw, due, cohort, texts)
    window = Window(
        rate_rps=rate_rps,
        repeat=draw.repeat,
        window_start_s=ramp_s,
        window_end_s=window_end_s,
        drain_end_s=drain_end_s,
        scheduled=int(cohort.sum()),
        longest_output_tokens=longest,
        duplicate_prompts=0 if text is None else _duplicates(requests),
        shared_share=shared_share(request for request in requests if request.in_cohort),
    )
    return Schedule(window, requests)


def _due(draw: Draw, rate_rps: float, horizon_s: float) -> Turns:
    """Everything that may be due before the horizon."""
    if isinstance(draw.workload, Conversations):
        return draw.workload.turns(
            draw.arrivals, rate_rps, draw.seed, draw.repeat, horizon_s=horizon_s, length_scale=draw.length_scale
        )
    due_s = draw.arrivals.due_s(rate_rps, draw.seed, draw.repeat, horizon_s)
    return single_turns(due_s, draw.workload.draw(draw.seed, draw.repeat, len(due_s), draw.length_scale))


def _may_be_inside(due: Turns, ramp_s: float) -> npt.NDArray[np.bool_]:
    """Requests of the cohort; a turn that follows an answer may come to be one later than at its earliest."""
    return (due.due_s >= ramp_s) | (due.after >= 0)


def shared_share(requests: Iterable[Request]) -> float:
    """Of the tokens of these prompts, those that the workload repeats from earlier ones."""
    asked = shared = 0
    for request in requests:
        asked += request.input_tokens
        shared += request.shared_tokens
    return shared / asked if asked else 0.0


def _duplicates(requests: tuple[Request, ...]) -> int:
    """Prompts sent more than once that a prefix cache could keep, but for those that the workload repeats whole."""
    texts = [
        each.messages
        for each in requests
        if each.input_tokens >= CACHE_BLOCK_TOKENS and each.shared_tokens < each.input_tokens
    ]
    return len(texts) - len(set(texts))


def _requests(
    draw: Draw, due: Turns, cohort: npt.NDArray[np.bool_], texts: list[tuple[Message, ...]]
) -> tuple[Request, ...]:
    kinds = draw.workload.kinds
    columns = (
        due.due_s,
        due.lengths.kinds,
        due.lengths.input_tokens,
        due.lengths.output_tokens,
        cohort,
        due.after,
        due.think_s,
        due.lengths.shared_tokens,
    )
    return tuple(
        Request(
            index=index,
            due_s=due_s,
            kind=kinds[kind],
            input_tokens=given,
            output_tokens=wanted,
            in_cohort=in_cohort,
            force_length=draw.force_length,
            messages=messages,
            after=None if after < 0 else after,
            think_s=think_s,
            shared_tokens=shared,
        )
        for index, (messages, due_s, kind, given, wanted, in_cohort, after, think_s, shared) in enumerate(
            zip(texts, *(column.tolist() for column in columns), strict=True)
        )
    )


def endless_requests(draw: Draw, text: TokenRatio | None) -> Callable[[int], Request]:
    """A function from index to request for loads that have no schedule; due times are the caller's."""
    lengths = draw.workload.draw(draw.seed, draw.repeat, CHUNK, draw.length_scale)
    names, key = draw.workload.kinds, draw.text_key(None)

    def make(index: int) -> Request:
        nonlocal lengths
        if index >= len(lengths.kinds):
            lengths = draw.workload.draw(draw.seed, draw.repeat, 2 * index, draw.length_scale)
        messages: tuple[Message, ...] = ()
        if text is not None:
            messages = draw.workload.texts(lengths.part(index, index + 1), text, replace(key, index=index))[0]
        return Request(
            index=index,
            due_s=0.0,
            kind=names[int(lengths.kinds[index])],
            input_tokens=int(lengths.input_tokens[index]),
            output_tokens=int(lengths.output_tokens[index]),
            force_length=draw.force_length,
            messages=messages,
            shared_tokens=int(lengths.shared_tokens[index]),
        )

    return make
