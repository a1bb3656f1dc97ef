"""The true capacity of each setting: the rate at which long runs have exactly the allowed share over a limit.

    python benchmarks/search/truth.py [--runs 8] [--jobs 2]

As benchmarks/true_capacity.py does it: bisection with common random numbers over two-hour runs that are pooled, because
requests over a limit come in episodes. Drift is left out; what it does follows from the engine that is slower by a
factor. The result is the table in settings.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from settings import SETTINGS, SLOW_FACTOR, Setting

from gates.slo import Metric
from traffic.step_model import StepModel
from traffic.workload import CHAT_MIX

SEED = 1_000_003
"""Far from the seeds of the searches."""

RAMP_S = 300.0
WINDOW_S = 7200.0
TAIL_S = 120.0
BRACKET_RPS = (6.0, 16.0)
WITHIN_SHARE = 0.001


def over_counts(setting: Setting, rate_rps: float, run: int) -> list[tuple[int, int]]:
    """(over, n) of each objective in one long run."""
    due_s = setting.arrivals.due_s(rate_rps, SEED, run, RAMP_S + WINDOW_S + TAIL_S)
    lengths = CHAT_MIX.draw(SEED, run, len(due_s))
    model = StepModel(setting.engine, SEED, run)
    driven = model.drive(due_s, lengths.input_tokens, lengths.output_tokens)
    cohort = (due_s >= RAMP_S) & (due_s < RAMP_S + WINDOW_S)
    several = cohort & (driven.output_tokens > 1)
    values = {
        Metric.TTFT: (driven.first_token_s - due_s)[cohort],
        Metric.TPOT: (driven.last_token_s - driven.first_token_s)[several] / (driven.output_tokens[several] - 1),
    }
    return [(int(np.sum(values[each.metric] > each.limit_s)), len(values[each.metric])) for each in setting.slo]


def is_over(setting: Setting, rate_rps: float, runs: int) -> bool:
    """Whether the pooled share over some limit is above the allowed one."""
    counts = [over_counts(setting, rate_rps, run) for run in range(runs)]
    for index, objective in enumerate(setting.slo):
        over, n = (sum(each[index][part] for each in counts) for part in (0, 1))
        if over > (1 - float(objective.percentile) / 100) * n:
            return True
    return False


def true_capacity_rps(setting: Setting, runs: int) -> float:
    """Bisect until the bracket is narrower than WITHIN_SHARE; its middle."""
    low_rps, high_rps = BRACKET_RPS
    while high_rps / low_rps - 1 > WITHIN_SHARE:
        middle_rps = (low_rps * high_rps) ** 0.5
        if is_over(setting, middle_rps, runs):
            high_rps = middle_rps
        else:
            low_rps = middle_rps
    return (low_rps * high_rps) ** 0.5


def without_drift(setting: Setting, factor: float) -> Setting:
    engine = replace(setting.engine, drift_share_per_hour=0.0, step_time_factor=factor)
    return replace(setting, engine=engine)


def both(name: str, runs: int) -> Sequence[float]:
    return [true_capacity_rps(without_drift(SETTINGS[name], factor), runs) for factor in (1.0, SLOW_FACTOR)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, help="two-hour runs per rate")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    with multiprocessing.Pool(options.jobs) as pool:
        found = pool.starmap(both, [(name, options.runs) for name in SETTINGS], chunksize=1)
    for name, (plain_rps, slow_rps) in zip(SETTINGS, found, strict=True):
        print(f'    "{name}": ({plain_rps:.3f}, {slow_rps:.3f}),')


if __name__ == "__main__":
    main()
