"""Blocks on the step model: no event loop, no records, the product's schedule and the product's statistics."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from compiled import CompiledServer, IntArray, is_compiled

from gates.block import trend_shares
from gates.block_order import Order, crossed_pair
from gates.comparison import Pair
from gates.pooled import Cohort
from gates.slo import DEFAULT_SLO, Metric
from traffic.arrivals import POISSON
from traffic.step_model import EngineSettings, Job, StepModel
from traffic.workload import CHAT_MIX

FloatArray = npt.NDArray[np.float64]

RATE_RPS = 10.0
COHORT_S = 60.0
LEAST_RAMP_S = 15.0
DRAIN_S = 60.0
"""Longer than any answer of the mix takes at this rate."""

PAUSE_S = 0.5
"""From one block's cancellation to the next block's first request: an idle server of this kind needs less."""

WARM = EngineSettings(first_shape_cost_s=0.0)
"""Warm-up has met every batch shape."""

LIMITS_S = {objective.metric: objective.limit_s for objective in DEFAULT_SLO}


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one pair, to the end of the drain: due times (s), lengths, and the cohort's first and last."""

    due_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    cohort: tuple[int, int]
    cohort_s: float


@functools.lru_cache(maxsize=4)
def load(rate_rps: float, seed: int, repeat: int, ramp_s: float, cohort_s: float = COHORT_S) -> Load:
    due_s = POISSON.due_s(rate_rps, seed, repeat, ramp_s + cohort_s + DRAIN_S)
    lengths = CHAT_MIX.draw(seed, repeat, len(due_s))
    first, after = (int(index) for index in np.searchsorted(due_s, [ramp_s, ramp_s + cohort_s]))
    return Load(due_s, lengths.input_tokens, lengths.output_tokens, (first, after - 1), cohort_s)


@dataclass(frozen=True, slots=True)
class Block:
    """A block's cohort, the seconds of load that it took, its mean end-to-end latency and its trends."""

    cohort: Cohort
    load_s: float
    e2e_s: float
    trends: tuple[float, float] | None


class Drives(Protocol):
    """One start of a server. drive: see `compiled.CompiledServer`."""

    def drive(
        self, due_s: FloatArray, inputs: IntArray, outputs: IntArray, cohort: tuple[int, int]
    ) -> tuple[FloatArray, FloatArray, int]:
        """Run until the cohort has ended, then cancel everything."""
        ...


class SteppedServer:
    """One start on the step model itself."""

    def __init__(self, settings: EngineSettings, seed: int, start: int) -> None:
        self.model = StepModel(settings, seed, start)

    def drive(
        self, due_s: FloatArray, inputs: IntArray, outputs: IntArray, cohort: tuple[int, int]
    ) -> tuple[FloatArray, FloatArray, int]:
        """Run until the cohort has ended: times of first tokens, of ends, and how many requests were submitted."""
        model, due = self.model, due_s.tolist()
        jobs: list[Job] = []
        places: dict[int, int] = {}
        last_s = np.full(len(due), math.nan)
        open_cohort = cohort[1] - cohort[0] + 1
        now_s = due[0]
        while open_cohort:
            while due[len(jobs)] <= now_s:
                index = len(jobs)
                job = model.submit(due[index], int(inputs[index]), int(outputs[index]))
                places[id(job)] = index
                jobs.append(job)
            end_s = model.begin_step(now_s)
            if end_s is None:
                now_s = due[len(jobs)]
                continue
            for job in model.end_step().finished:
                index = places[id(job)]
                last_s[index] = end_s
                open_cohort -= cohort[0] <= index <= cohort[1]
            now_s = end_s
        for job in jobs:
            model.abort(job)
        first_s = np.full(len(due), math.nan)
        first_s[: len(jobs)] = [math.nan if job.first_token_s is None else job.first_token_s for job in jobs]
        return first_s, last_s, len(jobs)


def server(settings: EngineSettings, seed: int, start: int) -> Drives:
    """One start, compiled where numba is there."""
    return CompiledServer(settings, seed, start) if is_compiled() else SteppedServer(settings, seed, start)


def same_as_step_model(settings: EngineSettings, seed: int, pairs: int, ramp_s: float) -> bool:
    """Whether the compiled loop gives every time of the step model, to the last bit."""
    one, other = SteppedServer(settings, seed, 0), server(settings, seed, 0)
    now_s = 0.0
    for repeat in range(pairs):
        sent = load(RATE_RPS, seed, repeat, ramp_s)
        found = [
            each.drive(sent.due_s + now_s, sent.input_tokens, sent.output_tokens, sent.cohort) for each in (one, other)
        ]
        (first_s, last_s, count), (first_again_s, last_again_s, count_again) = found
        same = np.array_equal(first_s, first_again_s, equal_nan=True) and np.array_equal(
            last_s, last_again_s, equal_nan=True
        )
        if not same or count != count_again:
            return False
        now_s += 100.0
    return True


