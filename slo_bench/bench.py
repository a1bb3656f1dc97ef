"""One running engine under one load setting: measures windows, one after another, from rest to rest."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gates.cause import Cause, cause
from gates.evidence import side_by_side
from gates.referee import SloReferee
from gates.slo import Metric, Objective, drain_limit_s
from gates.validity import Bounds
from gates.verdict import ProbeVerdict, judge_probe
from reports.run_directory import WarmUp
from slo_bench.calibration import token_ratio
from slo_bench.hosts import EngineFacts, RunningHost
from slo_bench.scrape import Scraper
from traffic.closed_loop import run_closed
from traffic.errors import UsageError
from traffic.probe import ProbeFacts, Progress, run_probe
from traffic.prompts import TokenRatio
from traffic.schedule import Draw, Schedule, Window, endless_requests, open_loop
from traffic.server_facts import ServerSample
from traffic.summary import summarise
from traffic.workload import Workload

IDLE_LIMIT_S = 60.0
"""The next probe waits at most this long until the server is idle."""

WARM_UP_REPEAT = 1_000_000
"""Warm-up blocks draw their one schedule here, away from the repeats of measured windows."""

CLOSED_LOOP = -1.0
"""Stands for the rate of closed loops where attempts are counted: whatever their concurrency, no text comes twice."""

WARM_AGREEMENT = 0.03


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent and how it is judged. ramp_s: seconds of the same load before each window."""

    workload: Workload
    length_scale: float
    seed: int
    slo: tuple[Objective, ...]
    ramp_s: float
    bounds: Bounds

    def longest_probe_s(self, duration_s: float) -> float:
        """The most that one probe of that window can take."""
        _, output_tokens = self.workload.scaled_max(self.length_scale)
        return self.ramp_s + duration_s + drain_limit_s(self.slo, output_tokens)


def check_fits(load: Load, facts: EngineFacts) -> None:
    """Refuse a mix that does not fit the model's context, with the length scale that would, or has no TPOT at all."""
    has_tpot = any(objective.metric is Metric.TPOT for objective in load.slo)
    if has_tpot and load.workload.scaled_max(load.length_scale)[1] <= 1:
        raise UsageError("answers of one token have no TPOT: give --slo without it, or longer answers")
    if facts.max_model_len is None:
        return
    input_tokens, output_tokens = load.workload.scaled_max(load.length_scale)
    if input_tokens + output_tokens <= facts.max_model_len:
        return
    whole = load.workload.max_input_tokens + load.workload.max_output_tokens
    # Chat templates and the rounding of lengths to words need a little room.
    fitting = int(1000 * 0.97 * facts.max_model_len / whole) / 1000
    raise UsageError(
        f"{load.workload.name} needs up to {input_tokens} + {output_tokens} tokens, {facts.model} holds "
        f"{facts.max_model_len}: use --length-scale {fitting:g} or less"
    )


