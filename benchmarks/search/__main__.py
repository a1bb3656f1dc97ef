"""How well each strategy finds a capacity that is known: error, interval, proof, and the load that it takes.

    python benchmarks/search [--seeds 300] [--first-seed 0] [--jobs 2] [--settings noise drift ...] [--proofs]

Each seed is one server start and one draw of the load. A search on it goes window by window as `slo-bench sweep` does,
with the product's schedule, strategy, verdicts, margins and estimate; the server and the referee are computed as arrays
on a compiled copy of the step model's loop (numba), which tests hold against the product. --proofs: what one window of
120 s proves at fixed distances from the capacity, without drift. Printed are Markdown tables; the truth is truth.py's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.pool
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from compiled import is_compiled
from fast import FastServer
from scipy.stats import beta
from settings import SETTINGS, TRUE_RPS
from strategies import STRATEGIES, Found

from gates.margin import Proof, proof
from traffic.probe import Stop

CLOSE_SHARE = 0.05
SAFE_SHARE = -0.05
"""Rates at or below 95 % of the capacity: growth there is false."""

NEAR_SHARE, FAR_SHARE = 0.03, 0.12
DISTANCES = (-FAR_SHARE, -NEAR_SHARE, 0.0, NEAR_SHARE, FAR_SHARE)
WINDOW_S = 120.0


def share(hits: int, n: int) -> str:
    """A share with its 99 % interval (Clopper and Pearson)."""
    if n == 0:
        return "none"
    low = 0.0 if hits == 0 else float(beta.ppf(0.005, hits, n - hits + 1))
    high = 1.0 if hits == n else float(beta.ppf(0.995, hits + 1, n - hits))
    return f"{100 * hits / n:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def off(found: Sequence[Found], value: Callable[[Found], float | None]) -> str:
    """Median error and the median of its size; a search without a value counts as infinitely far off."""
    values = [(one.true_rps, value(one)) for one in found]
    errors = np.array([np.inf if each is None else each / truth - 1 for truth, each in values])
    return f"{100 * np.median(errors):+.1f} %, {100 * np.median(np.abs(errors)):.1f} %"


def row(name: str, found: Sequence[Found]) -> str:
    estimates = [(one.true_rps, one.estimate) for one in found]
    known = [(truth, each) for truth, each in estimates if each is not None]
    growth = [why is Stop.GROWTH for one in found for distance, why in one.stops if distance <= SAFE_SHARE]
    near = [(distance, each) for one in found for distance, each in one.proofs if abs(distance) <= NEAR_SHARE]
    wrong = sum(
        (each is Proof.PASS and distance > 0) or (each is Proof.FAIL and distance < 0) for distance, each in near
    )
    far = [each for one in found for distance, each in one.proofs if abs(distance) >= FAR_SHARE]
    proven = sum(each in (Proof.PASS, Proof.FAIL) for each in far)
    loads = [each.load_s / 60 for each in found]
    cells = [
        name,
        off(found, lambda one: one.capacity_rps),
        off(found, lambda one: None if one.estimate is None else one.estimate.rps),
        share(sum(abs(each.rps / truth - 1) <= CLOSE_SHARE for truth, each in known), len(found)),
        share(sum(each.low_rps <= truth <= each.high_rps for truth, each in known), len(known)),
        f"{100 * np.median([each.high_rps / each.low_rps - 1 for _, each in known]):.1f} %" if known else "n/a",
        f"{np.median(loads):.1f} ({np.quantile(loads, 0.9):.1f})",
        f"{np.mean([each.windows for each in found]):.1f}",
        share(sum(growth), len(growth)),
        f"{wrong}/{len(near)}, {proven}/{len(far)}",
        f"{sum(each.contradictions > 0 for each in found)}, {sum(each.unclear > 0 for each in found)}",
    ]
    return f"| {' | '.join(cells)} |"


HEADER = (
    "strategy, setting",
    "capacity: error, size",
    "estimate: error, size",
    "estimate within 5 %",
    "90 % interval holds the truth",
    "its width",
    "load min (90 %)",
    "windows",
    "false growth",
    "rates: wrongly proven within 3 %, proven from 12 %",
    "contradictions, unclear",
)


def proven_at(name: str, distance: float, seed: int) -> Proof | None:
    """What one window of 120 s proves."""
    setting = SETTINGS[name]
    steady = replace(setting, engine=replace(setting.engine, drift_share_per_hour=0.0))
    rate_rps = TRUE_RPS[name][0] * (1 + distance)
    return proof(setting.slo, [FastServer(steady, seed).whole_window(rate_rps, 0, WINDOW_S)])


def proof_table(names: Sequence[str], seeds: range, pool: multiprocessing.pool.Pool) -> None:
    """A row per setting and distance."""
    print("| setting | distance from the capacity | pass proven | fail proven |\n|---|--:|---|---|")
    everything: dict[float, list[Proof | None]] = {}
    for name in names:
        for distance in DISTANCES:
            found = pool.starmap(proven_at, [(name, distance, seed) for seed in seeds], chunksize=10)
            print(proof_row(name, distance, found), flush=True)
            everything.setdefault(distance, []).extend(found)
    for distance, found in everything.items():
        print(proof_row("all", distance, found))


def proof_row(name: str, distance: float, found: Sequence[Proof | None]) -> str:
    passed, failed = (share(found.count(each), len(found)) for each in (Proof.PASS, Proof.FAIL))
    return f"| {name} | {100 * distance:+.0f} % | {passed} | {failed} |"


def search_table(
    strategies: Sequence[str], names: Sequence[str], seeds: range, pool: multiprocessing.pool.Pool
) -> None:
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    for strategy in strategies:
        everything: list[Found] = []
        for name in names:
            found = pool.starmap(STRATEGIES[strategy], [(name, seed) for seed in seeds], chunksize=5)
            print(row(f"{strategy}, {name}", found), flush=True)
            everything += found
        print(row(f"{strategy}, all", everything), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300, help="searches per setting")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--settings", nargs="*", default=list(TRUE_RPS), choices=list(TRUE_RPS), metavar="NAME")
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES), choices=list(STRATEGIES), metavar="NAME")
    parser.add_argument("--proofs", action="store_true", help="what a window proves at fixed distances, no searches")
    options = parser.parse_args()
    if not is_compiled():
        parser.exit(2, "numba is missing: pip install numba\n")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    started_s = time.perf_counter()
    print(f"SIMULATED; seeds {seeds.start} to {seeds.stop - 1}: python benchmarks/search {' '.join(sys.argv[1:])}\n")
    with multiprocessing.Pool(options.jobs) as pool:
        if options.proofs:
            proof_table(options.settings, seeds, pool)
        else:
            search_table(options.strategies, options.settings, seeds, pool)
    print("\nError and its size are medians over the seeds, shares have their 99 % interval")
    print(f"{time.perf_counter() - started_s:.0f} s")


if __name__ == "__main__":
    main()
