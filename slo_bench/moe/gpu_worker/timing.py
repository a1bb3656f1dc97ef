"""Times of cases, interleaved: in every round each case once, in an order of the round's own.

A time is a mean over the calls of one CUDA graph (or over plain calls) between two events on the stream. Calls go round
the copies of the weights and the draws, so that no call finds its weights in L2. The stream is kept filled: a replay
waits behind the one before it, and no time has the start of the work in it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from .failures import CAUGHT, failure_of
from .layer import GpuLayer, Input, overridden

_HELD_GRAPHS = 192
"""Graphs at a time; more cases than this are captured again in every round."""

_FILLED = 24
"""Measured replays on the stream before they are waited for."""

_LONG_FILL_S = 0.25


@dataclass
class _Case:
    entry: Mapping[str, int]
    input: Input
    times_s: list[float] = field(default_factory=list)
    failure: str | None = None
    is_over: bool = False  # failed or hopeless: not called again
    graph: torch.cuda.CUDAGraph | None = None
    guess_s: float = 0.0


class _Pool:
    """Memory that graphs share: they never run at the same time, and nobody reads what they leave behind.

    Every graph is held until all are dropped: a pool whose last graph is gone cannot be used again.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self._held: list[torch.cuda.CUDAGraph] = []

    def graph(self) -> torch.cuda.CUDAGraph:
        """A graph yet to be captured."""
        self._held.append(torch.cuda.CUDAGraph())
        return self._held[-1]

    def drop(self) -> None:
        """Free all; later graphs get another pool."""
        torch.cuda.synchronize()
        self._held.clear()
        torch.cuda.empty_cache()
        self.handle = torch.cuda.graph_pool_handle()


@dataclass(frozen=True)
class _Plan:
    layer: GpuLayer
    calls: int
    is_graph: bool
    most_s: float | None
    pool: _Pool
    stream: torch.cuda.Stream


def time_cases(
    layer: GpuLayer,
    *,
    cases: Sequence[Mapping[str, Any]],
    rounds: int,
    calls: int,
    is_graph: bool,
    most_s: float | None,
    seed: int,
    tell: Callable[[int], None],
) -> list[dict[str, Any]]:
    """For each case {"times_s": [one a round], "failure": text or null}, in the order given.

    A case that takes longer than most_s per call has no times and no failure. At least as many calls as there are
    copies of the weights make a time: fewer would leave some of them out of the way of L2 in name only.
    """
    stream = torch.cuda.Stream()
    plan = _Plan(layer, max(calls, len(layer.weights)), is_graph, most_s, _Pool(), stream)
    made = [_Case(case["entry"], layer.inputs[case["tokens"], case["routing"]]) for case in cases]
    order = random.Random(seed)  # noqa: S311 - an order, no secret
    done = 0
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for case in made:
            _begin(plan, case)
            done += 1
            tell(done)
        for _ in range(rounds):
            left = [case for case in made if not case.is_over]
            order.shuffle(left)
            for start in range(0, len(left), _HELD_GRAPHS):
                part = left[start : start + _HELD_GRAPHS]
                _measure(plan, part)
                if len(left) > _HELD_GRAPHS:
                    _drop_graphs(plan, part)
                done += len(part)
                tell(done)
        _drop_graphs(plan, made)
    return [{"times_s": case.times_s, "failure": case.failure} for case in made]


def _begin(plan: _Plan, case: _Case) -> None:
    """Load the kernels by one call; then tell by a second one whether the case is hopeless."""
    try:
        with overridden(case.entry):
            plan.layer.call(case.input, 0)
            plan.stream.synchronize()
            start, end = _event(), _event()
            start.record()
            begun_s = time.perf_counter()
            plan.layer.call(case.input, 1)
            launching_s = time.perf_counter() - begun_s
            end.record()
            plan.stream.synchronize()
    except CAUGHT as error:
        _fail(case, error)
        return
    # The GPU may have waited for our launches, for no longer than they took.
    case.guess_s = start.elapsed_time(end) / 1e3
    case.is_over = plan.most_s is not None and case.guess_s - launching_s > plan.most_s


def _measure(plan: _Plan, cases: Sequence[_Case]) -> None:
    """One time for each of these cases, in their order."""
    if plan.is_graph:
        for case in cases:
            if case.graph is None:
                _capture(plan, case)
    for part in _filled([case for case in cases if not case.is_over], plan.calls):
        marks = []
        for case in part:
            start, end = _event(), _event()
            start.record()
            if not _run(plan, case):
                continue
            end.record()
            marks.append((case, start, end))
        plan.stream.synchronize()
        for case, start, end in marks:
            case.guess_s = start.elapsed_time(end) / 1e3 / plan.calls
            case.times_s.append(case.guess_s)


def _run(plan: _Plan, case: _Case) -> bool:
    """Enqueue the calls; False where the case failed."""
    if case.graph is not None:
        case.graph.replay()
        return True
    try:
        with overridden(case.entry):
            for number in range(plan.calls):
                plan.layer.call(case.input, number)
    except CAUGHT as error:
        _fail(case, error)
        return False
    return True


def _capture(plan: _Plan, case: _Case) -> None:
    """The calls as a graph, replayed once. A replay that is too slow ends the case, where nothing was timed before."""
    graph = plan.pool.graph()
    try:
        with overridden(case.entry):
            graph.capture_begin(pool=plan.pool.handle, capture_error_mode="thread_local")
            try:
                for number in range(plan.calls):
                    plan.layer.call(case.input, number)
            except CAUGHT:
                with suppress(RuntimeError):  # the first error is the one to tell
                    graph.capture_end()
                raise
            graph.capture_end()
    except CAUGHT as error:
        _fail(case, error)
        return
    start, end = _event(), _event()
    start.record()
    graph.replay()
    end.record()
    plan.stream.synchronize()
    case.guess_s = start.elapsed_time(end) / 1e3 / plan.calls
    if plan.most_s is not None and not case.times_s and case.guess_s > plan.most_s:
        case.is_over = True
        return
    case.graph = graph


def _fail(case: _Case, error: BaseException) -> None:
    failure = failure_of(error)
    if failure is None:
        raise error
    case.failure, case.is_over, case.graph = failure, True, None
    case.times_s.clear()


def _drop_graphs(plan: _Plan, cases: Sequence[_Case]) -> None:
    for case in cases:
        case.graph = None
    plan.pool.drop()


def _filled(cases: Sequence[_Case], calls: int) -> list[list[_Case]]:
    """Cases in parts that the stream is filled with at once, none of which takes long."""
    parts: list[list[_Case]] = []
    size_s = 0.0
    for case in cases:
        cost_s = case.guess_s * calls
        if not parts or len(parts[-1]) >= _FILLED or size_s + cost_s > _LONG_FILL_S:
            parts.append([])
            size_s = 0.0
        parts[-1].append(case)
        size_s += cost_s
    return parts


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
