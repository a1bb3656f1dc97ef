"""The simulated engine's arithmetic: continuous batching, step by step, without an event loop.

The schedule is vLLM V1's: running requests first, one token each; what is left of the token budget goes to prefill, in
chunks; admission by sequences and KV tokens; when the KV cache is full, the latest admitted request is preempted and
computed again later. A step costs O(1) plus its events: a decode step adds a token to every running request implicitly.
Only `begin_step` and `end_step` move time, so the caller decides whose time it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traffic.step_time import EngineSettings, Pace, batch_shape

__all__ = ["Driven", "EngineSettings", "Job", "Progress", "Stage", "StepModel", "StepOutcome"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Stage(Enum):
    """Where a job is."""

    WAITING = 0
    PREFILL = 1
    DECODE = 2
    FINISHED = 3
    ABORTED = 4


@dataclass(slots=True, eq=False)
class Job:
    """A request inside the model; read its facts with `StepModel.progress`. Times are the caller's seconds.

    A stretch is what runs between two preemptions: it starts with a prefill of prompt_tokens plus done_tokens and gives
    its first token at the end of step `stretch_step`. done_tokens: the tokens of earlier stretches, all of them once
    the job is over.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    stage: Stage = Stage.WAITING
    done_tokens: int = 0
    computed_tokens: int = 0
    stretch_step: int = -1
    finish_step: int = -1
    first_token_s: float | None = None
    last_token_s: float | None = None
    gap_max_s: float | None = None
    preemptions: int = 0


class Progress(NamedTuple):
    """What a job has got so far; gap_max_s is the largest time between two of its tokens."""

    output_tokens: int
    first_token_s: float | None
    last_token_s: float | None
    gap_max_s: float | None


class StepOutcome(NamedTuple):
    """What one step did. gap_s: time since the end of the step before, which is the token gap of `decoded` jobs."""

    end_s: float
    gap_s: float
    decoded: int
    prefill_tokens: int
    first: Sequence[Job]
    finished: Sequence[Job]


class Driven(NamedTuple):
    """A whole probe, in the order of its due times. NaN where it never came; a job is over when ended_s is a number."""

    first_token_s: FloatArray
    last_token_s: FloatArray
    ended_s: FloatArray
    output_tokens: IntArray
    gap_max_s: FloatArray


