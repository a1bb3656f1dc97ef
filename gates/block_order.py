"""In which order the blocks of two arms run: balanced, so that neither arm runs first more often."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from traffic.randomness import stream


class Order(StrEnum):
    """abba: A B B A and again. random: of each two rows of pairs one begins with A, drawn from the seed."""

    ABBA = "abba"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class PlannedPair:
    """Two blocks next to each other; number is their repeat. start_a, start_b: which start of its arm each runs on."""

    number: int
    a_first: bool
    start_a: int
    start_b: int


def crossed_pair(number: int, order: Order, seed: int, instances: int, controls: int = 0) -> PlannedPair:
    """Pair `number` (from 0) of arms that have `instances` servers each, A `controls` more, all up at once.

    Each row of as many pairs as A has servers uses each of these once, and partners change from row to row, so that
    servers of one arm are compared through partners that they share.
    """
    row, column = divmod(number, instances + controls)
    # By row, so that no server is always the first or always the second of two partners.
    a_first = row % 2 == 0
    if order is Order.RANDOM:
        a_first ^= _is_turned(seed, row // 2)
    return PlannedPair(number, a_first, column, (column + row) % instances)


def nested_pairs(start: int, order: Order, seed: int, pairs_per_start: int) -> tuple[PlannedPair, ...]:
    """The pairs of the start `start` (from 0) of both arms, where one server is stopped before the other begins."""
    a_first = start % 2 == 0
    if order is Order.RANDOM:
        a_first ^= _is_turned(seed, start // 2)
    first = start * pairs_per_start
    return tuple(PlannedPair(number, a_first, start, start) for number in range(first, first + pairs_per_start))


def _is_turned(seed: int, couple: int) -> bool:
    """A coin for each two rows, or starts: whether they exchange their orders."""
    return bool(stream("block order", seed, couple).integers(2))
