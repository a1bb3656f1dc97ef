"""What an experiment says, chosen from its evidence: the one structure that every form of a report is made from.

`reports.telling.tell` fills it; Markdown, HTML, JSON and the terminal print it. Sentences are Markdown that is safe
already; values are unrounded, in the units that the row's name gives, None where nothing was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gates.decision import Decision, Ground


class Kind(StrEnum):
    """What kind of answer it is; it opens the headline."""

    NOTHING_PASSED = "nothing passed"
    GATE_FAILED = "gate failed"
    NOT_COMPARABLE = "not comparable"
    TOO_FEW_PAIRS = "too few pairs"
    BELOW_RESOLUTION = "below resolution"
    DRIFT_UNKNOWN = "drift not measured"
    WITHIN_DRIFT = "within drift"
    BETWEEN_INSTANCES = "between these two server instances"
    REAL = "real effect"
    ONE_ARM = "one arm"


@dataclass(frozen=True, slots=True)
class Decided:
    """The one decision. arm: the label of the arm that it is about. reason, limits: sentences."""

    decision: Decision
    ground: Ground
    arm: str
    reason: str
    limits: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell as it is shown, and its value; None where it has none or is text."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One measure: a cell per column of its table."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the end-to-end table. arm: whose. is_effect: its effect or drift against the baseline.

    struck: why the arm is no result, None where it is one.
    """

    title: str
    arm: str
    is_effect: bool
    struck: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; every row has a cell per column."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """What an experiment says.

    arm: the label of the arm that headline and decision are about, None where only one arm was measured. bullets: the
    result in four: kernels, capacity, effect, accuracy and power. comparisons: a sentence per comparison by interleaved
    blocks. cautions: what a reader must know before believing the rest. struck: arms that are no result, and why.
    decided: None where there is nothing to decide, as in a smoke run. table: end to end at the anchor rate, None
    without one.
    """

    kind: Kind
    arm: str | None
    headline: str
    bullets: tuple[str, ...]
    comparisons: tuple[str, ...]
    cautions: tuple[str, ...]
    struck: dict[str, str]
    decided: Decided | None
    table: Table | None