class StepModel:
    """One server start. Two models with equal arguments that get equal calls give equal times.

    origin_s: the moment at which drift is 0, so that all models of one experiment share their drift.
    """

    def __init__(self, settings: EngineSettings, seed: int, start: int = 0, *, origin_s: float = 0.0) -> None:
        self.settings = settings
        self.kv_tokens = 0
        self.preemptions_total = 0
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self._pace = Pace(settings, seed, start, origin_s)
        self._running: dict[Job, None] = {}  # in order of admission
        self._waiting: deque[Job] = deque()  # aborted jobs stay until they reach the head
        self._waiting_count = 0
        self._decoding = 0
        self._partial: Job | None = None  # the one job whose prefill needs another step; always the latest admitted
        self._completing: list[Job] = []
        self._finishing: dict[int, list[Job]] = {}
        self._step = 0  # steps completed, so also the index of the step under way
        self._step_end_s: float | None = None
        self._prefill_tokens = 0
        self._last_end_s = -math.inf
        self._gaps: list[float] = []  # of step _gaps_from onwards
        self._gaps_from = 0
        self._seen_counts: set[int] = set()
        self._seen_shapes: set[int] = set()

    @property
    def running(self) -> int:
        """Jobs admitted and not over."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs not admitted yet, or preempted."""
        return self._waiting_count

    def submit(self, now_s: float, input_tokens: int, output_tokens: int) -> Job:
        """Queue a request; a step that starts before now_s does not see it. ValueError when it can never run."""
        if input_tokens < 1 or output_tokens < 1:
            raise ValueError(f"lengths must be at least 1: {input_tokens} in, {output_tokens} out")
        limit = self.settings.max_model_len
        if input_tokens + output_tokens > limit:
            raise ValueError(f"{input_tokens} + {output_tokens} tokens are more than max_model_len={limit}")
        job = Job(now_s, input_tokens, output_tokens)
        self._waiting.append(job)
        self._waiting_count += 1
        return job

    def abort(self, job: Job) -> None:
        """End a job now and free what it holds; the token of a step under way does not count."""
        if job.stage is Stage.WAITING:
            self._waiting_count -= 1
        elif job.stage in (Stage.PREFILL, Stage.DECODE):
            self._leave(job)
        else:
            return
        job.stage = Stage.ABORTED

    def progress(self, job: Job) -> Progress:
        """A job's facts up to the last completed step."""
        if job.stage is not Stage.DECODE:
            return Progress(job.done_tokens, job.first_token_s, job.last_token_s, job.gap_max_s)
        return Progress(self.tokens(job), job.first_token_s, self._last_end_s, self._gap_max_s(job))

    def tokens(self, job: Job) -> int:
        """How many tokens a job has got up to the last completed step; cheaper than its progress."""
        return job.done_tokens + (self._step - job.stretch_step if job.stage is Stage.DECODE else 0)

    def begin_step(self, now_s: float) -> float | None:
        """Schedule a step that starts at now_s; when it ends, or None when there is nothing to do."""
        if self._step_end_s is not None:
            raise RuntimeError("a step is under way")
        while self.kv_tokens + self._decoding > self.settings.kv_cache_tokens:
            self._preempt_latest()  # it heads the queue now and cannot fit, so nobody is admitted in this step
        decoded = self._decoding
        self.kv_tokens += decoded
        prefill = 0
        if self._waiting or self._partial:
            prefill = self._schedule_prefill(now_s, self.settings.max_num_batched_tokens - decoded)
        tokens = decoded + prefill
        if tokens == 0:
            return None
        duration_s = self.settings.step_s(tokens, self.kv_tokens) * self._pace.factor(now_s)
        count = -tokens if prefill else tokens
        if count not in self._seen_counts:
            self._seen_counts.add(count)
            shape = batch_shape(tokens, prefill)
            if shape not in self._seen_shapes:
                self._seen_shapes.add(shape)
                duration_s += self.settings.first_shape_cost_s
        self._prefill_tokens = prefill
        self._step_end_s = now_s + duration_s
        return self._step_end_s

    def end_step(self) -> StepOutcome:
        """Complete the step under way."""
        end_s, step = self._step_end_s, self._step
        if end_s is None:
            raise RuntimeError("no step is under way")
        gap_s = end_s - self._last_end_s
        self._gaps.append(gap_s)
        self._last_end_s, self._step_end_s, self._step = end_s, None, step + 1
        decoded = self._decoding
        self.generation_tokens_total += decoded
        finished = [job for job in self._finishing.pop(step, ()) if job.finish_step == step]
        first = self._complete_prefills(end_s, step, finished) if self._completing else ()
        for job in finished:
            self._leave(job)
            job.stage = Stage.FINISHED
        if len(self._gaps) > 4 * self.settings.max_model_len:  # and no stretch is longer than max_model_len
            self._gaps_from += len(self._gaps) - self.settings.max_model_len
            del self._gaps[: -self.settings.max_model_len]
        return StepOutcome(end_s, gap_s, decoded, self._prefill_tokens, first, finished)

    def drive(
        self, due_s: FloatArray, input_tokens: IntArray, output_tokens: IntArray, *, until_s: float = math.inf
    ) -> Driven:
        """Run a whole probe on an idle model: every request is submitted when due (seconds, ascending).

        After until_s no step begins, and what still runs is aborted.
        """
        due, inputs, outputs = due_s.tolist(), input_tokens.tolist(), output_tokens.tolist()
        jobs: list[Job] = []
        count, now_s = len(due), -math.inf
        while now_s < until_s:
            while len(jobs) < count and due[len(jobs)] <= now_s:
                index = len(jobs)
                jobs.append(self.submit(due[index], inputs[index], outputs[index]))
            end_s = self.begin_step(now_s)
            if end_s is not None:
                self.end_step()
                now_s = end_s
            elif len(jobs) < count:
                now_s = due[len(jobs)]
            else:
                break
        for job in jobs:
            self.abort(job)
        return _driven(jobs, count)

    def _preempt_latest(self) -> None:
        job = next(reversed(self._running))
        self._leave(job)
        job.stage = Stage.WAITING
        job.preemptions += 1
        self.preemptions_total += 1
        self._waiting.appendleft(job)
        self._waiting_count += 1

    def _schedule_prefill(self, now_s: float, budget: int) -> int:
        """Give the budget to the unfinished prefill, then to the queue; how many tokens were scheduled."""
        scheduled = 0
        if self._partial is not None:
            job = self._partial
            chunk = min(job.prompt_tokens + job.done_tokens - job.computed_tokens, budget)
            if self.kv_tokens + chunk > self.settings.kv_cache_tokens:
                self._preempt_latest()  # the partial job itself: it is the latest
                return 0
            self._prefill(job, chunk)
            scheduled = chunk
        while self._waiting and scheduled < budget and len(self._running) < self.settings.max_num_seqs:
            job = self._waiting[0]
            if job.stage is Stage.ABORTED:
                self._waiting.popleft()
                continue
            need = job.prompt_tokens + job.done_tokens
            if job.arrival_s > now_s or self.kv_tokens + need > self.settings.kv_cache_tokens:
                break
            self._waiting.popleft()
            self._waiting_count -= 1
            self._running[job] = None
            job.stage = Stage.PREFILL
            chunk = min(need, budget - scheduled)
            self._prefill(job, chunk)
            scheduled += chunk
        return scheduled

    def _prefill(self, job: Job, chunk: int) -> None:
        self.kv_tokens += chunk
        job.computed_tokens += chunk
        if job.computed_tokens == job.prompt_tokens + job.done_tokens:
            self._completing.append(job)
            self._partial = None
        else:
            self._partial = job

    def _complete_prefills(self, end_s: float, step: int, finished: list[Job]) -> list[Job]:
        """Give each completed prefill its token; adds to `finished` those that want no more. The first tokens."""
        first: list[Job] = []
        for job in self._completing:
            if job.stage is Stage.ABORTED:
                continue
            if job.last_token_s is not None:
                job.gap_max_s = max(job.gap_max_s or 0.0, end_s - job.last_token_s)
            else:
                job.first_token_s = end_s
                self.prompt_tokens_total += job.prompt_tokens
                first.append(job)
            self.generation_tokens_total += 1
            self._decoding += 1
            job.stage = Stage.DECODE
            job.stretch_step = step
            job.finish_step = step + job.output_tokens - job.done_tokens - 1
            if job.finish_step == step:
                finished.append(job)
            else:
                self._finishing.setdefault(job.finish_step, []).append(job)
        self._completing.clear()
        return first

    def _leave(self, job: Job) -> None:
        """Take a running job out, settle its facts and free its KV tokens."""
        del self._running[job]
        if self._partial is job:
            self._partial = None
        if job.stage is Stage.DECODE:
            last_step = self._step - (self._step_end_s is None)
            self.kv_tokens -= job.computed_tokens + last_step - job.stretch_step
            self._decoding -= 1
            job.done_tokens, _, job.last_token_s, job.gap_max_s = self.progress(job)
        else:
            self.kv_tokens -= job.computed_tokens
        job.computed_tokens = 0
        job.finish_step = -1

    def _gap_max_s(self, job: Job) -> float | None:
        """The largest gap of a decoding job; its stretch is a slice of the step gaps."""
        gaps = self._gaps[job.stretch_step + 1 - self._gaps_from :]
        if job.gap_max_s is not None:
            gaps.append(job.gap_max_s)
        return max(gaps, default=None)


def _driven(jobs: Sequence[Job], count: int) -> Driven:
    """The facts of jobs that are over, padded to `count` for those never submitted."""
    missing = count - len(jobs)

    def seconds(values: list[float | None]) -> FloatArray:
        return np.array(values + [None] * missing, dtype=np.float64)

    return Driven(
        first_token_s=seconds([job.first_token_s for job in jobs]),
        last_token_s=seconds([job.last_token_s for job in jobs]),
        ended_s=seconds([job.last_token_s if job.stage is Stage.FINISHED else None for job in jobs]),
        output_tokens=np.array([job.done_tokens for job in jobs] + [0] * missing, dtype=np.int64),
        gap_max_s=seconds([job.gap_max_s for job in jobs]),
    )
