"""summary.json: what a session found, in one file for programs: dashboards, experiment trackers, the next session.

Everything in it stands in the run directory too; nothing is rounded. Units are part of the names, shares are of 1,
undefined numbers are null. Its JSON schema is docs/summary.schema.json.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field

from gates.capacity import CapacityVerdict
from gates.comparison import Claim, ComparedMetric
from gates.decision import Decision, Ground
from gates.effect import AnswerMetric, EffectMetric, Finding
from gates.spending import SpentMetric
from gates.verdict import LimitedBy
from reports.effect_document import Outcome
from reports.run_directory import SCHEMA_VERSION, Document, EngineKind, Status
from reports.story import Kind

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"

Scalar = str | int | float | bool


class WindowSummary(Document):
    """One window that was followed to its end: what a later session may be compared with."""

    rate_rps: float
    repeat: int
    window_s: float
    n: int
    passed: bool
    ttft_mean_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None
    tpot_p99_s: float | None


class AnchorSummary(Document):
    """An arm at the anchor rate: the mean over its whole windows; null where one of them has no value.

    passed of valid windows; n: requests in the whole ones. output_tokens_per_s is set by the arrival rate.
    """

    passed: int
    valid: int
    n: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    ttft_mean_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    tpot_mean_s: float | None
    goodput_rps: float | None
    output_tokens_per_s: float | None


class AccuracySummary(Document):
    """The accuracy gate: right of n items, with the 95 % interval of the share; null where no accuracy is claimed."""

    outcome: str
    right: int
    n: int
    accuracy_share: float | None
    accuracy_interval: tuple[float, float] | None


class ArmSummary(Document):
    """One arm. directory: relative to the session's. facts: what server and client host tell of themselves.

    power_mean_w, joules_per_output_token: at the anchor rate, of all GPUs; power_not_measured: why there is none.
    usd_per_hour: of the whole machine, as given. usd_per_million_output_tokens: at the arm's own capacity.
    server_starts: that its windows were measured on, more than 1 where the sweep was stopped and went on.
    """

    label: str
    directory: str
    status: Status
    reason: str | None
    is_warm: bool
    model: str
    version: str | None
    capacity_verdict: CapacityVerdict
    capacity_rps: float | None
    first_failed_rps: float | None
    resolution_share: float | None
    capacity_estimate_rps: float | None
    capacity_interval_rps: tuple[float, float] | None
    tallies: list[str]
    limited_by: LimitedBy | None
    cause: str | None
    anchor: AnchorSummary | None
    accuracy: AccuracySummary | None
    power_mean_w: float | None
    joules_per_output_token: float | None
    usd_per_million_output_tokens: float | None
    windows: list[WindowSummary]
    power_not_measured: str | None = None
    usd_per_hour: float | None = None
    server_starts: int = 1
    facts: dict[str, str]


class EffectSummary(Document):
    """An arm against the baseline at the anchor rate, with the drift in the same metric beside it.

    Of dollars it is at each arm's own capacity. Of accuracy shares are differences of shares, and pairs are items.
    """

    arm: str
    metric: EffectMetric | SpentMetric | AnswerMetric
    share: float | None
    interval: tuple[float, float] | None
    n_pairs: int
    drift_share: float | None
    drift_interval: tuple[float, float] | None
    smallest_visible_share: float | None
    finding: Finding


class ComparisonSummary(Document):
    """A comparison by interleaved blocks; its effects in full are in effect.json, here the one on mean TPOT."""

    a: str
    b: str
    outcome: Outcome
    sentence: str
    metric: ComparedMetric
    rate_rps: float | None
    concurrency: int | None
    share: float | None
    interval: tuple[float, float] | None
    n_pairs: int
    starts_per_arm: int
    claim: Claim
    smallest_visible_share: float | None


class DecisionSummary(Document):
    """The one decision, on one arm, by the rule in docs/method.md. reason, limits: plain text."""

    decision: Decision
    ground: Ground
    arm: str
    reason: str
    limits: str


class SummaryDocument(Document):
    """A session: one sweep, several together, an experiment or a comparison.

    answer: what kind of answer it is, null for a comparison alone. headline, bullets, cautions: plain text. struck:
    arms that are no result, and why. decision: null where there is nothing to decide. load: what was sent and what it
    had to achieve; gpus: names, null where none was seen. anchor_rps: where arms are compared. failed: arms without a
    sweep, and why.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    kind: Literal["sweep", "experiment", "compare"]
    label: str
    title: str
    is_simulated: bool
    is_smoke: bool
    answer: Kind | None
    headline: str
    bullets: list[str]
    cautions: list[str]
    struck: dict[str, str]
    decision: DecisionSummary | None
    engine: EngineKind
    seed: int
    load: dict[str, Scalar | list[Scalar]]
    gpus: list[str] | None
    gpu_uuids: list[str]
    baseline: str | None
    drift_arm: str | None
    anchor_rps: float | None
    arms: list[ArmSummary]
    failed: dict[str, str]
    effects: list[EffectSummary]
    comparisons: list[ComparisonSummary]
    started_utc: str
    ended_utc: str | None
    slo_bench: str | None
    command: list[str]

    def arm(self, label: str | None) -> ArmSummary | None:
        """An arm by its label; None where there is no such arm."""
        return next((each for each in self.arms if each.label == label), None)


def summary_schema() -> str:
    """The JSON schema of summary.json as it stands in docs/."""
    schema = {"$schema": SCHEMA_ID, **SummaryDocument.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
