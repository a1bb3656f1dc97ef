"""Does a comparison find what is there, and nothing else? SIMULATED, on the step model without an event loop.

    nice -n 15 python benchmarks/compare [--runs 2000] [--seed 20000000] [--jobs 2]     (pip install numba: faster)

Cells on the step model drive every request of every block, with the product's own schedule and statistics. Designs that
would take days there run on a model of whole blocks, after that was held against the step model. A share meets its goal
when the 99 % binomial (Clopper-Pearson) interval of what was observed includes the goal, or lies on its better side.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from blockwise import Blocks, fitted, is_real, nested, single_pairs, until_narrow
from cells import (
    BUDGET_S,
    CELLS,
    DRIFT_SHARE,
    OFFSET_SD,
    PAIRS,
    RAMP_S,
    SHORTER_CELLS,
    SMALL_OFFSET_SD,
    TRUE_EFFECT,
    Cell,
    Found,
    calibrate,
    found,
)
from compiled import is_compiled
from scipy import special
from stepped import RATE_RPS, FloatArray, pair_ratios, same_as_step_model

from gates.comparison import Claim, ComparedMetric
from gates.log_ratio import after_looking
from gates.starts import mean_effect
from traffic.step_model import EngineSettings

TUNED_ON = 0
"""Seeds below a million were used while this was written; a final run must not use them."""

FAST_RUNS = 20_000
RESTARTS = 5_000
PRIMARY = ComparedMetric.TPOT_MEAN


def binomial_interval(hits: int, n: int) -> tuple[float, float]:
    """The 99 % interval of a share."""
    low = 0.0 if hits == 0 else float(special.betaincinv(hits, n - hits + 1, 0.005))
    high = 1.0 if hits == n else float(special.betaincinv(hits + 1, n - hits, 0.995))
    return low, high


def line(what: str, flags: Sequence[bool], *, at_least: float | None = None, at_most: float | None = None) -> None:
    """A row: what was observed, its interval, and whether the goal lies in it or is surpassed."""
    hits, n = sum(flags), len(flags)
    low, high = binomial_interval(hits, n)
    verdict = ""
    if at_least is not None:
        verdict = f"goal at least {at_least:.0%}: {'met' if high >= at_least else 'NOT MET'}"
    if at_most is not None:
        verdict = f"goal at most {at_most:.0%}: {'met' if low <= at_most else 'NOT MET'}"
    print(f"  {what:<68} {hits / n:7.2%}  ({low:.2%} to {high:.2%})  {verdict}".rstrip(), flush=True)


def covers(ends: tuple[float, float | None], truth: float) -> bool:
    return ends[1] is not None and abs(ends[0] - truth) <= ends[1]


def excludes(ends: tuple[float, float | None]) -> bool:
    return ends[1] is not None and abs(ends[0]) > ends[1]


def stepped_cell(cell: Cell, runs: int, seed: int, jobs: int) -> list[Found]:
    began_s = time.perf_counter()
    work: Callable[[int], Found] = functools.partial(found, cell, draws=400)
    with multiprocessing.Pool(jobs) as pool:
        results = pool.map(work, range(seed, seed + runs), chunksize=4)
    minutes = np.array([each.load_s for each in results]) / 60
    pairs = np.array([b - a for each in results for a, b in each.levels])
    effect = math.expm1(np.mean([each.estimates[PRIMARY][0] for each in results]))
    print(
        f"\n{cell.name}: {len(results)} runs of {cell.pairs} pairs, load {minutes.mean():.1f} minutes (longest "
        f"{minutes.max():.1f}); sd of a pair {pairs.std():.2%}, mean effect {effect:+.3%}, true "
        f"{math.expm1(cell.truth):+.2%}   [{time.perf_counter() - began_s:.0f} s]"
    )
    return results


def report_equal(results: Sequence[Found]) -> None:
    for metric in ComparedMetric:
        goal = 0.95 if metric in (PRIMARY, ComparedMetric.TTFT_MEAN) else None
        ends = [each.estimates[metric] for each in results]
        line(f"95 % interval of {metric} covers no change", [covers(each, 0.0) for each in ends], at_least=goal)
    line("mean TPOT: false alarm", [excludes(each.estimates[PRIMARY]) for each in results], at_most=0.05)
    line("any metric called real", [Claim.REAL in each.claims.values() for each in results], at_most=0.0)
    line("a trend inside blocks is told of either arm (1 % each)", [any(each.trends) for each in results], at_most=0.02)


def report_effect(cell: Cell, results: Sequence[Found], goal: float | None) -> None:
    ends = [each.estimates[PRIMARY] for each in results]
    line("mean TPOT: found, on the right side", [excludes(e) and e[0] * cell.truth > 0 for e in ends], at_least=goal)
    line("95 % interval of mean TPOT covers the truth", [covers(each, cell.truth) for each in ends], at_least=0.95)
    line("any metric called real", [Claim.REAL in each.claims.values() for each in results], at_most=0.0)


def report_offset(results: Sequence[Found]) -> None:
    line("interval between the two servers excludes no change", [excludes(each.instances) for each in results])
    line("any metric called real", [Claim.REAL in each.claims.values() for each in results], at_most=0.0)
    ends = [each.estimates[PRIMARY] for each in results]
    line("95 % interval that carries the offset covers no change", [covers(e, 0.0) for e in ends], at_least=0.95)
    claims = [each.claims[PRIMARY] for each in results]
    for claim in (Claim.BELOW_RESOLUTION, Claim.WITHIN_DRIFT, Claim.BETWEEN_INSTANCES):
        line(f"mean TPOT: {claim}", [each is claim for each in claims])


def report_crossed(results: Sequence[Found]) -> None:
    ends = [each.estimates[PRIMARY] for each in results]
    line("95 % interval over starts covers no change", [covers(each, 0.0) for each in ends], at_least=0.95)
    line("mean TPOT called real falsely", [each.claims[PRIMARY] is Claim.REAL for each in results], at_most=0.05)


def check_loop(seed: int) -> None:
    """Whether what is run is the step model."""
    if not is_compiled():
        print("  the step model itself; with numba (pip install numba) its loop is compiled and fifteen times as fast")
        return
    settings = [cell.arms.b for cell in (*CELLS, *SHORTER_CELLS)]
    same = all(same_as_step_model(each, seed, 4, RAMP_S) for each in settings)
    words = "every time equals" if same else "NOT EQUAL to"
    print(f"  compiled loop: {words} the step model's, 4 blocks on each of {len(settings)} servers")
    if not same:
        raise SystemExit(1)


def check_noise(settings: EngineSettings, seed: int, pairs: int) -> None:
    """Where the noise was set, what it is in a block, and what nobody could beat within the budget."""
    half_s = BUDGET_S / 2 - 30.0
    for cohort_s, count, note in (
        (20.0, pairs, "set to the 1.4 % that an H200 showed"),
        (60.0, pairs, "a block"),
        (half_s, max(20, pairs // 2), "half of the twenty minutes in one piece"),
    ):
        ratios = pair_ratios(settings, settings, seed, count, ramp_s=RAMP_S, cohort_s=cohort_s)
        error = ratios.std() / math.sqrt(2 * count)
        print(f"  two equal servers, mean TPOT over {cohort_s:3.0f} s: sd {ratios.std():.2%} +- {error:.2%} ({note})")
        if cohort_s == half_s:
            power = special.ndtr(abs(math.log1p(TRUE_EFFECT)) / ratios.std() - special.ndtri(0.975))
            print(
                f"  so whoever knew the noise exactly, and wasted no second, would find 1 % in {power:.0%}", flush=True
            )


def check_model(model: Blocks, levels: FloatArray) -> None:
    print(f"\nmodel of whole blocks, fitted to seeds of the tuning, against the step model ({len(levels)} pairs)")
    for what, ours, theirs in (
        ("mean TPOT (ms)", math.exp(model.level) * 1e3, math.exp(levels.mean()) * 1e3),
        ("sd between blocks (%)", model.block_sd * 100, float(levels.std()) * 100),
        ("correlation of partners", model.partner_correlation, float(np.corrcoef(levels.T)[0, 1])),
        ("sd of a pair (%)", model.pair_sd * 100, float(np.std(levels[:, 1] - levels[:, 0])) * 100),
    ):
        print(f"  {what:<26} model {ours:8.3f}   step model {theirs:8.3f}   apart {ours / theirs - 1:+.1%}")


def report_minutes(model: Blocks, generator: np.random.Generator, pair_minutes: float) -> None:
    effect = math.log1p(TRUE_EFFECT)
    print("\nmodel of whole blocks: how long a 1 % effect takes to be found, one server per arm, offset 0")
    for pairs in (PAIRS, 8, 12, 14, 16, 18, 20, 24):
        runs = [mean_effect(single_pairs(model, generator, effect, pairs)).instances for _ in range(FAST_RUNS // 4)]
        what = f"{pairs} pairs, {pairs * pair_minutes:.0f} minutes of load: 1 % found"
        line(what, [each.excludes_no_change for each in runs])
    for times in (1, 2):
        louder = replace(model, noise_sd=times * model.noise_sd)
        print(f"\nmodel of whole blocks: --until-resolution 1 %, equal arms, sd of a pair {louder.pair_sd:.2%}")
        ended = [
            until_narrow(louder, generator, effect=0.0, half_width=0.01, least=6, most=100) for _ in range(RESTARTS)
        ]
        median, most = np.quantile([len(each) for each in ended], [0.5, 0.95])
        print(f"  pairs until the interval was +-1 %: median {median:.0f}, 95 % within {most:.0f}")
        last = [after_looking(mean_effect(each).instances) for each in ended]
        line("95 % interval covers no change", [not each.excludes_no_change for each in last], at_least=0.95)


def report_restart(model: Blocks, generator: np.random.Generator, offset_sd: float, share: float) -> None:
    effect = math.log1p(-share)
    needed = model.starts_needed(effect, offset_sd, pairs_per_start=2)
    print(
        f"\nmodel of whole blocks: restart, offset {offset_sd:.1%} per start, two pairs per start, effect {share:.0%}"
    )
    print(f"  starts of each arm that are needed: {'more than 100' if needed is None else needed}")
    if needed is None:
        return

    def runs(true_effect: float) -> list[bool]:
        made = (
            nested(model, generator, effect=true_effect, offset_sd=offset_sd, starts=needed, pairs_per_start=2)
            for _ in range(RESTARTS)
        )
        return [is_real(each, needed) for each in made]

    line("called real with that many starts", runs(effect), at_least=0.80)
    line("called real falsely with that many starts", runs(0.0), at_most=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="per cell of the step model")
    parser.add_argument("--seed", type=int, default=20_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--shorter-noise", action="store_true", help="only the two cells with the correlation time that an H200 showed"
    )
    parser.add_argument("--calibrate", action="store_true", help="print what the cells' constants come from, and stop")
    options = parser.parse_args()
    began_s = time.perf_counter()
    if options.calibrate:
        calibrate(TUNED_ON, options.runs)
        return
    print(
        f"SIMULATED: {RATE_RPS:g} req/s, chat-mix, blocks of {RAMP_S:g} + 60 s, drift of {DRIFT_SHARE:.1%} of mean "
        f"TPOT in twenty minutes, seed {options.seed}",
        flush=True,
    )
    check_loop(options.seed)
    cells = SHORTER_CELLS if options.shorter_noise else CELLS
    check_noise(cells[0].arms.a, options.seed + 5_000_000, min(1000, options.runs))
    if options.shorter_noise:
        report_equal(stepped_cell(cells[0], options.runs, options.seed, options.jobs))
        report_effect(cells[1], stepped_cell(cells[1], options.runs, options.seed, options.jobs), 0.90)
        return
    equal, one, longer, seen, shifted, crossed = CELLS
    results = stepped_cell(equal, options.runs, options.seed, options.jobs)
    report_equal(results)
    report_effect(one, stepped_cell(one, options.runs, options.seed, options.jobs), 0.90)
    report_effect(longer, stepped_cell(longer, options.runs, options.seed, options.jobs), 0.90)
    report_effect(seen, stepped_cell(seen, options.runs, options.seed, options.jobs), 0.90)
    report_offset(stepped_cell(shifted, options.runs, options.seed, options.jobs))
    report_crossed(stepped_cell(crossed, options.runs, options.seed, options.jobs))
    tuned = stepped_cell(equal, max(20, options.runs // 10), TUNED_ON, options.jobs)
    model = fitted(levels_of(tuned), math.log1p(DRIFT_SHARE) / (2 * PAIRS))
    check_model(model, levels_of(results))
    generator = np.random.default_rng(options.seed)
    report_minutes(model, generator, float(np.mean([each.load_s for each in results])) / 60 / PAIRS)
    for offset_sd in (SMALL_OFFSET_SD, OFFSET_SD):
        for share in (0.02, 0.05):
            report_restart(model, generator, offset_sd, share)
    print(f"\n{time.perf_counter() - began_s:.0f} s; python {sys.version.split()[0]}")


def levels_of(results: Sequence[Found]) -> FloatArray:
    """Logarithms of mean TPOT of A and B; shape (pairs, 2)."""
    levels: FloatArray = np.array([level for each in results for level in each.levels])
    return levels


if __name__ == "__main__":
    main()
