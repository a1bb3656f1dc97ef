"""kernels.json as a note reads it: times of the fused MoE kernel before and after, per batch size and routing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from pydantic import ConfigDict, Field

from reports.run_directory import SCHEMA_VERSION, Document, read_document

KERNELS_NAME = "kernels.json"


class _Tolerant(Document):
    """What else the file holds is not a note's business."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class KernelRow(_Tolerant):
    """One batch size under one routing. limit_share: of what the memory or the arithmetic allows, after the change."""

    tokens: int = Field(gt=0)
    routing: str
    before_s: float = Field(gt=0)
    after_s: float = Field(gt=0)
    limit_share: float | None = None

    @property
    def change_share(self) -> float:
        """After / before - 1: below 0 is faster."""
        return self.after_s / self.before_s - 1


class KernelsDocument(_Tolerant):
    """moe_share: of a decode step's time that the kernel takes. tuning_s: how long the search for it took."""

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    rows: list[KernelRow] = Field(min_length=1)
    moe_share: float | None = Field(None, ge=0, le=1)
    tuning_s: float | None = Field(None, ge=0)

    @property
    def routings(self) -> list[str]:
        """Every routing, in the order of the file."""
        return list(dict.fromkeys(row.routing for row in self.rows))

    def changes(self, routing: str) -> dict[int, float]:
        """Tokens in a step -> change under one routing, ascending. Routings are never averaged into one."""
        return {row.tokens: row.change_share for row in sorted(self.rows, key=_tokens) if row.routing == routing}

    def gains(self, routing: str) -> Mapping[int, float]:
        """The same as gains: above 0 is faster."""
        return {tokens: -change for tokens, change in self.changes(routing).items()}


def _tokens(row: KernelRow) -> int:
    return row.tokens


def typical(changes: Sequence[float]) -> float | None:
    """The median change; None of nothing."""
    return median(changes) if changes else None


def read_kernels(directory: Path) -> KernelsDocument | None:
    """The kernel times of a run; None where kernels were not timed."""
    path = directory / KERNELS_NAME
    return read_document(path, KernelsDocument) if path.exists() else None
