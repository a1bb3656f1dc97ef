"""Three comparisons of the same inputs, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

MOST_APART = 0.01
"""Norm of a row's difference over the row's norm. Rounding a result to BF16 costs 0.2 % of it, sums of FP8 products in
the tensor cores some hundredths of a per cent; a row of another expert, or with another's scales, is off by a whole."""


class Comparison(StrEnum):
    """What is held against what."""

    SHIPPED_REFERENCE = "shipped with reference"
    CORRECTED_REFERENCE = "corrected with reference"
    CORRECTED_SHIPPED = "corrected with shipped"


class Verdict(StrEnum):
    """What a run found of the results. One of them alone is a pass."""

    AGREE = "all three comparisons pass"
    SHIPPED_WRONG = "the shipped estimate's result is wrong"
    CORRECTED_WRONG = "the corrected estimate's result is wrong"
    APART = "both are near the reference, but not near each other"
    UNEXPLAINED = "reference unexplained"

    @property
    def is_pass(self) -> bool:
        """Whether times may be compared as times of the same work."""
        return self is Verdict.AGREE


class Compared(Protocol):
    """One comparison on one input."""

    @property
    def comparison(self) -> Comparison:
        """What was held against what."""
        ...

    @property
    def is_near(self) -> bool:
        """Whether every row is."""
        ...


def is_near(worst_row_error: float | None) -> bool:
    """Whether no row is too far off; a result that is not finite has no error, and is not near."""
    return worst_row_error is not None and worst_row_error <= MOST_APART


def verdict(rows: Sequence[Compared]) -> Verdict:
    """Of all inputs together. Raises ValueError where one of the comparisons was not made.

    Where both estimates miss the reference, even on different inputs, the reference may be what is wrong: that is never
    a pass, however equal the two are.
    """
    if missing := set(Comparison) - {each.comparison for each in rows}:
        raise ValueError(f"not compared: {', '.join(sorted(missing))}")
    missed = {each.comparison for each in rows if not each.is_near}
    if {Comparison.SHIPPED_REFERENCE, Comparison.CORRECTED_REFERENCE} <= missed:
        return Verdict.UNEXPLAINED
    if Comparison.SHIPPED_REFERENCE in missed:
        return Verdict.SHIPPED_WRONG
    if Comparison.CORRECTED_REFERENCE in missed:
        return Verdict.CORRECTED_WRONG
    return Verdict.APART if missed else Verdict.AGREE
