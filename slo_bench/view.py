"""What a person sees while a sweep runs: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gates.capacity import Capacity, rate_text
from gates.slo import Objective
from gates.verdict import ProbeVerdict
from reports.run_directory import ProbeRow
from slo_bench.search import Measure
from slo_bench.sweep import SweepPlan
from traffic.probe import Progress
from traffic.summary import allowed

REFRESH_S = 0.1


class SweepView(AbstractContextManager[Any]):
    """Lines for every window, and on a terminal a panel below them. Everything goes to stderr."""

    def __init__(self, slo: Sequence[Objective], *, marks: Sequence[str] = (), console: Console | None = None) -> None:
        """`marks`: words that stand on every line (SIMULATED, smoke)."""
        self.slo = slo
        self.prefix = "".join(f"[{mark}] " for mark in marks)
        self.console = console or Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self.bracket = ""
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(Text(f"{self.prefix}{text}"), soft_wrap=True)

    def warming(self, plan: SweepPlan) -> None:
        """Warm-up begins."""
        self.say(
            f"warming up: {plan.mode.warm_block_s:g}-second blocks of one schedule at {rate_text(plan.warm_up_rps)} "
            f"req/s, at most {plan.mode.warm_blocks}"
        )

    def started(self, step: Measure, capacity: Capacity) -> None:  # noqa: ARG002 - the probe tells its own rate
        """A window begins."""
        low = "none" if capacity.capacity_rps is None else rate_text(capacity.capacity_rps)
        high = "none" if capacity.first_failed_rps is None else rate_text(capacity.first_failed_rps)
        self.bracket = f"passed {low} · failed {high} req/s"

    def progress(self, progress: Progress, over: Sequence[int]) -> None:
        """A look at the running probe; drawn at most ten times a second."""
        now_s = time.monotonic()
        if self.live is None or now_s - self._drawn < REFRESH_S:
            return
        self._drawn = now_s
        window = progress.window
        clock = Table.grid(padding=(0, 1))
        clock.add_row(
            Text(f"{self.prefix}{rate_text(window.rate_rps or 0.0)} req/s, repeat {window.repeat}", style="bold"),
            ProgressBar(total=window.window_end_s, completed=min(progress.now_s, window.window_end_s), width=30),
            Text(self._clock(progress)),
        )
        misses = " · ".join(
            f"over {objective}: {count} of {allowed(window.scheduled, objective.percentile)} allowed"
            for objective, count in zip(self.slo, over, strict=True)
        )
        self.live.update(
            Group(Text(self.bracket, style="dim"), clock, Text(f"in flight {progress.in_flight} · {misses}")),
            refresh=True,
        )

    def _clock(self, progress: Progress) -> str:
        window = progress.window
        if progress.now_s < window.window_start_s:
            return f"ramp {progress.now_s:.0f} of {window.window_start_s:.0f} s"
        if progress.now_s < window.window_end_s:
            return f"{progress.now_s - window.window_start_s:.0f} of {window.duration_s:.0f} s"
        return f"draining, at most {window.drain_end_s - progress.now_s:.0f} s"

    def measured(self, verdict: ProbeVerdict, row: ProbeRow) -> None:
        """A window was judged."""
        self.say(window_line(verdict, row))


def window_line(verdict: ProbeVerdict, row: ProbeRow) -> str:
    """One window in one line: rate, outcome, each objective with its counts, and what is odd."""
    rate = f"{row.concurrency} in flight" if row.rate_rps is None else f"{rate_text(row.rate_rps)} req/s"
    word = "INVALID" if verdict.outcome is None else verdict.outcome.value
    parts = [f"{rate:>13} #{row.repeat} {word:4}"]
    for result in verdict.results:
        value = "-" if result.value_s is None else f"{result.value_s * 1000:.0f} ms"
        parts.append(
            f"p{result.objective.percentile} {result.objective.metric} {value} ({result.over}/{result.allowed} over)"
        )
    parts.append(f"n {row.n}")
    if row.failed:
        parts.append(f"{row.failed} failed")
    if row.saved_s:
        parts.append(f"ended {row.saved_s:.0f} s early: {row.stop}")
    parts += [f"invalid: {reason}" for reason in row.invalid_reasons]
    parts += [f"flag: {each}" for each in row.flags]
    return "  ".join(parts)
