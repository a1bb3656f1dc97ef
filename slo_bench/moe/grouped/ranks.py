"""The ranks of expert parallelism, one after the other on one GPU: which rows each of them gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slo_bench.moe.routing import Ids, rows_per_expert
from slo_bench.moe.shape import MoeShape
from traffic.errors import UsageError


@dataclass(frozen=True, slots=True)
class RankRows:
    """Rows of each expert of a rank. An idle rank has none: it is timed and shown all the same."""

    rank: int
    counts: tuple[int, ...]

    @property
    def rows(self) -> int:
        """(token, expert) pairs of this rank."""
        return sum(self.counts)

    @property
    def experts_hit(self) -> int:
        """Experts that have a row."""
        return sum(1 for count in self.counts if count)

    @property
    def most_rows(self) -> int:
        """Of the fullest expert."""
        return max(self.counts)


def ranks_of(ids: Ids, shape: MoeShape) -> tuple[RankRows, ...]:
    """What each rank gets of these tokens, ids of shape (tokens, top-k). Raises UsageError for uneven ranks."""
    if shape.experts % shape.ep_size:
        raise UsageError(f"{shape.experts} experts are not even over {shape.ep_size} ranks: FlashInfer wants them so")
    rows = rows_per_expert(ids, shape)
    held = (shape.held_by(rank) for rank in range(shape.ep_size))
    return tuple(RankRows(rank, tuple(int(each) for each in rows[mine])) for rank, mine in enumerate(map(list, held)))


def slowest(times_s: Mapping[int, float]) -> int:
    """The rank that all others wait for: of the longest time, the first of equals."""
    return max(times_s, key=lambda rank: (times_s[rank], -rank))


def fullest(ranks: Sequence[RankRows]) -> RankRows:
    """The rank of the most rows, the first of equals."""
    return max(ranks, key=lambda each: (each.rows, -each.rank))