@contextmanager
def resting_collector() -> Iterator[None]:
    """No garbage collection inside: what exists is set aside first, so the pause afterwards is short too.

    A full collection took 20 to 150 ms in clients of this kind, more than any lag that a valid window may have.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class Bench:
    """A running engine, ready to be measured."""

    def __init__(
        self, running: RunningHost, load: Load, text: TokenRatio | None, scraper: Scraper | None = None
    ) -> None:
        self.running = running
        self.load = load
        self.text = text
        self.scraper = scraper
        self._attempts: dict[tuple[float, int], int] = {}

    @classmethod
    async def prepare(cls, running: RunningHost, load: Load, scraper: Scraper | None = None) -> Bench:
        """Check that the load fits the engine and learn how long its prompts are. scraper: who watches the server."""
        check_fits(load, running.facts)
        return cls(running, load, await token_ratio(running, load.seed), scraper)

    @property
    def samples(self) -> tuple[ServerSample, ...]:
        """What the server said of itself so far; call it between windows only, since reading pages takes time."""
        return () if self.scraper is None else self.scraper.samples

    def explain(self, verdict: ProbeVerdict) -> Cause | None:
        """Why a window failed; None for one that passed."""
        return None if verdict.limited_by is None else cause(verdict, self.samples, self.running.facts.limits)

    def _judged(self, facts: ProbeFacts) -> ProbeVerdict:
        """The verdict on a window, the server's own view of its latencies included."""
        verdict = replace(judge_probe(facts, self.load.slo, self.load.bounds), flags=self._engine_flags())
        reasons = [each.invalid_reason for each in side_by_side(facts, self.samples)]
        told = tuple(reason for reason in reasons if reason is not None)
        return replace(verdict, outcome=None, invalid_reasons=(*verdict.invalid_reasons, *told)) if told else verdict

    def _engine_flags(self) -> tuple[str, ...]:
        """What the engine told of one-off work since the window began: its latencies hold it, and steady load has none.

        A server that was warmed with this very mix still meets new shapes at higher rates; so it is said, not judged.
        """
        return tuple(f"the engine's log: {each}" for each in self.running.compilations() or ())

    def schedule(self, rate_rps: float, repeat: int, duration_s: float, ramp_s: float) -> Schedule:
        """A schedule whose text has never been sent to this server start."""
        load = self.load
        draw = replace(self._draw(repeat), attempt=self._attempt((rate_rps, repeat)))
        return open_loop(
            draw,
            rate_rps=rate_rps,
            ramp_s=ramp_s,
            duration_s=duration_s,
            drain_limit_s=lambda longest: drain_limit_s(load.slo, longest),
            text=self.text,
        )

    def _attempt(self, key: tuple[float, int]) -> int:
        """How often a window was measured on this server before; all closed loops share one key."""
        attempt = self._attempts.get(key, 0)
        self._attempts[key] = attempt + 1
        return attempt

    def _draw(self, repeat: int) -> Draw:
        load, facts = self.load, self.running.facts
        return Draw(
            workload=load.workload,
            seed=load.seed,
            repeat=repeat,
            start=facts.start,
            length_scale=load.length_scale,
            force_length=facts.takes_forced_length,
        )

    async def window(
        self,
        rate_rps: float,
        repeat: int,
        duration_s: float,
        *,
        can_end_early: bool = True,
        observe: Callable[[Progress, Sequence[int]], None] = lambda _progress, _over: None,
    ) -> ProbeVerdict:
        """Measure one window and leave the server idle. Raises EngineError when the engine dies or does not rest."""
        schedule = self.schedule(rate_rps, repeat, duration_s, self.load.ramp_s)
        referee = SloReferee(self.load.slo, schedule)
        self.running.compilations()  # what came before belongs to no window
        with resting_collector():
            facts = await run_probe(
                self.running.engine,
                schedule,
                referee if can_end_early else _Patient(referee),
                check=self.running.check,
                observe=lambda progress: observe(progress, referee.over),
            )
        await self.running.wait_idle(IDLE_LIMIT_S)
        return self._judged(facts)

    async def closed_loop(
        self,
        concurrency: int,
        repeat: int,
        duration_s: float,
        *,
        observe: Callable[[Progress], None] = lambda _progress: None,
    ) -> ProbeVerdict:
        """One window with `concurrency` requests kept in flight; times count from the send, no rate is claimed."""
        load = self.load
        _, longest = load.workload.scaled_max(load.length_scale)
        end_s = load.ramp_s + duration_s
        window = Window(
            rate_rps=None,
            repeat=repeat,
            window_start_s=load.ramp_s,
            window_end_s=end_s,
            drain_end_s=end_s + drain_limit_s(load.slo, longest),
            scheduled=0,
            longest_output_tokens=longest,
            concurrency=concurrency,
        )
        draw = replace(self._draw(repeat), attempt=self._attempt((CLOSED_LOOP, repeat)))
        self.running.compilations()
        with resting_collector():
            closed = await run_closed(
                self.running.engine,
                endless_requests(draw, self.text),
                window,
                check=self.running.check,
                observe=observe,
            )
        await self.running.wait_idle(IDLE_LIMIT_S)
        return self._judged(closed)

    async def warm_up(self, rate_rps: float, block_s: float, most: int) -> WarmUp:
        """Replay one schedule with fresh text until two successive blocks agree on mean TPOT, at most `most` times.

        Fresh Poisson blocks differ by 8 to 11 % on a perfectly warm server, so only equal ones can be compared.
        """
        means: list[float | None] = []
        while len(means) < most and not _agree(means):
            schedule = self.schedule(rate_rps, WARM_UP_REPEAT, block_s, 0.0)
            facts = await run_probe(self.running.engine, schedule, check=self.running.check)
            means.append(summarise(facts).mean_tpot_s)
            await self.running.wait_idle(IDLE_LIMIT_S)
        return WarmUp(is_warm=_agree(means), rate_rps=rate_rps, block_s=block_s, tpot_mean_s=means)


def _agree(means: Sequence[float | None]) -> bool:
    if len(means) < 2:  # noqa: PLR2004 - two blocks are compared
        return False
    before, after = means[-2], means[-1]
    return before is not None and after is not None and abs(after / before - 1) <= WARM_AGREEMENT


class _Patient:
    """A referee that counts and never ends a probe."""

    def __init__(self, counting: SloReferee) -> None:
        self.resolved = counting.resolved

    def look(self, *_: object) -> None:
        return None