def run_block(running: Drives, sent: Load, began_s: float) -> Block:
    """One block on an idle server."""
    first, last = sent.cohort
    first_token_s, ended_s, submitted = running.drive(
        sent.due_s + began_s, sent.input_tokens, sent.output_tokens, sent.cohort
    )
    members = slice(first, last + 1)
    first_s, last_s = first_token_s[members] - began_s, ended_s[members] - began_s
    ttft_s = first_s - sent.due_s[members]
    tokens = sent.output_tokens[members]
    several = tokens > 1
    tpot_s = (last_s - first_s)[several] / (tokens[several] - 1)
    slow = np.zeros(len(tokens), dtype=bool)
    slow[several] = tpot_s > LIMITS_S[Metric.TPOT]
    good = int(np.sum(~slow & (ttft_s <= LIMITS_S[Metric.TTFT])))
    trends = trend_shares(
        first_s[several],
        last_s[several],
        tpot_s,
        begun_s=sent.due_s[:submitted],
        ended_s=np.sort(ended_s[~np.isnan(ended_s)]) - began_s,
        duration_s=sent.cohort_s,
    )
    return Block(
        cohort=Cohort(tpot_s, ttft_s, float(tpot_s.mean()), float(ttft_s.mean()), good, sent.cohort_s),
        load_s=float(last_s.max()),
        e2e_s=float((last_s - sent.due_s[members]).mean()),
        trends=trends,
    )


@dataclass(frozen=True, slots=True)
class Arms:
    """Two configurations, and how many servers of each there are. ramp_s: of every block."""

    a: EngineSettings
    b: EngineSettings
    ramp_s: float
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    """One comparison: its pairs, the seconds of load, and the trends of both arms' blocks."""

    pairs: tuple[Pair, ...]
    load_s: float
    trends: tuple[list[tuple[float, float]], list[tuple[float, float]]]


def run_comparison(arms: Arms, seed: int, pairs: int) -> Run:
    """Servers side by side on one machine, blocks A B B A: one clock, so one drift; noise and offset per server."""
    servers = {
        arm: [server(settings, seed, 2 * each + side) for each in range(arms.instances)]
        for side, (arm, settings) in enumerate((("a", arms.a), ("b", arms.b)))
    }
    found: list[Pair] = []
    trends: dict[str, list[tuple[float, float]]] = {"a": [], "b": []}
    now_s = load_s = 0.0
    for number in range(pairs):
        planned = crossed_pair(number, Order.ABBA, seed, arms.instances)
        sent = load(RATE_RPS, seed, number, arms.ramp_s)
        cohorts: dict[str, Cohort] = {}
        for arm in ("a", "b") if planned.a_first else ("b", "a"):
            running = servers[arm][planned.start_a if arm == "a" else planned.start_b]
            block = run_block(running, sent, now_s)
            cohorts[arm] = block.cohort
            if block.trends is not None:
                trends[arm].append(block.trends)
            now_s += block.load_s + PAUSE_S
            load_s += block.load_s
        found.append(Pair(number, cohorts["a"], cohorts["b"], planned.a_first, planned.start_a, planned.start_b))
    return Run(tuple(found), load_s, (trends["a"], trends["b"]))


def pair_ratios(
    a: EngineSettings, b: EngineSettings, seed: int, pairs: int, *, ramp_s: float, cohort_s: float = COHORT_S
) -> FloatArray:
    """ln(B / A) of mean TPOT of partners on two fresh servers, one pair per seed."""
    values = []
    for each in range(seed, seed + pairs):
        sent = load(RATE_RPS, each, 0, ramp_s, cohort_s)
        values.append(
            math.log(
                (run_block(server(b, each, 1), sent, 0.0).cohort.tpot_mean_s or math.nan)
                / (run_block(server(a, each, 0), sent, 0.0).cohort.tpot_mean_s or math.nan)
            )
        )
    return np.array(values)


def quiet(settings: EngineSettings) -> EngineSettings:
    """The same engine without noise, offset and drift: what truth is computed on."""
    return dataclasses.replace(
        settings, step_noise_share=0.0, wander_share=0.0, start_offset_share=0.0, drift_share_per_hour=0.0
    )
