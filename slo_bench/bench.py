"""One running engine under one load setting: measures windows, one after another, from rest to rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from gates.cause import Cause, cause
from gates.referee import RateSoFar, SloReferee
from gates.slo import Metric, Objective, drain_limit_s
from gates.validity import Bounds
from gates.verdict import ProbeVerdict
from reports.power import SpanPower
from reports.run_directory import WarmUp
from slo_bench.calibration import corrected, token_ratio
from slo_bench.hosts import EngineFacts, RunningHost
from slo_bench.judgement import judge_window
from slo_bench.power.measuring import Power
from slo_bench.scrape import Scraper
from traffic.arrivals import POISSON, Arrivals
from traffic.chat_dataset import ChatDataset, CountTokens
from traffic.clock import running_clock
from traffic.closed_loop import run_closed
from traffic.errors import UsageError
from traffic.garbage import resting_collector
from traffic.probe import ProbeFacts, Progress, run_probe
from traffic.prompts import TokenRatio
from traffic.records import Request, RequestRecord
from traffic.schedule import Draw, Schedule, Window, endless_requests, open_loop, shared_share
from traffic.sender import Dispatch
from traffic.server_facts import ServerSample
from traffic.summary import cohort, mean, summarise
from traffic.traced import Traced
from traffic.workload import Workload, scaled_max

IDLE_LIMIT_S = 60.0
"""The next probe waits at most this long until the server is idle."""

WARM_UP_REPEAT = 1_000_000
"""Warm-up blocks draw their one schedule here, away from the repeats of measured windows."""

CLOSED_LOOP = -1.0
"""Stands for the rate of closed loops where attempts are counted: whatever their concurrency, no text comes twice."""

WARM_AGREEMENT = 0.03


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent and how it is judged.

    ramp_s: seconds of the same load before each window. workers: processes that send open loops. ray_address: of the
    cluster on whose nodes they run, None for this machine. tokenizer: a local copy of the server's, where there is one.
    """

    workload: Workload
    length_scale: float
    seed: int
    slo: tuple[Objective, ...]
    ramp_s: float
    bounds: Bounds
    arrivals: Arrivals = POISSON
    workers: int = 1
    ray_address: str | None = None
    tokenizer: CountTokens | None = None

    def measured(self, text: TokenRatio | None) -> Load:
        """The load, with the lengths of a data set's rows as the server counts them."""
        if text is None or not isinstance(self.workload, ChatDataset):
            return self
        return replace(self, workload=self.workload.measured(text))

    def longest_probe_s(self, duration_s: float) -> float:
        """The most that one probe of that window can take."""
        _, output_tokens = scaled_max(self.workload, self.length_scale)
        return self.ramp_s + duration_s + drain_limit_s(self.slo, output_tokens)


def check_fits(load: Load, facts: EngineFacts) -> None:
    """Refuse a mix that does not fit the model's context, with the length scale that would, or has no TPOT at all."""
    check_lengths(load, facts.model, facts.max_model_len)


def check_lengths(load: Load, model: str, max_model_len: int | None) -> None:
    """The same of a model by name and context limit (tokens; None: not known): before a server is started for it."""
    has_tpot = any(objective.metric is Metric.TPOT for objective in load.slo)
    input_tokens, output_tokens = scaled_max(load.workload, load.length_scale)
    if has_tpot and output_tokens <= 1:
        raise UsageError("answers of one token have no TPOT: give --slo without it, or longer answers")
    if max_model_len is None or input_tokens + output_tokens <= max_model_len:
        return
    raise UsageError(
        f"{load.workload.name} needs up to {input_tokens} + {output_tokens} tokens, {model} holds "
        f"{max_model_len}: {_fitting(load, max_model_len, output_tokens)}"
    )


def _fitting(load: Load, max_model_len: int, output_tokens: int) -> str:
    """What makes the load fit. Chat templates and the rounding of lengths to words need a little room."""
    room = int(0.97 * max_model_len) - output_tokens
    if isinstance(load.workload, ChatDataset):
        limit = load.workload.limit_for(room)
        return f"leave long prompts out with --max-input-tokens {limit}" if limit else "give a smaller --output-tokens"
    whole = load.workload.max_input_tokens + load.workload.max_output_tokens
    cut = f", or --max-input-tokens {room}" if isinstance(load.workload, Traced) and room > 0 else ""
    return f"use --length-scale {int(1000 * 0.97 * max_model_len / whole) / 1000:g} or less{cut}"


def _undisturbed() -> AbstractContextManager[None]:
    """The collector rests; under virtual time a collection takes none, and putting it to rest costs a whole one."""
    return nullcontext() if running_clock().cpu_s() is None else resting_collector()


