"""How well the published search finds a capacity that is known: error, interval, proof, and the load that it takes.

    python benchmarks/search [--seeds 40] [--first-seed 0] [--jobs 2] [--settings noise drift ...]

Each seed is one server start and one draw of the load; a search on it goes window by window as `slo-bench sweep` does,
with the product's schedule, referee, verdicts and strategy, on the step model without an event loop. Printed is a
Markdown table; the truth is that of truth.py.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from server import Server
from settings import SETTINGS, SLOW_FACTOR, TRUE_RPS

from gates.capacity import Observation
from gates.estimate import Estimate, capacity_estimate
from gates.margin import Proof, WindowSample, proof, window_sample
from gates.referee import SloReferee
from gates.verdict import judge_probe
from slo_bench.search import Measure, SearchSettings, next_step

WINDOW_S = 120.0
CLOSE_SHARE = 0.05
BANDS = ((0.0, 0.03), (0.03, 0.12), (0.12, math.inf))
"""Distances of a rate from the true capacity, as shares."""


@dataclass(frozen=True, slots=True)
class Found:
    """One search. proofs: of each rate with all its windows, by its distance from the truth (share, negative below)."""

    true_rps: float
    capacity_rps: float | None
    estimate: Estimate | None
    load_s: float
    windows: int
    proofs: tuple[tuple[float, Proof | None], ...]


def true_rps(name: str, elapsed_s: float) -> float:
    """The capacity at a moment: drift makes steps slower, and a power law goes through the two known capacities."""
    plain_rps, slow_rps = TRUE_RPS[name]
    factor = 1 + SETTINGS[name].engine.drift_share_per_hour * elapsed_s / 3600
    return plain_rps * (slow_rps / plain_rps) ** (math.log(factor) / math.log(SLOW_FACTOR))


def search(name: str, seed: int) -> Found:
    """One search by the published strategy."""
    setting, settings = SETTINGS[name], SearchSettings()
    server = Server(setting, seed)
    seen: list[Observation] = []
    samples: dict[float, list[WindowSample]] = {}
    while isinstance(step := next_step(settings, seen), Measure):
        facts = server.window(step.rate_rps, step.repeat, WINDOW_S, lambda schedule: SloReferee(setting.slo, schedule))
        verdict = judge_probe(facts, setting.slo)
        if verdict.outcome is None:
            raise ValueError(f"{name}, seed {seed}: invalid window: {'; '.join(verdict.invalid_reasons)}")
        seen.append(Observation(step.rate_rps, step.repeat, verdict.outcome.passed))
        samples.setdefault(step.rate_rps, []).append(window_sample(verdict))
    truth_rps = true_rps(name, server.now_s / 2)
    return Found(
        true_rps=truth_rps,
        capacity_rps=step.capacity_rps,
        estimate=capacity_estimate(setting.slo, [each for same in samples.values() for each in same]),
        load_s=server.load_s,
        windows=len(seen),
        proofs=tuple((rate / truth_rps - 1, proof(setting.slo, same)) for rate, same in sorted(samples.items())),
    )


def percent(share: float, digits: int = 1) -> str:
    return "n/a" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def errors(found: Sequence[Found], values: Sequence[float | None]) -> str:
    """Median error, median size of it, and how many are within 5 % (none counts as outside)."""
    off = np.array([each / one.true_rps - 1 for one, each in zip(found, values, strict=True) if each is not None])
    if not len(off):
        return "none"
    inside = np.sum(np.abs(off) <= CLOSE_SHARE) / len(values)
    return f"{100 * np.median(off):+.1f} %, {percent(float(np.median(np.abs(off))))}, {percent(inside, 0)}"


def proofs(found: Sequence[Found], band: tuple[float, float]) -> str:
    """Proven and wrong among the rates in a band, as counts."""
    low, high = band
    inside = [(off, proven) for one in found for off, proven in one.proofs if low <= abs(off) < high]
    proven = [(off, each) for off, each in inside if each in (Proof.PASS, Proof.FAIL)]
    wrong = sum((each is Proof.PASS) == (off > 0) for off, each in proven)
    return f"{len(proven)}/{len(inside)}, {wrong}"


def row(name: str, found: Sequence[Found]) -> str:
    estimates = [each.estimate for each in found]
    known = [(one, each) for one, each in zip(found, estimates, strict=True) if each is not None]
    covered = [each.low_rps <= one.true_rps <= each.high_rps for one, each in known]
    widths = [each.high_rps / each.low_rps - 1 for _, each in known]
    cells = [
        name,
        f"{np.median([each.true_rps for each in found]):.2f}",
        errors(found, [each.capacity_rps for each in found]),
        errors(found, [None if each is None else each.rps for each in estimates]),
        f"{percent(float(np.mean(covered)), 0) if covered else 'n/a'} of {len(known)}",
        percent(float(np.median(widths))) if widths else "n/a",
        *(proofs(found, band) for band in BANDS),
        f"{np.median([each.windows for each in found]):.0f}",
        f"{np.median([each.load_s for each in found]) / 60:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


HEADER = (
    "setting",
    "true req/s",
    "capacity: error, size, within 5 %",
    "estimate: error, size, within 5 %",
    "90 % interval holds the truth",
    "its width",
    "proven, wrong: within 3 %",
    "3 to 12 %",
    "beyond",
    "windows",
    "load min",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40, help="searches per setting")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--settings", nargs="*", default=list(TRUE_RPS), choices=list(TRUE_RPS), metavar="NAME")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    started_s = time.perf_counter()
    print(f"SIMULATED; seeds {seeds.start} to {seeds.stop - 1}: python benchmarks/search {' '.join(sys.argv[1:])}\n")
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    everything: list[Found] = []
    with multiprocessing.Pool(options.jobs) as pool:
        for name in options.settings:
            found = pool.starmap(search, [(name, seed) for seed in seeds], chunksize=1)
            print(row(name, found), flush=True)
            everything += found
    print(row("all", everything))
    print(f"\nError and its size are medians over the seeds; {time.perf_counter() - started_s:.0f} s")


if __name__ == "__main__":
    main()
