"""The documents of a run directory: models of every file, and their readers.

    runs/<label>/run.json            RunDocument
                 sweep.json          SweepDocument
                 engine.json         EngineDocument
                 power.json, power.parquet   reports.power_document
                 cost.json           reports.cost.CostDocument
                 gates.json          reports.gates_document.GatesDocument
                 text_gate.json      reports.text_document.TextDocument
                 tuning.json         reports.tuning_document.TuningDocument, of a search for MoE kernels
                 probes/NN-RATE.parquet   a row per request (reports.requests)
    runs/<experiment>/experiment.json      ExperimentDocument
                      truth.json           TruthDocument, where the truth is known because it was hidden on purpose
                      arms/<label>/        a run directory per arm

Undefined numbers are null, never NaN and never 0. `schema_version` rises with every change that an older reader would
misread; readers accept every version up to their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gates.capacity import CapacityVerdict, Strategy
from gates.verdict import LimitedBy, Outcome
from traffic.errors import UsageError
from traffic.probe import Stop

SCHEMA_VERSION = 1

Json = dict[str, object]
EngineKind = Literal["simulated", "attached", "vllm"]
Status = Literal["running", "done", "invalid", "failed", "interrupted"]


class Document(BaseModel):
    """A file of the run directory."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class ObjectiveRow(Document):
    """One objective over one cohort: it holds when over <= allowed. limit_s and value_s in seconds."""

    metric: str
    percentile: float
    limit_s: float
    n: int
    over: int
    allowed: int
    value_s: float | None


class WorkerClockRow(Document):
    """The clock of a load worker on another machine; see `traffic.clock_offset`. drift_s ... null where it was lost.

    offset_s: its clock minus ours before the load, wrong by bound_s at most. drift_s: what it changed by until after
    the load. error_s: the most that its times may be off the schedule's.
    """

    worker: str
    offset_s: float
    bound_s: float
    drift_s: float | None
    error_s: float | None


class ProbeRow(Document):
    """One window. Units as in the names; definitions in docs/method.md.

    outcome is null for an invalid probe. flags: what a reader should know of the window, though it decides nothing.
    is_proven: whether the margins of its rate's windows so far prove its outcome; null where they are too few to tell.
    concurrency is set, and rate_rps null, for a closed loop. requests_file is relative to the run directory.
    energy_j ... throttle_reasons: of the GPUs together, null where power was not measured; see power.json.
    server_start: servers that this run used before the one that was measured; above 0 where the run was resumed.
    worker_clocks: of load workers on other machines; null where all processes were of this one.
    """

    rate_rps: float | None
    concurrency: int | None = None
    repeat: int
    purpose: Literal["search", "anchor", "single"]
    outcome: Outcome | None
    is_proven: bool | None
    is_valid: bool
    invalid_reasons: list[str]
    flags: list[str] = []
    limited_by: LimitedBy | None
    stop: Stop
    n: int
    n_tpot: int
    over_ttft: int | None
    over_tpot: int | None
    misses: int
    failed: int
    errors: dict[str, int]
    objectives: list[ObjectiveRow]
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    ttft_mean_s: float | None
    tpot_mean_s: float | None
    goodput_rps: float | None
    offered_rps: float | None
    achieved_share: float | None
    send_lag_p50_s: float | None
    send_lag_p99_s: float | None
    send_lag_max_s: float | None
    load_workers: int | None = None
    client_cpu_share: float | None = None
    stall_max_s: float | None = None
    clock_step_s: float | None = None
    worker_clocks: list[WorkerClockRow] | None = None
    abandoned_turns: int | None = None
    output_tokens_per_s: float | None
    output_tokens_mean: float | None
    prompt_tokens_mean: float | None
    prompt_tokens_min: int | None = None
    prompt_tokens_max: int | None = None
    prompt_tokens_target_mean: float | None = None
    cached_share: float | None = None
    shared_share: float | None = None
    started_utc: str
    window_s: float
    load_s: float
    saved_s: float
    requests_file: str | None
    server_start: int = 0
    energy_j: float | None = None
    power_mean_w: float | None = None
    power_coverage_share: float | None = None
    joules_per_output_token: float | None = None
    throttle_reasons: list[str] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every request of the cohort was followed to its end or its limit: fit for a comparison."""
        return not self.stop.is_early


class CauseRow(Document):
    """Why one window failed: the kind, the evidence for it, the classes of the mix by their share of the misses.

    views: mean latencies as client and server read them. missing: what the server did not say.
    """

    rate_rps: float | None
    repeat: int
    kind: str
    evidence: list[str]
    classes: list[str]
    views: list[str]
    missing: list[str]


class WarmUp(Document):
    """Blocks of one replayed schedule; warm when two successive ones agree within 3 % on mean TPOT.

    rate_rps: null in a closed loop. server_start: see `ProbeRow`.
    """

    is_warm: bool
    rate_rps: float | None
    block_s: float
    tpot_mean_s: list[float | None]
    server_start: int = 0


class SweepDocument(Document):
    """The answer of a sweep, and every window behind it.

    capacity_estimate_rps and its 90 % interval are fitted to the latencies of all windows; proven_pass_rps is the
    highest rate proven to pass, proven_fail_rps the lowest proven to fail. None of them decides; null where the windows
    cannot say.
    client_limit_rps: the search ended there at the latest because the client can send no more; null where it did not.
    strategy: how it searched, and what made a rate pass. unclear_rps: rates whose windows contradict each other to the
    end, so that they bound nothing. warm_up: of the last server start; earlier_warm_ups: of those before it, where the
    run was resumed and they got that far. withheld_capacity_rps: what the search found, where an accuracy gate that did
    not pass forbids the claim; then capacity_rps and all that is said of it are null, and the windows stay.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    label: str
    engine: EngineKind
    seed: int
    slo: list[str]
    is_smoke: bool
    capacity_rps: float | None
    first_failed_rps: float | None
    resolution_share: float | None
    capacity_estimate_rps: float | None
    capacity_interval_rps: tuple[float, float] | None
    proven_pass_rps: float | None
    proven_fail_rps: float | None
    verdict: CapacityVerdict
    tallies: list[str]
    contradictions_rps: list[float]
    strategy: Strategy = Strategy.PUBLISHED
    unclear_rps: list[float] = []
    limited_by: LimitedBy | None
    cause: str | None
    causes: list[CauseRow] = []
    client_limit_rps: float | None = None
    warm_up: WarmUp | None
    earlier_warm_ups: list[WarmUp] = []
    withheld_capacity_rps: float | None = None
    load_s: float
    saved_s: float
    probes: list[ProbeRow]


