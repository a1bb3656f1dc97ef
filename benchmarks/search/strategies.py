"""The three strategies, each a search on one server start: published, economical, and doubling with bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fast import FastServer
from settings import SETTINGS, SLOW_FACTOR, TRUE_RPS

from gates.capacity import MOST_AT_ONE_RATE, Capacity, CapacityVerdict, Observation, Tally, concluded
from gates.estimate import Estimate, capacity_estimate
from gates.margin import Proof, WindowSample, proofs
from gates.referee import RateSoFar
from slo_bench import economical
from slo_bench.modes import mode_named
from slo_bench.search import Measure, SearchSettings, next_step, round_rate
from traffic.probe import Stop

QUICK = mode_named("quick")
AGREEING = 2


@dataclass(frozen=True, slots=True)
class Found:
    """One search. proofs, stops: by the distance of each rate from the truth (share, negative below)."""

    true_rps: float
    capacity_rps: float | None
    estimate: Estimate | None
    load_s: float
    windows: int
    contradictions: int
    unclear: int
    proofs: tuple[tuple[float, Proof | None], ...]
    stops: tuple[tuple[float, Stop], ...]


def true_rps(name: str, elapsed_s: float) -> float:
    """The capacity at a moment: drift makes steps slower, and a power law goes through the two known capacities."""
    plain_rps, slow_rps = TRUE_RPS[name]
    factor = 1 + SETTINGS[name].engine.drift_share_per_hour * elapsed_s / 3600
    return plain_rps * (slow_rps / plain_rps) ** (math.log(factor) / math.log(SLOW_FACTOR))


def published(name: str, seed: int) -> Found:
    """As `slo-bench sweep --strategy published` goes."""
    server, plan = FastServer(SETTINGS[name], seed), SearchSettings()
    windows: list[WindowSample] = []
    seen: list[Observation] = []
    while isinstance(step := next_step(plan, seen), Measure):
        windows.append(server.window(step.rate_rps, step.repeat, QUICK.window_s(step.rate_rps, server.setting.slo)))
        seen.append(Observation(step.rate_rps, step.repeat, windows[-1].outcome.passed))
    return _found(name, server, windows, step)


def economic(name: str, seed: int) -> Found:
    """As `slo-bench sweep --strategy economical` goes."""
    server, plan = FastServer(SETTINGS[name], seed), SearchSettings()
    slo = server.setting.slo
    economy = economical.Economy(
        slo, lambda rate: QUICK.window_s(rate, slo), lambda rate: QUICK.short_window_s(rate, slo)
    )
    windows: list[WindowSample] = []
    while isinstance(step := economical.next_step(plan, economy, windows), Measure):
        same = [each for each in windows if each.rate_rps == step.rate_rps]
        so_far = RateSoFar(same, max(0, MOST_AT_ONE_RATE - len(same) - 1))
        windows.append(server.window(step.rate_rps, step.repeat, step.duration_s or QUICK.duration_s, so_far))
    return _found(name, server, windows, step)


def doubling(name: str, seed: int) -> Found:
    """Twice the rate until it fails, half until it passes, then geometric midpoints down to 3 %.

    Trials of 120 s with fresh draws; a rate's verdict is what two trials agree on.
    """
    server, plan = FastServer(SETTINGS[name], seed), SearchSettings()
    windows: list[WindowSample] = []

    def passes(rate_rps: float) -> bool:
        votes: list[bool] = []
        while max(votes.count(True), votes.count(False)) < AGREEING:
            windows.append(server.window(rate_rps, len(windows), QUICK.window_s(rate_rps, server.setting.slo)))
            votes.append(windows[-1].outcome.passed)
        return votes.count(True) >= AGREEING

    low, high = None, None
    rate_rps = plan.start_rps
    while low is None or high is None:
        if passes(rate_rps):
            low, rate_rps = rate_rps, 2 * rate_rps
        else:
            high, rate_rps = rate_rps, rate_rps / 2
    while high / low - 1 > plan.resolution_share:
        middle = round_rate(math.sqrt(low * high))
        low, high = (middle, high) if passes(middle) else (low, middle)
    ends = (Tally(low, AGREEING, AGREEING, holds=True), Tally(high, 0, AGREEING, holds=False))
    return _found(name, server, windows, concluded(ends, CapacityVerdict.FOUND))


def _found(name: str, server: FastServer, windows: Sequence[WindowSample], answer: Capacity) -> Found:
    truth = true_rps(name, server.now_s / 2)
    slo = server.setting.slo
    return Found(
        true_rps=truth,
        capacity_rps=answer.capacity_rps,
        estimate=capacity_estimate(slo, windows),
        load_s=server.load_s,
        windows=len(windows),
        contradictions=len(answer.contradictions),
        unclear=len(answer.unclear),
        proofs=tuple((rate / truth - 1, proven) for rate, proven in proofs(slo, windows).items()),
        stops=tuple((rate / truth - 1, why) for rate, why in server.stops),
    )


STRATEGIES: dict[str, Callable[[str, int], Found]] = {
    "published": published,
    "economical": economic,
    "doubling": doubling,
}
