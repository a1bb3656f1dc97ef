"""Builders of small run directories through the real models, so that what a reader reads is what a writer writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import note_scenarios
import pytest

from gates.capacity import Capacity, CapacityVerdict, Observation, conclude
from gates.slo import DEFAULT_SLO
from gates.verdict import LimitedBy, Outcome
from reports.rows import sweep_document
from reports.run_directory import (
    Document,
    EngineDocument,
    ExperimentDocument,
    ObjectiveRow,
    ProbeRow,
    RunDocument,
    SweepDocument,
    TruthArm,
    TruthDocument,
    WarmUp,
    to_json,
)

ANCHOR_RPS = 11.18
GOLDEN_SEARCH = ((8.0, True), (10.0, True), (12.5, False), (11.18, True), (11.82, False), (11.5, False))
"""The golden case of the design: capacity 11.18, resolution 2.8 %."""

NOISE = (0.002, -0.001, 0.0005)
"""The share by which a window's latency differs, per repeat: common to all arms, as a shared schedule makes it."""


def row(rate_rps: float, *, repeat: int = 0, passed: bool = True, factor: float = 1.0, **changes: Any) -> ProbeRow:
    """One window; factor multiplies its latencies. Unlike a server's, latency is a straight line of the rate."""
    load = rate_rps / ANCHOR_RPS * factor * (1 + NOISE[repeat % len(NOISE)])
    ttft_p99_s, tpot_p99_s = 0.82 * load, 0.0489 * load if passed else 0.0522 * load
    n = round(rate_rps * 120)
    allowed = n // 100
    over_tpot = allowed - 2 if passed else allowed + 9
    objectives = [
        ObjectiveRow(metric="ttft", percentile=99, limit_s=2.0, n=n, over=0, allowed=allowed, value_s=ttft_p99_s),
        ObjectiveRow(
            metric="tpot", percentile=99, limit_s=0.05, n=n, over=over_tpot, allowed=allowed, value_s=tpot_p99_s
        ),
    ]
    facts: dict[str, Any] = {
        "rate_rps": rate_rps, "repeat": repeat, "purpose": "search", "is_proven": None, "is_valid": True,
        "outcome": Outcome.PASS if passed else Outcome.FAIL, "invalid_reasons": [],
        "limited_by": None if passed else LimitedBy.TPOT, "stop": "every request of the cohort ended",
        "n": n, "n_tpot": n, "over_ttft": 0, "over_tpot": over_tpot, "misses": over_tpot, "failed": 0, "errors": {},
        "objectives": objectives, "ttft_p50_s": 0.21 * load, "ttft_p99_s": ttft_p99_s, "tpot_p50_s": 0.0361 * load,
        "tpot_p99_s": tpot_p99_s, "ttft_mean_s": 0.26 * load, "tpot_mean_s": 0.0372 * load,
        "goodput_rps": (n - over_tpot) / 120, "offered_rps": n / 120, "achieved_share": 1.0, "send_lag_p50_s": 0.0001,
        "send_lag_p99_s": 0.0012 + 0.0001 * repeat, "send_lag_max_s": 0.004, "output_tokens_per_s": 242 * rate_rps,
        "output_tokens_mean": 242.0, "prompt_tokens_mean": 512.0, "started_utc": "2000-01-01T00:00:00+00:00",
        "window_s": 120.0, "load_s": 145.0, "saved_s": 0.0, "requests_file": f"probes/01-{rate_rps:.2f}.parquet",
    }  # fmt: skip
    return ProbeRow(**{**facts, **changes})


def golden_rows(factor: float = 1.0) -> list[ProbeRow]:
    """The windows of the golden search with their repeats."""
    first = [row(rate_rps, passed=passed, factor=factor) for rate_rps, passed in GOLDEN_SEARCH]
    again = [(11.18, 1, True), (11.18, 2, True), (11.5, 1, False), (11.5, 2, False)]
    return first + [row(rate_rps, repeat=repeat, passed=passed, factor=factor) for rate_rps, repeat, passed in again]


def capacity_of(rows: Sequence[ProbeRow], verdict: CapacityVerdict = CapacityVerdict.FOUND) -> Capacity:
    """What the rows show."""
    seen = [
        Observation(each.rate_rps, each.repeat, each.outcome.passed)
        for each in rows
        if each.is_valid and each.rate_rps is not None and each.outcome is not None and each.purpose == "search"
    ]
    return conclude(seen, verdict)


def sweep(label: str, rows: Sequence[ProbeRow], **changes: Any) -> SweepDocument:
    """A sweep's document from its rows."""
    document = sweep_document(
        label=label,
        engine="simulated",
        seed=7,
        slo=DEFAULT_SLO,
        is_smoke=False,
        capacity=capacity_of(rows, changes.pop("verdict", CapacityVerdict.FOUND)),
        warm_up=WarmUp(is_warm=True, rate_rps=12.5, block_s=30, tpot_mean_s=[0.0455, 0.0391, 0.0389]),
        probes=rows,
    )
    return document.model_copy(update=changes)


