"""kernels.json: times of the fused MoE kernel per batch size, routing and configuration, and what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

from pydantic import ConfigDict, Field, model_validator

from reports.run_directory import SCHEMA_VERSION, Document, read_document

KERNELS_NAME = "kernels.json"

_QUARTERS = 4


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


class KernelTime(_Tolerant):
    """One configuration on one batch size under one routing.

    source: heuristic (vLLM without a file), shipped or tuned. entry: the launch options. median_s: per call, of
    times_s, one for each round, with its 95 % interval; null where it failed, and failure says why. relative_error:
    against float32. experts_hit, bytes, operations: of one call, mean over the draws. bandwidth_bps: bytes / median_s,
    held against the data sheet's and the measured bandwidth. limit_share: the shortest time that the data sheet allows,
    by bandwidth and by tensor cores, over the median.
    """

    tokens: int = Field(gt=0)
    routing: str
    source: str
    entry: dict[str, int]
    median_s: float | None = Field(None, gt=0)
    interval_s: tuple[float, float] | None = None
    times_s: list[float] = Field(default_factory=list)
    relative_error: float | None = Field(None, ge=0)
    failure: str | None = None
    experts_hit: float | None = None
    bytes: float | None = None
    operations: float | None = None
    bandwidth_bps: float | None = None
    datasheet_share: float | None = None
    measured_share: float | None = None
    limit_share: float | None = None

    @property
    def spread_share(self) -> float | None:
        """Distance between the quartiles over the median; None of fewer than four rounds."""
        if self.median_s is None or len(self.times_s) < _QUARTERS:
            return None
        low, _, high = quantiles(self.times_s, n=_QUARTERS, method="inclusive")
        return (high - low) / self.median_s


class KernelConditions(_Tolerant):
    """The card while kernels were timed. not_measured: why nothing of it is known, else null.

    held_down: share of readings in which a reason held the clocks down, by reason.
    """

    not_measured: str | None = None
    sm_clock_median_mhz: float | None = None
    temperature_max_c: int | None = None
    mean_w: float | None = None
    held_down: dict[str, float] | None = None


class KernelSetting(_Tolerant):
    """What was timed, on what. versions: of vllm, torch, triton. files: where the entries of a source come from.

    weight_sets: copies of the weights over which calls went round. Bandwidths in bytes/s; the data sheet's is null for
    a card that is not known.
    """

    layer: str
    device: str
    versions: dict[str, str]
    files: dict[str, str]
    rounds: int
    calls: int
    weight_sets: int
    seed: int
    datasheet_bps: float | None = None
    datasheet: str | None = None
    measured_bps: float | None = None


class KernelsDocument(_Tolerant):
    """moe_share: of a decode step's time that the kernel takes. tuning_s: how long the search for it took.

    times: every configuration that was timed; rows: what the last source changed against the heuristic.
    is_simulated: the times come from a model of the kernel.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    rows: list[KernelRow] = Field(default_factory=list)
    moe_share: float | None = Field(None, ge=0, le=1)
    tuning_s: float | None = Field(None, ge=0)
    is_simulated: bool = False
    setting: KernelSetting | None = None
    conditions: KernelConditions | None = None
    times: list[KernelTime] = Field(default_factory=list)

    @model_validator(mode="after")
    def _holds_something(self) -> KernelsDocument:
        if not self.rows and not self.times:
            raise ValueError("rows and times are both empty")
        return self

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
