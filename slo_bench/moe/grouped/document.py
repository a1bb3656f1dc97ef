"""grouped.json: every sample of the grouped GEMM, what was compared, and under which conditions."""

from __future__ import annotations

from statistics import median
from typing import Literal

from pydantic import Field

from reports.kernels import KernelConditions
from reports.run_directory import Document
from slo_bench.moe.grouped.estimates import Branch
from slo_bench.moe.grouped.verdict import Comparison, Verdict, is_near

GROUPED_NAME = "grouped.json"
SCHEMA_VERSION = 1

Source = Literal["shipped", "corrected", "scan"]


class RankRow(Document):
    """What one rank gets: its (token, expert) pairs, its experts that have one, and the fullest expert's rows."""

    tokens: int = Field(gt=0)
    routing: str
    rank: int = Field(ge=0)
    rows: int = Field(ge=0)
    experts_hit: int = Field(ge=0)
    most_rows: int = Field(ge=0)


class EstimateRow(Document):
    """Where an estimate leads: branch, and the tiles of FC1 and FC2 (under swapAB the first number is the weights')."""

    estimate: int = Field(gt=0)
    branch: Branch
    tiles: tuple[str, str]


class TimeRow(Document):
    """One rank under one estimate: seconds of both stages, a value per sample.

    source: shipped or corrected, of the sweep; scan: another estimate at the tokens of the main comparison.
    """

    tokens: int = Field(gt=0)
    routing: str
    rank: int = Field(ge=0)
    source: Source
    estimate: int = Field(gt=0)
    fc1_s: list[float] = Field(min_length=1)
    fc2_s: list[float] = Field(min_length=1)

    @property
    def total_s(self) -> list[float]:
        """Both stages, sample by sample: the second begins where the first ends."""
        return [first + second for first, second in zip(self.fc1_s, self.fc2_s, strict=True)]

    @property
    def median_s(self) -> float:
        """Of both stages together."""
        return median(self.total_s)


class CheckRow(Document):
    """One comparison of one stage's results. Errors are norms of differences over norms; null where not finite."""

    tokens: int = Field(gt=0)
    routing: str
    rank: int = Field(ge=0)
    stage: int = Field(ge=1, le=2)
    comparison: Comparison
    error: float | None
    worst_row_error: float | None

    @property
    def is_near(self) -> bool:
        """Whether every row is."""
        return is_near(self.worst_row_error)


class InputRow(Document):
    """What else was seen of a compared stage: whether both estimates gave the same bits, and what rounding costs alone.

    rounding_error: of the reference, against float32 from activations that were not rounded to FP8.
    """

    tokens: int = Field(gt=0)
    routing: str
    rank: int = Field(ge=0)
    stage: int = Field(ge=1, le=2)
    is_equal: bool
    rounding_error: float | None


class SeenRow(Document):
    """Kernels that a profiler saw under an estimate; none where it sees nothing."""

    estimate: int = Field(gt=0)
    kernels: list[str]


class GroupedSetting(Document):
    """What was timed, on what, and how. tokens: of the main comparison. most_apart: of a row, to count as near.

    swap_below: estimates below it take the branch that swaps the matrices. order: in which token counts were taken.
    """

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    ep_size: int
    tokens: int
    device: str
    sms: int
    swap_below: int
    flips_at: dict[str, int]
    versions: dict[str, str]
    warm_ups: int
    samples: int
    seed: int
    most_apart: float
    order: str


class GroupedDocument(Document):
    """Everything that a run of the grouped GEMM found."""

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    is_simulated: bool
    verdict: Verdict
    setting: GroupedSetting
    conditions: KernelConditions
    ranks: list[RankRow]
    estimates: list[EstimateRow]
    times: list[TimeRow]
    checks: list[CheckRow]
    inputs: list[InputRow]
    seen: list[SeenRow]

    @property
    def routings(self) -> list[str]:
        """Every routing, in the order of the file. They are never averaged into one number."""
        return list(dict.fromkeys(row.routing for row in self.ranks))

    def where(self, estimate: int) -> EstimateRow:
        """Where an estimate leads."""
        return next(row for row in self.estimates if row.estimate == estimate)
