"""A probe's schedule: every request with its due time, fixed before the first send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traffic.arrivals import poisson_arrivals
from traffic.prompts import TokenRatio, prompt, prompts
from traffic.randomness import CHUNK, stream
from traffic.records import Message, Request
from traffic.workload import Workload, draw_lengths

CACHE_BLOCK_TOKENS = 16
"""vLLM caches prefixes in blocks of this size; a shorter prompt is never found again."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What a schedule is drawn from.

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


@dataclass(frozen=True, slots=True)
class Window:
    """What a probe measures; seconds after its start.

    The cohort is every request due in [window_start_s, window_end_s); load goes on, unmeasured, until drain_end_s at
    the latest. scheduled: requests in the cohort. longest_output_tokens: of the cohort. duplicate_prompts: requests
    of a cache block or more whose whole text had been scheduled before (0 where requests carry no text). concurrency:
    requests kept in flight by a closed loop, None for the open loop.
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
    due_s = poisson_arrivals(rate_rps, draw.seed, draw.repeat, window_end_s)
    lengths = draw_lengths(draw.workload, draw.seed, draw.repeat, len(due_s), draw.length_scale)
    cohort_output = lengths.output_tokens[due_s >= ramp_s]
    longest = int(cohort_output.max()) if len(cohort_output) else 0
    drain_end_s = window_end_s + drain_limit_s(longest)
    requests = _requests(draw, rate_rps, (ramp_s, window_end_s, drain_end_s), text)
    window = Window(
        rate_rps=rate_rps,
        repeat=draw.repeat,
        window_start_s=ramp_s,
        window_end_s=window_end_s,
        drain_end_s=drain_end_s,
        scheduled=len(cohort_output),
        longest_output_tokens=longest,
        duplicate_prompts=0 if text is None else _duplicates(requests),
    )
    return Schedule(window, requests)


def _duplicates(requests: tuple[Request, ...]) -> int:
    """Prompts sent more than once that a prefix cache could keep."""
    texts = [each.messages for each in requests if each.input_tokens >= CACHE_BLOCK_TOKENS]
    return len(texts) - len(set(texts))


def _requests(
    draw: Draw, rate_rps: float, bounds_s: tuple[float, float, float], text: TokenRatio | None
) -> tuple[Request, ...]:
    """All requests up to the drain's end; bounds_s: the window's start and end, the drain's end."""
    start_s, end_s, drain_end_s = bounds_s
    due_s = poisson_arrivals(rate_rps, draw.seed, draw.repeat, drain_end_s).tolist()
    lengths = draw_lengths(draw.workload, draw.seed, draw.repeat, len(due_s), draw.length_scale)
    kinds = [draw.workload.classes[index].name for index in lengths.kinds.tolist()]
    inputs, outputs = lengths.input_tokens.tolist(), lengths.output_tokens.tolist()
    texts: list[tuple[Message, ...]] = [()] * len(kinds)
    if text is not None:
        keys = {"seed": draw.seed, "start": draw.start, "repeat": draw.repeat, "attempt": draw.attempt}
        texts = prompts(kinds, inputs, text, rate_rps=rate_rps, **keys)
    return tuple(
        Request(
            index=index,
            due_s=due,
            kind=kind,
            input_tokens=given,
            output_tokens=wanted,
            in_cohort=start_s <= due < end_s,
            force_length=draw.force_length,
            messages=messages,
        )
        for index, (due, kind, given, wanted, messages) in enumerate(
            zip(due_s, kinds, inputs, outputs, texts, strict=True)
        )
    )


def endless_requests(draw: Draw, text: TokenRatio | None) -> Callable[[int], Request]:
    """A function from index to request for loads that have no schedule; due times are the caller's."""
    lengths = draw_lengths(draw.workload, draw.seed, draw.repeat, CHUNK, draw.length_scale)

    def make(index: int) -> Request:
        nonlocal lengths
        if index >= len(lengths.kinds):
            lengths = draw_lengths(draw.workload, draw.seed, draw.repeat, 2 * index, draw.length_scale)
        kind = draw.workload.classes[int(lengths.kinds[index])].name
        input_tokens = int(lengths.input_tokens[index])
        messages: tuple[Message, ...] = ()
        if text is not None:
            generator = stream("closed prompts", draw.seed, draw.start, draw.repeat, draw.attempt, index)
            messages = prompt(generator, kind, text.words(input_tokens))
        return Request(
            index=index,
            due_s=0.0,
            kind=kind,
            input_tokens=input_tokens,
            output_tokens=int(lengths.output_tokens[index]),
            force_length=draw.force_length,
            messages=messages,
        )

    return make
