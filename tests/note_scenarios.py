"""Experiments whose notes are golden, made from the small one: a failed gate, an effect within drift, a real effect."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

from comparisons import arm_row, document, pairs

from gates.accuracy import AccuracyRun, ItemResult, judge_accuracy
from gates.answers import Grade
from reports.cost import cost
from reports.gates_document import GatesDocument, gates_document
from reports.kernels import KernelRow, KernelsDocument
from reports.metrics import write_metrics
from reports.power import PowerSample
from reports.power_document import GpuRow, IdleRow, PowerDocument, WindowPowerRow, write_samples
from reports.run_directory import Document, ProbeRow, SweepDocument
from reports.withheld import withheld
from traffic.server_facts import Histogram, ServerSample

Documents = dict[str, Document]

BASE, TUNED, AGAIN = "moe-default", "moe-tuned", "moe-default-2"
BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
WINDOW_EVERY_S = 160.0
USD_PER_HOUR = 3.29
STEP_BOUNDS = (16.0, 64.0, 128.0, 512.0)


def gate(label: str, right: int, first: AccuracyRun | None = None) -> tuple[GatesDocument, AccuracyRun]:
    """The gate of an arm that answers so many of 50 items right."""
    results = tuple(
        ItemResult(index, Grade.RIGHT if index < right else Grade.WRONG, Fraction(index), finish_reason="stop")
        for index in range(50)
    )
    run = AccuracyRun(label, "openai/gsm8k main/test", "a1", "b2", 512, 85, results)
    verdict = judge_accuracy(run, floor=0.7, first=first)
    return gates_document(label=label, engine="simulated", verdict=verdict, run=run, floor=0.7), run


def gated(documents: Documents, right_of_tuned: int) -> Documents:
    """With an accuracy gate in every arm; the tuned one answers so many of 50 right."""
    base, first = gate(BASE, 46)
    made = {BASE: base, TUNED: gate(TUNED, right_of_tuned, first)[0], AGAIN: gate(AGAIN, 46, first)[0]}
    changed = dict(documents)
    for label, found in made.items():
        sweep = documents[f"arms/{label}/sweep.json"]
        assert isinstance(sweep, SweepDocument)
        changed[f"arms/{label}/gates.json"] = found
        changed[f"arms/{label}/sweep.json"] = withheld(sweep, found.outcome)
    return changed


def gate_failed(documents: Documents) -> Documents:
    """The tuned arm is faster and answers a third of the questions wrong that it used to answer."""
    return gated(documents, right_of_tuned=29)


def within_drift(documents: Documents) -> Documents:
    """The tuned arm is 0.4 % faster, and two equal arms differ by 0.7 %."""
    sweep = documents[f"arms/{TUNED}/sweep.json"]
    assert isinstance(sweep, SweepDocument)
    closer = [
        row.model_copy(update={name: value / 0.97 * 0.996 for name in _LATENCIES if (value := getattr(row, name))})
        for row in sweep.probes
    ]
    return {**documents, f"arms/{TUNED}/sweep.json": sweep.model_copy(update={"probes": closer})}


_LATENCIES = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "ttft_mean_s", "tpot_mean_s")


def real_effect(documents: Documents) -> Documents:
    """A comparison over four starts calls the effect real; accuracy held; power, cost and kernels are there."""
    changed = gated(documents, right_of_tuned=46)
    nested = [(start, start) for start in range(4) for _ in range(2)]
    noise = (0.003, -0.004, 0.001, 0.002, -0.002, 0.0, 0.0, 0.002)
    changed[f"compare/{BASE}--{TUNED}/effect.json"] = document(
        pairs([-0.05 + value for value in noise], starts=nested),
        a=arm_row(BASE, starts=4),
        b=arm_row(TUNED, ["moe_tuned_dir=tuned"], starts=4),
        is_simulated=True,
        rate_rps=11.18,
        placement="restart",
        command=["slo-bench", "compare", "--request-rate", "11.18", "--seed", "7"],
    )
    for order, label in enumerate((BASE, TUNED, AGAIN)):
        sweep = changed[f"arms/{label}/sweep.json"]
        assert isinstance(sweep, SweepDocument)
        sweep = sweep.model_copy(update={"probes": powered(sweep.probes, 612.0 - 7.0 * order)})
        sweep = sweep.model_copy(update={"capacity_estimate_rps": 11.31, "capacity_interval_rps": (11.12, 11.47)})
        changed[f"arms/{label}/sweep.json"] = sweep
        changed[f"arms/{label}/power.json"] = power_document(sweep.probes)
        changed[f"arms/{label}/cost.json"] = cost(
            sweep,
            usd_per_hour=USD_PER_HOUR,
            gpus=1,
            started_utc="2000-01-01T00:00:00+00:00",
            ended_utc="2000-01-01T01:00:00+00:00",
        )
    changed[f"arms/{TUNED}/kernels.json"] = kernels()
    return changed


def powered(rows: list[ProbeRow], watts: float) -> list[ProbeRow]:
    """Windows one after the other, with power that rises with the rate."""
    made = []
    for index, row in enumerate(rows):
        drawn_w = watts * (row.rate_rps or 0) / 11.18
        facts: dict[str, Any] = {
            "started_utc": (BEGIN + timedelta(seconds=60 + WINDOW_EVERY_S * index)).isoformat(),
            "power_mean_w": drawn_w,
            "energy_j": drawn_w * row.window_s,
            "power_coverage_share": 1.0,
            "joules_per_output_token": drawn_w / (row.output_tokens_per_s or 1),
            "throttle_reasons": [],
        }
        made.append(row.model_copy(update=facts))
    return made


def power_document(rows: list[ProbeRow]) -> PowerDocument:
    """The same in power.json."""
    windows = [
        WindowPowerRow(
            rate_rps=row.rate_rps, concurrency=None, repeat=row.repeat, started_utc=row.started_utc, seconds_s=120.0,
            source="counter", energy_j=row.energy_j, mean_w=row.power_mean_w, coverage_share=1.0,
            counter_gap_share=0.002, output_tokens_per_s=row.output_tokens_per_s,
            joules_per_output_token=row.joules_per_output_token, sm_clock_median_mhz=1905.0, temperature_max_c=61,
            utilization_mean_share=0.97, held_down={}, flags=[],
        )
        for row in rows
    ]  # fmt: skip
    return PowerDocument(
        schema_version=1,
        source="NVML",
        not_measured=None,
        every_s=0.1,
        gpus=[GpuRow(uuid="GPU-a", name="NVIDIA H200")],
        idle=IdleRow(mean_w=118.0, seconds_s=10.0, server_is_up=True),
        windows=windows,
        notes=[],
    )


def kernels() -> KernelsDocument:
    """Kernel times under two routings: a gain under one, a loss at some sizes under the other."""
    times = {"uniform": (0.87, 0.90, 0.93, 0.97), "concentrated": (0.95, 1.04, 1.10, 0.99)}
    return KernelsDocument(
        schema_version=1,
        rows=[
            KernelRow(
                tokens=tokens,
                routing=routing,
                before_s=tokens**0.5 * 2e-5,
                after_s=tokens**0.5 * 2e-5 * factor,
                limit_share=0.71,
            )
            for routing, factors in times.items()
            for tokens, factor in zip((1, 64, 128, 1024), factors, strict=True)
        ],
        moe_share=0.42,
        tuning_s=9540.0,
    )


def write_samples_of(directory: Path) -> None:
    """power.parquet and metrics.parquet beside each sweep of a real effect, and a plan."""
    for label in (BASE, TUNED, AGAIN):
        arm = directory / "arms" / label
        sweep = SweepDocument.model_validate_json((arm / "sweep.json").read_bytes())
        write_samples(
            arm / "power.parquet", [_reading(sweep, second) for second in range(0, 60 + 160 * len(sweep.probes), 5)]
        )
        write_metrics(arm / "metrics.parquet", [_look(second) for second in range(0, 60 + 160 * len(sweep.probes), 5)])


def _reading(sweep: SweepDocument, second: int) -> PowerSample:
    index, within_s = divmod(second - 60, WINDOW_EVERY_S)
    is_loaded = 0 <= index < len(sweep.probes) and within_s < 120
    drawn_w = (sweep.probes[int(index)].power_mean_w or 0.0) if is_loaded else 118.0
    ripple = 12.0 * math.sin(second / 3.0)
    clock_mhz = 1905 if is_loaded else 1980
    begin_s = BEGIN.timestamp()
    return PowerSample(
        100.0 + second, "GPU-a", drawn_w + ripple, "instant", None, clock_mhz, 3201, 60, 0, 0.9, begin_s + second, 70000
    )


def _look(second: int) -> ServerSample:
    """25 steps a second: a tenth of at most 16 tokens, four tenths of at most 64, and so on."""
    steps = 25 * second
    counts = tuple(steps * tenths // 10 for tenths in (1, 5, 9, 10))
    return ServerSample(
        moment_s=float(second),
        utc_s=BEGIN.timestamp() + second,
        step_tokens=Histogram(STEP_BOUNDS, counts, 78.0 * steps, steps),
    )
