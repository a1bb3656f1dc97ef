"""A fast model of pairs, for designs that would take days on the step model, and how well it agrees with that.

ln of mean TPOT of a block = level + schedule (shared by partners) + drift + offset of the start + noise, all normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from stepped import FloatArray

from gates.block_order import Order, crossed_pair, nested_pairs
from gates.comparison import Claim, claim_of
from gates.log_ratio import Estimate, after_looking
from gates.starts import MeanEffect, PairRatio, mean_effect


@dataclass(frozen=True, slots=True)
class Blocks:
    """level: of ln(mean TPOT in s). schedule_sd, noise_sd: of one block. drift: per block, on the logarithm."""

    level: float
    schedule_sd: float
    noise_sd: float
    drift: float

    @property
    def block_sd(self) -> float:
        """Of ln(mean TPOT) between blocks."""
        return math.hypot(self.schedule_sd, self.noise_sd)

    @property
    def partner_correlation(self) -> float:
        """Of ln(mean TPOT) of two partners."""
        return (self.schedule_sd / self.block_sd) ** 2

    @property
    def pair_sd(self) -> float:
        """Of ln(B / A)."""
        return math.sqrt(2) * self.noise_sd

    def starts_needed(self, effect: float, offset_sd: float, pairs_per_start: int) -> int | None:
        """What the product says of restarts, had it measured this noise and this offset exactly."""
        nothing = Estimate(0.0, None, 0)
        known = MeanEffect(nothing, None, None, self.pair_sd, offset_sd, is_nested=True)
        return known.starts_needed(effect, pairs_per_start)


def fitted(levels: FloatArray, drift: float) -> Blocks:
    """The model of blocks; levels: ln of mean TPOT of A and B, shape (pairs, 2), from equal arms."""
    noise_sd = float(np.std(levels[:, 1] - levels[:, 0])) / math.sqrt(2)
    spread = float(np.std(levels))
    return Blocks(float(levels.mean()), math.sqrt(spread**2 - noise_sd**2), noise_sd, drift)


def nested(
    model: Blocks, generator: np.random.Generator, *, effect: float, offset_sd: float, starts: int, pairs_per_start: int
) -> MeanEffect:
    """One comparison by restarts."""
    pairs: list[PairRatio] = []
    for start in range(starts):
        offset = math.sqrt(2) * offset_sd * generator.standard_normal()
        for planned in nested_pairs(start, Order.ABBA, 0, pairs_per_start):
            apart = model.drift * pairs_per_start * (1 if planned.a_first else -1)
            noise = model.pair_sd * generator.standard_normal()
            pairs.append(PairRatio(effect + offset + apart + noise, planned.a_first, start, start))
    return mean_effect(pairs)


def single_pairs(model: Blocks, generator: np.random.Generator, effect: float, count: int) -> list[PairRatio]:
    """Pairs of one server per arm."""
    noise = model.pair_sd * generator.standard_normal(count)
    planned = [crossed_pair(number, Order.ABBA, 0, 1) for number in range(count)]
    return [
        PairRatio(effect + model.drift * (1 if each.a_first else -1) + float(noise[each.number]), each.a_first)
        for each in planned
    ]


def until_narrow(
    model: Blocks, generator: np.random.Generator, *, effect: float, half_width: float, least: int, most: int
) -> list[PairRatio]:
    """Pairs until the interval is that narrow, as `--until-resolution` adds them."""
    pairs = single_pairs(model, generator, effect, most)
    for count in range(least, most):
        width = after_looking(mean_effect(pairs[:count]).instances).half_width
        if width is not None and width <= half_width:
            return pairs[:count]
    return pairs


def is_real(found: MeanEffect, starts: int) -> bool:
    return claim_of(found.instances, found.starts, starts) is Claim.REAL
