"""The rank that all others wait for, under each estimate, and what the corrected one changes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slo_bench.moe.choice import Ratio, ratio
from slo_bench.moe.grouped.document import GroupedDocument, TimeRow
from slo_bench.moe.grouped.estimates import CORRECTED, SCAN, SHIPPED
from slo_bench.moe.grouped.ranks import slowest


@dataclass(frozen=True, slots=True)
class Change:
    """At one token count under one routing: the slowest rank of both estimates, which need not be the same one."""

    tokens: int
    routing: str
    shipped: TimeRow
    corrected: TimeRow

    @property
    def parts(self) -> tuple[tuple[str, Sequence[float], Sequence[float]], ...]:
        """Name, shipped and corrected samples in seconds, of both stages and of their sum."""
        return (
            ("FC1", self.shipped.fc1_s, self.corrected.fc1_s),
            ("FC2", self.shipped.fc2_s, self.corrected.fc2_s),
            ("both stages", self.shipped.total_s, self.corrected.total_s),
        )

    @property
    def total(self) -> Ratio:
        """Of both stages together, round by round."""
        return ratio(self.shipped.total_s, self.corrected.total_s)


def rows_of(document: GroupedDocument, tokens: int, routing: str, source: str) -> list[TimeRow]:
    """The times of one token count under one routing, rank by rank (of a scan, estimate by estimate)."""
    return [row for row in document.times if (row.tokens, row.routing, row.source) == (tokens, routing, source)]


def slowest_row(rows: Sequence[TimeRow]) -> TimeRow:
    """The row of the longest median."""
    rank = slowest({row.rank: row.median_s for row in rows})
    return next(row for row in rows if row.rank == rank)


def changes(document: GroupedDocument, routing: str) -> list[Change]:
    """Of every token count, ascending."""
    sizes = sorted({row.tokens for row in document.times if row.source == SHIPPED and row.routing == routing})
    return [
        Change(
            tokens,
            routing,
            slowest_row(rows_of(document, tokens, routing, SHIPPED)),
            slowest_row(rows_of(document, tokens, routing, CORRECTED)),
        )
        for tokens in sizes
    ]


def main_change(document: GroupedDocument, routing: str) -> Change:
    """At the tokens of the main comparison."""
    return next(each for each in changes(document, routing) if each.tokens == document.setting.tokens)


def safest_estimate(document: GroupedDocument) -> tuple[int, dict[str, Ratio]] | None:
    """Of a scan, the estimate whose worst change against the shipped one is the least, and its change per routing.

    None where the scan has not the shipped estimate, or nothing beside it.
    """
    tokens = document.setting.tokens
    shipped = main_change(document, document.routings[0]).shipped.estimate
    moved: dict[int, dict[str, Ratio]] = {}
    for routing in document.routings:
        rows = {row.estimate: row for row in rows_of(document, tokens, routing, SCAN)}
        if shipped not in rows:
            return None
        for estimate, row in rows.items():
            moved.setdefault(estimate, {})[routing] = ratio(rows[shipped].total_s, row.total_s)
    del moved[shipped]
    if not moved:
        return None
    best = min(moved, key=lambda estimate: max(each.share for each in moved[estimate].values()))
    return best, moved[best]