class Bench:
    """A running engine, ready to be measured."""

    def __init__(
        self,
        running: RunningHost,
        load: Load,
        text: TokenRatio | None,
        scraper: Scraper | None = None,
        workers: Dispatch | None = None,
        *,
        power: Power | None = None,
    ) -> None:
        self.running = running
        self.load = load
        self.text = text
        self.scraper = scraper
        self.workers = workers
        self._power = power
        self.warm_e2e_s: float | None = None  # mean end-to-end latency of the last warm-up
        self._attempts: dict[tuple[float, int], int] = {}
        self._is_corrected = False

    @classmethod
    async def prepare(
        cls,
        running: RunningHost,
        load: Load,
        scraper: Scraper | None = None,
        workers: Dispatch | None = None,
        *,
        power: Power | None = None,
    ) -> Bench:
        """Check that the load fits the engine and learn how long its prompts are.

        scraper: who watches the server. workers: who sends open loops, None for this process. power: what reads it.
        """
        check_fits(load, running.facts)
        text = await token_ratio(
            running, load.workload, seed=load.seed, length_scale=load.length_scale, tokenizer=load.tokenizer
        )
        bench = cls(running, load.measured(text), text, scraper, workers, power=power)
        check_fits(bench.load, running.facts)
        return bench

    @property
    def samples(self) -> tuple[ServerSample, ...]:
        """What the server said of itself so far; call it between windows only, since reading pages takes time."""
        return () if self.scraper is None else self.scraper.samples

    def explain(self, verdict: ProbeVerdict) -> Cause | None:
        """Why a window failed; None for one that passed."""
        return None if verdict.limited_by is None else cause(verdict, self.samples, self.running.facts.limits)

    def power(self, verdict: ProbeVerdict) -> SpanPower | None:
        """What the GPUs drew in a window that has ended, kept for power.json too; None where it is not measured."""
        return None if self._power is None else self._power.window(verdict)

    def _judged(self, facts: ProbeFacts) -> ProbeVerdict:
        load = self.load
        verdict = judge_window(facts, load.slo, load.bounds, samples=self.samples, text=self.text)
        return replace(verdict, flags=(*verdict.flags, *self._engine_flags()))

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
            arrivals=load.arrivals,
        )

    async def window(
        self,
        rate_rps: float,
        repeat: int,
        duration_s: float,
        *,
        can_end_early: bool = True,
        so_far: RateSoFar | None = None,
        observe: Callable[[Progress, Sequence[int]], None] = lambda _progress, _over: None,
    ) -> ProbeVerdict:
        """Measure one window and leave the server idle. Raises EngineError when the engine dies or does not rest.

        so_far: see `SloReferee`.
        """
        schedule = self.schedule(rate_rps, repeat, duration_s, self.load.ramp_s)
        referee = SloReferee(self.load.slo, schedule, so_far)
        self.running.compilations()  # what came before belongs to no window
        with _undisturbed():
            facts = await run_probe(
                self.running.engine,
                schedule,
                referee if can_end_early else _Patient(referee),
                workers=self.workers,
                check=self.running.check,
                observe=lambda progress: observe(progress, referee.over),
            )
        await self.running.wait_idle(IDLE_LIMIT_S)
        return self._judged(_as_sent(facts, schedule.requests.__getitem__))

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
        _, longest = scaled_max(load.workload, load.length_scale)
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
        with _undisturbed():
            closed = await run_closed(
                self.running.engine,
                endless_requests(draw, self.text),
                window,
                check=self.running.check,
                observe=observe,
            )
        await self.running.wait_idle(IDLE_LIMIT_S)
        return self._judged(_as_sent(closed, endless_requests(draw, None)))

    async def warm_up(self, rate_rps: float, block_s: float, most: int) -> WarmUp:
        """Replay one schedule with fresh text until two successive blocks agree on mean TPOT, at most `most` times.

        Fresh Poisson blocks differ by 8 to 11 % on a perfectly warm server, so only equal ones can be compared.
        """
        means: list[float | None] = []
        records: list[RequestRecord] = []
        while len(means) < most and not _agree(means):
            schedule = self.schedule(rate_rps, WARM_UP_REPEAT, block_s, 0.0)
            facts = await run_probe(self.running.engine, schedule, workers=self.workers, check=self.running.check)
            means.append(summarise(facts).mean_tpot_s)
            records += facts.records
            await self.running.wait_idle(IDLE_LIMIT_S)
        self.warm_e2e_s = mean([e2e_s for each in records if (e2e_s := each.e2e_s) is not None])
        self._correct_lengths(records)
        return WarmUp(is_warm=_agree(means), rate_rps=rate_rps, block_s=block_s, tpot_mean_s=means)

    def _correct_lengths(self, records: Sequence[RequestRecord]) -> None:
        """Make prompts as long as meant, by what the first warm-up found.

        Later ones change nothing, or windows at different rates would get prompts of different lengths.
        """
        if self.text is not None and not self._is_corrected:
            self.text = corrected(self.text, records)
            if isinstance(self.load.workload, ChatDataset):
                self.load = replace(self.load, workload=self.load.workload.recounted(self.text))
        self._is_corrected = True


def _as_sent(facts: ProbeFacts, request: Callable[[int], Request]) -> ProbeFacts:
    """The facts, with the share that the workload repeated in the cohort as it came to be: a closed loop makes its own.

    request: the request with that index.
    """
    share = shared_share(request(each.index) for each in cohort(facts.records))
    return replace(facts, window=replace(facts.window, shared_share=share))


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
