"""Blocks on the step model itself: no event loop, no records, the product's schedule and the product's statistics."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates.block import trend_shares
from gates.block_order import Order, crossed_pair
from gates.comparison import Pair
from gates.pooled import Cohort
from gates.slo import DEFAULT_SLO, Metric
from traffic.arrivals import POISSON
from traffic.step_model import EngineSettings, StepModel
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
    """The requests of one pair: due times (s) and lengths, from the ramp to the end of the drain; the cohort's mask."""

    due_s: FloatArray
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    in_cohort: npt.NDArray[np.bool_]
    cohort_s: float


@functools.lru_cache(maxsize=4)
def load(rate_rps: float, seed: int, repeat: int, ramp_s: float, cohort_s: float = COHORT_S) -> Load:
    due_s = POISSON.due_s(rate_rps, seed, repeat, ramp_s + cohort_s + DRAIN_S)
    lengths = CHAT_MIX.draw(seed, repeat, len(due_s))
    in_cohort = (due_s >= ramp_s) & (due_s < ramp_s + cohort_s)
    return Load(due_s, lengths.input_tokens, lengths.output_tokens, in_cohort, cohort_s)


@dataclass(frozen=True, slots=True)
class Block:
    """A block's cohort, the seconds of load that it took, its mean end-to-end latency and its trends."""

    cohort: Cohort
    load_s: float
    e2e_s: float
    trends: tuple[float, float] | None


def run_block(model: StepModel, sent: Load, began_s: float) -> Block:
    """Drive an idle model until the last request of the cohort has ended; then everything is cancelled."""
    due = (sent.due_s + began_s).tolist()
    inputs, outputs = sent.input_tokens.tolist(), sent.output_tokens.tolist()
    first, last = (int(index) for index in np.flatnonzero(sent.in_cohort)[[0, -1]])
    open_cohort = last - first + 1
    jobs, places = [], {}
    ended = np.full(len(due), math.nan)
    now_s = due[0]
    while open_cohort:
        while due[len(jobs)] <= now_s:
            index = len(jobs)
            job = model.submit(due[index], inputs[index], outputs[index])
            places[id(job)] = index
            jobs.append(job)
        end_s = model.begin_step(now_s)
        if end_s is None:
            now_s = due[len(jobs)]
            continue
        for job in model.end_step().finished:
            index = places[id(job)]
            ended[index] = end_s
            open_cohort -= first <= index <= last
        now_s = end_s
    for job in jobs:
        model.abort(job)
    members = jobs[first : last + 1]
    first_s = np.array([job.first_token_s for job in members]) - began_s
    last_s = np.array([job.last_token_s for job in members]) - began_s
    ttft_s = first_s - sent.due_s[first : last + 1]
    tokens = sent.output_tokens[first : last + 1]
    several = tokens > 1
    tpot_s = (last_s - first_s)[several] / (tokens[several] - 1)
    slow = np.zeros(len(members), dtype=bool)
    slow[several] = tpot_s > LIMITS_S[Metric.TPOT]
    good = int(np.sum(~slow & (ttft_s <= LIMITS_S[Metric.TTFT])))
    cohort = Cohort(tpot_s, ttft_s, float(tpot_s.mean()), float(ttft_s.mean()), good, sent.cohort_s)
    trends = trend_shares(
        first_s[several],
        last_s[several],
        tpot_s,
        begun_s=sent.due_s[: len(jobs)],
        ended_s=np.sort(ended[~np.isnan(ended)]) - began_s,
        duration_s=sent.cohort_s,
    )
    return Block(cohort, now_s - began_s, float((last_s - sent.due_s[first : last + 1]).mean()), trends)


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
        arm: [StepModel(settings, seed, 2 * each + side) for each in range(arms.instances)]
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
            model = servers[arm][planned.start_a if arm == "a" else planned.start_b]
            block = run_block(model, sent, now_s)
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
                (run_block(StepModel(b, each, 1), sent, 0.0).cohort.tpot_mean_s or math.nan)
                / (run_block(StepModel(a, each, 0), sent, 0.0).cohort.tpot_mean_s or math.nan)
            )
        )
    return np.array(values)


def quiet(settings: EngineSettings) -> EngineSettings:
    """The same engine without noise, offset and drift: what truth is computed on."""
    return dataclasses.replace(
        settings, step_noise_share=0.0, wander_share=0.0, start_offset_share=0.0, drift_share_per_hour=0.0
    )