class EngineDocument(Document):
    """What answered."""

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    kind: EngineKind
    model: str
    max_model_len: int | None
    version: str | None
    takes_forced_length: bool
    start: int
    details: Json


class RunDocument(Document):
    """What was run, with which settings, where and when. Times are UTC, ISO 8601.

    resumed_utc: when it went on after a stop, each time with a new server start.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    kind: Literal["sweep", "compare", "gate", "tune"]
    label: str
    status: Status
    reason: str | None = None
    engine: EngineKind
    seed: int
    config: Json
    environment: Json
    started_utc: str
    resumed_utc: list[str] = []
    ended_utc: str | None


class ExperimentDocument(Document):
    """Which arms belong together, in the order in which they ran.

    failed: arms without a sweep, and why. baseline: the arm that effects are measured against. drift_arm: the arm with
    the baseline's configuration, null where none ran. anchor_rps: the rate at which all arms are compared, null where
    the baseline has no capacity.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    label: str
    title: str
    seed: int
    engine: EngineKind
    arms: list[str] = Field(min_length=1)
    failed: dict[str, str] = {}
    baseline: str
    drift_arm: str | None
    anchor_rps: float | None = Field(gt=0)
    started_utc: str
    ended_utc: str | None

    @model_validator(mode="after")
    def _arms_make_sense(self) -> Self:
        """Labels are folder names, each once; baseline and drift arm are two of them."""
        for label in (self.label, *self.arms):
            if not label or label in {".", ".."} or "/" in label or "\\" in label or "\0" in label:
                raise ValueError(f"{label!r} is no name of a folder")
        if len(set(self.arms)) != len(self.arms):
            raise ValueError("an arm is listed twice")
        if self.baseline not in self.arms:
            raise ValueError(f"the baseline {self.baseline!r} is not among the arms")
        if self.drift_arm is not None and (self.drift_arm not in self.arms or self.drift_arm == self.baseline):
            raise ValueError(f"the drift arm {self.drift_arm!r} is not another of the arms")
        return self


class TruthArm(Document):
    """What was hidden in one arm of a demonstration.

    hidden: one sentence. true_tpot_effect_share: on mean TPOT against the baseline, without drift; null for the
    baseline itself. plain_claim_share: what a plain comparison claims for mean TPOT: one cold run each, one after the
    other, means of all requests.
    """

    label: str
    hidden: str
    true_capacity_rps: float | None
    true_tpot_effect_share: float | None
    plain_claim_share: float | None


class TruthDocument(Document):
    """What a demonstration hid and a finding is held against.

    drift_share: hidden between the baseline and the drift arm in mean TPOT at the anchor rate. cold_start: one sentence
    on what a server that is not warm does.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    arms: list[TruthArm]
    drift_share: float | None
    cold_start: str


D = TypeVar("D", bound=Document)


def read_document(path: Path, model: type[D]) -> D:
    """Read and check one document. Raises UsageError with the first fault in one line."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; is {path.parent} a run directory?") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        faults = {".".join(str(part) for part in each["loc"]) or "the file": each for each in error.errors()}
        version = faults.get("schema_version")
        if version is not None and version["type"] == "less_than_equal":
            what = f"schema_version {version['input']} is of a later version of slo-bench: upgrade to read it"
            raise UsageError(f"{path} cannot be read: {what}") from None
        where, first = next(iter(faults.items()))
        raise UsageError(f"{path} cannot be read: {where}: {first['msg']}") from None


def to_json(document: Document) -> str:
    """A document as it is written: two spaces, keys in the order of the model."""
    return json.dumps(document.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
