"""Windows as `server.Server` measures them, computed as arrays on the compiled loop; a test holds both side by side.

Each window begins a noise of its own (start: its number), where a server's goes on; drift goes on from window to
window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from compiled import FloatArray, IntArray, drive
from server import RAMP_S, SETTLING_S
from settings import Setting

from gates.draw import LongDraw, LongRun, Offered
from gates.early_proof import GRACE_S, LEAST_S
from gates.margin import BLOCK_S, Proof, Values, WindowSample, proof, reading
from gates.referee import CROWD_SIGMAS, Block, RateSoFar, is_growing, pooled_limit
from gates.slo import Metric, ObjectiveResult, drain_limit_s
from gates.verdict import Outcome
from traffic.arrivals import Arrivals
from traffic.probe import Stop
from traffic.summary import allowed
from traffic.workload import CHAT_MIX

BoolArray = npt.NDArray[np.bool_]


@lru_cache(maxsize=8)
def long_of(arrivals: Arrivals) -> LongDraw:
    """One long draw for all searches."""
    return LongDraw(CHAT_MIX, arrivals)


@dataclass(frozen=True)
class Load:
    """What a server does with a window's load if nobody ends it; times in seconds after the probe's start.

    logs: per objective the logarithm of the metric, infinite where the request did not end, NaN where it has none.
    """

    setting: Setting
    rate_rps: float
    duration_s: float
    due_s: FloatArray
    inputs: IntArray
    outputs: IntArray
    cohort: BoolArray
    ended_s: FloatArray
    logs: tuple[FloatArray, ...]
    drain_end_s: float

    @cached_property
    def blocks(self) -> IntArray:
        """The block of each request."""
        last = max(1, int(self.duration_s / BLOCK_S)) - 1
        return np.clip(((self.due_s - RAMP_S) / BLOCK_S).astype(np.int64), 0, last)

    @property
    def complete_s(self) -> float:
        """The look at which all of the cohort have ended; infinite where they do not."""
        last_s = float(self.ended_s[self.cohort].max())
        return max(RAMP_S + self.duration_s, float(np.ceil(last_s)))

    def over(self, index: int, is_in: BoolArray) -> BoolArray:
        """Those of the cohort that are over an objective's limit."""
        limit = math.log(self.setting.slo[index].limit_s)
        return is_in & (np.nan_to_num(self.logs[index], nan=-math.inf) > limit)

    def values(self, index: int, is_in: BoolArray, quick: int = 0) -> Values:
        """An objective's metric in some of the cohort."""
        logs = self.logs[index]
        has = is_in & np.isfinite(logs)
        members = np.nonzero(has)[0]
        return Values(members, self.blocks[members], logs[members], int(np.sum(is_in & np.isinf(logs))), quick)


