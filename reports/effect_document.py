"""effect.json: two arms at one load, every pair of blocks behind the effect, and what may be said of it.

    runs/<label>/compare/<a>--<b>/effect.json      EffectDocument
                                  effect.md        the same in words (reports.compare)
                                  blocks/NN-X.parquet   a row per request of one block (reports.requests)
                                  starts/X-N/engine.json, engine.log, metrics.parquet   each server that ran

Undefined numbers are null. Shares are B / A - 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gates.block_order import Order
from gates.comparison import Claim, ComparedMetric
from gates.spending import SpentMetric
from reports.run_directory import SCHEMA_VERSION, Document, EngineKind, Json, WarmUp

Placement = Literal["coresident", "restart", "attached"]
Outcome = Literal["concluded", "unfinished", "not comparable", "invalid"]
ArmName = Literal["A", "B"]
ARM_NAMES: tuple[ArmName, ArmName] = ("A", "B")


class StartRow(Document):
    """One server that ran. directory: relative to the document."""

    start: int
    directory: str
    model: str
    version: str | None
    warm_up: WarmUp | None


class ArmRow(Document):
    """One arm. changes: what was said to be different, empty for A. starts: its servers as they were started."""

    label: str
    engine: EngineKind
    changes: list[str]
    starts: list[StartRow]


class BlockRow(Document):
    """One block. ran: its place among all blocks, from 1. start: on which server of its arm. Values of its cohort."""

    ran: int
    start: int
    n: int
    failed: int
    unfinished: int
    errors: dict[str, int]
    tpot_mean_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    goodput_rps: float | None
    offered_rps: float | None
    send_lag_p99_s: float | None
    output_tokens_mean: float | None
    kv_use_max_share: float | None
    preemptions: int | None
    grows: bool
    invalid_reasons: list[str]
    flags: list[str]
    started_utc: str
    load_s: float
    requests_file: str
    energy_j: float | None = None
    power_mean_w: float | None = None
    power_coverage_share: float | None = None
    joules_per_output_token: float | None = None
    throttle_reasons: list[str] | None = None


class PairRow(Document):
    """Two partners; number is their repeat."""

    number: int
    a_first: bool
    a: BlockRow
    b: BlockRow


class DiscardedRow(Document):
    """A block that was no result, or whose partner was none: the pair was measured again with fresh text."""

    number: int
    arm: ArmName
    block: BlockRow


class EffectRow(Document):
    """One metric. Values in seconds, of goodput in requests a second, of power in watts, of energy in joules.

    Values of means are the geometric mean over the pairs. Power and energy have rows where they were measured.
    interval: 95 %, with the offset of a server start where that is known. instances_interval: between the servers that
    ran. smallest_visible_share: the smallest effect that such runs find in 80 % of all cases. control_share: the second
    start of A against its first, with its interval; null where A has no control, and of what is no mean.
    """

    metric: ComparedMetric | SpentMetric
    a_value: float | None
    b_value: float | None
    share: float | None
    interval: tuple[float, float] | None
    instances_interval: tuple[float, float] | None
    n_pairs: int
    claim: Claim
    smallest_visible_share: float | None
    control_share: float | None = None
    control_interval: tuple[float, float] | None = None


class TrendRow(Document):
    """How an arm changed inside its blocks, as a share of the mean, over the window. is_told: beyond chance (99 %)."""

    arm: ArmName
    what: Literal["TPOT beyond requests in flight", "requests in flight"]
    share: float | None
    interval: tuple[float, float] | None
    is_told: bool


class DifferenceRow(Document):
    """A fact of the servers in which the arms differ; null where one does not say."""

    what: str
    a: str | None
    b: str | None


class EffectDocument(Document):
    """A comparison.

    outcome: concluded, also when nothing was found; unfinished: the time ran out; not comparable, invalid: see
    reasons. resolution_share: an effect of which pairs_needed tells what it would take. offset_share: sd of the
    level of one server start; offset_source: whether it was measured here or given. starts_needed: of each arm, to
    call the effect that was seen real, or where none was seen one of resolution_share; null where that is not
    known. order_share: how much slower whoever ran second read. unproven: what nobody could check of servers that
    somebody else runs. faults: what a reader must know before believing the rest. power_not_measured: why there is no
    power of an arm, null where there is. usd_per_hour: of the whole machine, null where it is not known. usd: of
    spent_s. design: what a resumption must have again. resumed_utc: when it went on after a stop. spent_s: seconds that
    it ran, in all its parts. longest_step_s: of its longest pair, or start of each arm where servers take turns.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    outcome: Outcome
    reasons: list[str]
    is_simulated: bool
    a: ArmRow
    b: ArmRow
    placement: Placement
    order: Order
    seed: int
    rate_rps: float | None
    concurrency: int | None
    workload: str
    arrivals: str
    length_scale: float
    slo: list[str]
    ramp_s: float
    window_s: float
    load_s: float
    pairs: list[PairRow]
    discarded: list[DiscardedRow]
    effects: list[EffectRow]
    starts_per_arm: int
    pair_sd_share: float | None
    offset_share: float | None
    offset_source: Literal["measured", "given"] | None
    resolution_share: float
    pairs_needed: int | None
    starts_needed: int | None
    order_share: float | None
    order_interval: tuple[float, float] | None
    trends: list[TrendRow]
    differences: list[DifferenceRow]
    unproven: list[str]
    faults: list[str]
    command: list[str]
    started_utc: str
    ended_utc: str | None
    power_not_measured: str | None = None
    usd_per_hour: float | None = None
    usd: float | None = None
    design: Json = Field(default_factory=dict)
    resumed_utc: list[str] = Field(default_factory=list)
    spent_s: float = 0.0
    longest_step_s: float = 0.0

    @property
    def primary(self) -> EffectRow:
        """The effect on mean TPOT, the one that was asked for."""
        return self.effects[0]
