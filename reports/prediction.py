"""How much a step should shorten by faster kernels, from what the steps of a load were: held against what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepSize:
    """Steps of about one size, in tokens. time_share: of all time in steps. moe_share: of the time of such a step."""

    tokens: float
    time_share: float
    moe_share: float


def predicted_share(sizes: Sequence[StepSize], gains: Mapping[int, float]) -> float | None:
    """The change of the time in steps: minus the sum of time share x MoE share x kernel gain over the sizes.

    gains: tokens in a step -> share by which the kernel is faster there, below 0 where it is slower; a step takes the
    gain of the nearest size, as the engine takes the nearest configuration. None without sizes or gains. Time shares
    that add up to less than 1 leave the rest unchanged. Raises ValueError for shares that are none.
    """
    if not sizes or not gains:
        return None
    total = sum(each.time_share for each in sizes)
    if total > 1 + 1e-9 or any(not (each.time_share >= 0 and 0 <= each.moe_share <= 1) for each in sizes):
        raise ValueError(f"shares of time must be 0 to 1 and add up to 1 at most, not {total:g}")
    return -sum(each.time_share * each.moe_share * _nearest(gains, each.tokens) for each in sizes)


def _nearest(gains: Mapping[int, float], tokens: float) -> float:
    """The gain at the nearest size, of two equally near ones the smaller."""
    return gains[min(sorted(gains), key=lambda size: abs(size - tokens))]