def load(setting: Setting, seed: int, start: int, began_s: float, step: tuple[float, int, float]) -> Load:
    """A window's load on a server. began_s: when it began, after the server's start. step: rate, repeat, seconds."""
    rate_rps, repeat, duration_s = step
    end_s = RAMP_S + duration_s
    horizon_s = end_s + drain_limit_s(setting.slo, CHAT_MIX.max_output_tokens)
    due_s = setting.arrivals.due_s(rate_rps, seed, repeat, horizon_s)
    lengths = CHAT_MIX.draw(seed, repeat, len(due_s))
    cohort = (due_s >= RAMP_S) & (due_s < end_s)
    drain_end_s = end_s + drain_limit_s(setting.slo, int(lengths.output_tokens[cohort].max()))
    inputs, outputs = lengths.input_tokens, lengths.output_tokens
    first_s, last_s, ended_s = drive(setting.engine, (seed, start), -began_s, (due_s, inputs, outputs), drain_end_s)
    is_open = ~(ended_s <= drain_end_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = {
            Metric.TTFT: np.log(first_s - due_s),
            Metric.TPOT: np.where(outputs > 1, np.log((last_s - first_s) / (outputs - 1)), np.nan),
        }
    return Load(
        setting=setting,
        rate_rps=rate_rps,
        duration_s=duration_s,
        due_s=due_s,
        inputs=inputs,
        outputs=outputs,
        cohort=cohort,
        ended_s=np.where(is_open, np.inf, ended_s),
        logs=tuple(np.where(is_open, np.inf, logs[each.metric]) for each in setting.slo),
        drain_end_s=drain_end_s,
    )


def stop_of(found: Load, so_far: RateSoFar | None) -> tuple[Stop, float]:
    """Why and when a referee that looks once a second ends it."""
    stops: list[tuple[float, int, Stop]] = [(math.ceil(found.drain_end_s), 4, Stop.DRAIN_LIMIT)]
    stops.append((found.complete_s, 3, Stop.COMPLETE))
    n = int(found.cohort.sum())
    for index, objective in enumerate(found.setting.slo):
        most = allowed(n, objective.percentile)
        if so_far is not None:
            most = pooled_limit(so_far, index, objective, n)
        ends = np.sort(found.ended_s[found.over(index, found.cohort & np.isfinite(found.ended_s))])
        if len(ends) > most:
            stops.append((math.ceil(ends[most]), 0, Stop.LOST))
    before = min(stops)[0]
    if (growth_s := _growth_s(found, before)) is not None:
        stops.append((growth_s, 1, Stop.GROWTH))
    if so_far is not None and (proven_s := _proven_s(found, so_far.windows, min(stops)[0])) is not None:
        stops.append((proven_s, 2, Stop.PROVEN))
    at_s, _, why = min(stops)
    return why, float(at_s)


def _growth_s(found: Load, before_s: float) -> float | None:
    """The first second at which in-flight grows without bound."""
    seconds = np.arange(1, int(before_s) + 1)
    sent = np.searchsorted(found.due_s, seconds, side="right")
    done = np.searchsorted(np.sort(found.ended_s), seconds, side="right")
    ceiling = found.rate_rps * drain_limit_s(found.setting.slo, int(found.outputs[found.cohort].max()))
    crowded = np.nonzero(sent - done > ceiling + CROWD_SIGMAS * math.sqrt(ceiling))[0]
    first_s = float(seconds[crowded[0]]) if len(crowded) else math.inf
    blocks: list[Block] = []
    for second in range(int(BLOCK_S), int(min(before_s, RAMP_S + found.duration_s + 1)) + 1, int(BLOCK_S)):
        all_sent, all_done = int(sent[second - 1]), int(done[second - 1])
        blocks.append(
            Block(
                all_sent - sum(each.arrivals for each in blocks),
                all_done - sum(each.completions for each in blocks),
                all_sent - all_done,
            )
        )
        if is_growing(blocks[1:]):
            return min(first_s, second)
    return first_s if first_s < math.inf else None


def _proven_s(found: Load, earlier: Sequence[WindowSample], before_s: float) -> float | None:
    """As `gates.early_proof` looks at it."""
    count = max(1, int(found.duration_s / BLOCK_S))
    for blocks in range(1, count + 1):
        now_s = max(RAMP_S + blocks * BLOCK_S + GRACE_S, RAMP_S + LEAST_S)
        if now_s >= before_s:
            return None
        inside = found.cohort & (found.blocks < blocks)
        ended = inside & (found.ended_s <= now_s)
        still_open = int(inside.sum() - ended.sum())
        readings = tuple(
            reading(each, found.values(index, ended, still_open), None) for index, each in enumerate(found.setting.slo)
        )
        sample = WindowSample(found.rate_rps, 0, found.duration_s, Outcome.PASS, still_open == 0, (), readings)
        if proof(found.setting.slo, [*earlier, sample]) in (Proof.PASS, Proof.FAIL):
            return now_s
    return None


def judged(found: Load, repeat: int, why: Stop, at_s: float) -> WindowSample:
    """The verdict on a window and what it tells."""
    slo = found.setting.slo
    is_resolved = found.cohort & (~np.array(why.is_early) | (found.ended_s <= at_s))
    results, readings = [], []
    is_open = np.isin(found.blocks, np.unique(found.blocks[found.cohort & ~is_resolved]))
    run = _long_run(found, is_resolved, at_s)
    for index, objective in enumerate(slo):
        n = int(np.sum(is_resolved & ~np.isnan(found.logs[index])))
        over = int(found.over(index, is_resolved).sum())
        results.append(ObjectiveResult(objective, n, over, allowed(n, objective.percentile), None))
        readings.append(reading(objective, found.values(index, is_resolved & ~is_open), run))
    outcome = Outcome.PASS if all(each.holds for each in results) else Outcome.FAIL
    return WindowSample(
        rate_rps=found.rate_rps,
        repeat=repeat,
        duration_s=found.duration_s,
        outcome=Outcome.UNSTABLE if why is Stop.GROWTH else outcome,
        is_whole=not why.is_early,
        results=tuple(results),
        readings=tuple(readings),
    )


def _long_run(found: Load, is_resolved: BoolArray, at_s: float) -> LongRun | None:
    """The usual time of a token is the median over the cohort's answers that ended."""
    tokens = is_resolved & np.isfinite(found.ended_s) & (found.outputs > 1)
    if not tokens.any():
        return None
    tpot = next(logs for each, logs in zip(found.setting.slo, found.logs, strict=True) if each.metric is Metric.TPOT)
    sent = found.due_s <= at_s
    offered = Offered(found.due_s[sent], found.inputs[sent], found.outputs[sent])
    return LongRun(offered, long_of(found.setting.arrivals), found.rate_rps, float(np.exp(np.median(tpot[tokens]))))


class FastServer:
    """One start of the simulated engine, measured window after window."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.seed = seed
        self.now_s = 0.0
        self.load_s = 0.0
        self.stops: list[tuple[float, Stop]] = []

    def window(self, rate_rps: float, repeat: int, duration_s: float, so_far: RateSoFar | None = None) -> WindowSample:
        """Measure one window and leave the server idle."""
        found = load(self.setting, self.seed, len(self.stops), self.now_s, (rate_rps, repeat, duration_s))
        why, at_s = stop_of(found, so_far)
        self.now_s += at_s + SETTLING_S
        self.load_s += at_s
        self.stops.append((rate_rps, why))
        return judged(found, repeat, why, at_s)

    def whole_window(self, rate_rps: float, repeat: int, duration_s: float) -> WindowSample:
        """A window that no referee ends, as at the anchor."""
        found = load(self.setting, self.seed, len(self.stops), self.now_s, (rate_rps, repeat, duration_s))
        return judged(found, repeat, Stop.COMPLETE, min(found.drain_end_s, found.complete_s))