def run(label: str, **changes: Any) -> RunDocument:
    """A run's document."""
    facts: dict[str, Any] = {
        "kind": "sweep", "label": label, "status": "done", "engine": "simulated", "seed": 7,
        "config": {
            "mode": "quick", "command": ["slo-bench", "sweep", "--label", label, "--engine", "simulated"],
            "engine": {"step_time_factor": 0.97 if label == "moe-tuned" else 1.0, "max_num_seqs": 1024},
        },
        "environment": {"python": "3.11.7", "cpus": 2, "gpus": None},
        "started_utc": "2000-01-01T00:00:00+00:00", "ended_utc": "2000-01-01T01:00:00+00:00",
    }  # fmt: skip
    return RunDocument(schema_version=1, **{**facts, **changes})


def engine(**changes: Any) -> EngineDocument:
    """An engine's document."""
    facts: dict[str, Any] = {
        "kind": "simulated", "model": "simulated-30b-a3b", "max_model_len": 16384, "version": None,
        "takes_forced_length": True, "start": 0, "details": {"kv_cache_tokens": 240000},
    }  # fmt: skip
    return EngineDocument(schema_version=1, **{**facts, **changes})


def experiment(arms: Sequence[str], **changes: Any) -> ExperimentDocument:
    """An experiment's document; the first arm is the baseline."""
    facts: dict[str, Any] = {
        "label": "small", "title": "Tuned kernels against the default", "seed": 7, "engine": "simulated",
        "arms": list(arms), "baseline": arms[0], "drift_arm": None, "anchor_rps": ANCHOR_RPS,
        "started_utc": "2000-01-01T00:00:00+00:00", "ended_utc": "2000-01-01T03:00:00+00:00",
    }  # fmt: skip
    return ExperimentDocument(schema_version=1, **{**facts, **changes})


def tuned_rows() -> list[ProbeRow]:
    """An arm that is 3 % faster, whose capacity lies a step higher, with an invalid window that was measured again."""
    bad = row(12.5, factor=0.97, is_valid=False, outcome=None, passed=False, send_lag_p99_s=0.0312).model_copy(
        update={"invalid_reasons": ["send lag p99 31.2 ms is above 10 ms: give the client a free core"]}
    )
    rates = ((8.0, True), (10.0, True), (12.5, False), (11.18, True), (11.82, False), (11.5, True))
    first = [row(rate_rps, passed=passed, factor=0.97) for rate_rps, passed in rates]
    again = [row(rate, repeat=r, passed=rate < 11.6, factor=0.97) for rate in (11.5, 11.82) for r in (1, 2)]
    anchor = [row(ANCHOR_RPS, repeat=repeat, factor=0.97 + 0.001 * repeat, purpose="anchor") for repeat in (1, 2)]
    return [first[0], first[1], bad, *first[2:], *again, *anchor]


Documents = dict[str, Document]


def small_documents() -> Documents:
    """Path inside the experiment's directory -> document: default, tuned, and the default again with some drift."""
    arms = {
        "moe-default": golden_rows(),
        "moe-tuned": tuned_rows(),
        "moe-default-2": [
            each.model_copy(update={"tpot_mean_s": (each.tpot_mean_s or 0) * (1.004 + 0.0005 * each.repeat)})
            for each in golden_rows(1.002)
        ],
    }
    documents: Documents = {
        "experiment.json": experiment(tuple(arms), drift_arm="moe-default-2"),
        "truth.json": TruthDocument(
            schema_version=1,
            arms=[
                TruthArm(
                    label=label,
                    hidden=hidden,
                    true_capacity_rps=true_rps,
                    true_tpot_effect_share=effect_share,
                    plain_claim_share=claim_share,
                )
                for label, hidden, true_rps, effect_share, claim_share in (
                    ("moe-default", "nothing", 11.3, None, None),
                    ("moe-tuned", "every step takes 3 % less time", 11.72, -0.031, -0.081),
                    ("moe-default-2", "nothing but drift", 11.25, 0.0, 0.052),
                )
            ],
            drift_share=0.005,
            cold_start="the first 40 s of a server are up to 35 % slower",
        ),
    }
    for label, rows in arms.items():
        documents[f"arms/{label}/run.json"] = run(label)
        documents[f"arms/{label}/sweep.json"] = sweep(label, rows)
        documents[f"arms/{label}/engine.json"] = engine()
    return documents


def write_documents(directory: Path, documents: Mapping[str, Document]) -> Path:
    """Write them where they belong."""
    for name, document in documents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(document))
    return directory


Write = Callable[[Mapping[str, Document]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes documents into a fresh experiment directory."""
    return lambda documents: write_documents(tmp_path / "small", documents)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The small experiment."""
    return write_documents(tmp_path / "small", small_documents())


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[[str], Path]:
    """Writes an experiment of `note_scenarios` by its name."""

    def make(name: str) -> Path:
        directory = write_documents(tmp_path / name, getattr(note_scenarios, name)(small_documents()))
        if name == "real_effect":
            note_scenarios.write_samples_of(directory)
        return directory

    return make
