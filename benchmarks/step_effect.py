"""Whether a decode step really shortened by no more than `slo-bench advise --measure` said that it could.

    python benchmarks/step_effect.py BEFORE/advice.json AFTER/advice.json

Both are of one model on one GPU, with other configurations of the kernel. For each batch the change of a whole step,
its 95 % interval from resampling the rounds (what differs between two starts of a process is not in it), and the bound
that the first one gave. Exit code 1 where an interval lies wholly above its bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reports.run_directory import read_document
from slo_bench.moe.advising.bound import AdviceDocument
from slo_bench.moe.advising.truncated import FEWER, MORE

DRAWS = 10_000


def whole_s(step: Mapping[str, Any], layers: int, random: np.random.Generator) -> np.ndarray:
    """Seconds of the whole model's step for each of DRAWS resamplings; the first one is of the rounds themselves."""
    medians = []
    for count in (FEWER, MORE):
        rounds = np.array(step[f"layers_{count}_s"])
        drawn = random.integers(0, len(rounds), size=(DRAWS, len(rounds)))
        drawn[0] = np.arange(len(rounds))
        medians.append(np.median(rounds[drawn], axis=1))
    fewer, more = medians
    whole: np.ndarray = fewer + (layers - FEWER) * (more - fewer) / (MORE - FEWER)
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    before, after = (read_document(path, AdviceDocument) for path in (options.before, options.after))
    if before.layers is None or before.layers != after.layers:
        parser.error("both must hold steps of the same model")
    layers = before.layers
    random = np.random.default_rng(1)
    steps: list[Mapping[str, Any]] = [*before.steps]
    others: list[Mapping[str, Any]] = [*after.steps]
    later = {(one["tokens"], one["routing"]): one for one in others}
    bounds = {(row.tokens, row.routing): row.most_share for row in before.bounds}
    is_beyond = False
    for step in steps:
        key: tuple[int, str] = (step["tokens"], step["routing"])
        changes = 1 - whole_s(later[key], layers, random) / whole_s(step, layers, random)
        low, high = np.quantile(changes, [0.025, 0.975])
        most = bounds[key]
        is_beyond |= most is not None and low > most
        bound = "not known" if most is None else f"{most:.1%}"
        print(
            f"{key[0]:>5} {key[1]:<18} a step is shorter by {changes[0]:+.2%} ({low:+.2%} to {high:+.2%}); "
            f"the bound is {bound}"
        )
    return int(is_beyond)


if __name__ == "__main__":
    sys.exit(main())
