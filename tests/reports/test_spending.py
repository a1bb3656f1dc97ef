"""Power, energy and money get the same effect, drift and verdict as latency."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gates.effect import EffectMetric, Finding, conclude
from gates.spending import SpentMetric
from reports.arms import Experiment, read_experiment
from reports.cost import COST_NAME, cost
from reports.power_document import POWER_NAME, GpuRow, IdleRow, PowerDocument
from reports.run_directory import SweepDocument, read_document, to_json
from reports.spending import experiment_lines, passport_lines, price_text, spending_lines

WATTS = {"moe-default": 600.0, "moe-tuned": 540.0, "moe-default-2": 603.0}
ANCHOR_RPS = 11.18


def power(**changes: object) -> PowerDocument:
    facts: dict[str, object] = {
        "source": "NVML",
        "not_measured": None,
        "every_s": 0.1,
        "gpus": [GpuRow(uuid="GPU-a", name="NVIDIA H200")],
        "idle": IdleRow(mean_w=79.4, seconds_s=5.0, server_is_up=False),
        "windows": [],
        "notes": [],
    }
    return PowerDocument.model_validate({"schema_version": 1, **facts, **changes})


def measured(small: Path, watts: dict[str, float], usd_per_hour: float | None = None) -> Experiment:
    """The small experiment with power in its anchor windows, and a price."""
    for label, level in watts.items():
        folder = small / "arms" / label
        sweep = json.loads((folder / "sweep.json").read_text())
        for row in sweep["probes"]:
            if row["rate_rps"] == ANCHOR_RPS:
                row["power_mean_w"] = level * (1 + 0.001 * (row["repeat"] - 1))
                row["joules_per_output_token"] = row["power_mean_w"] / row["output_tokens_per_s"]
        (folder / "sweep.json").write_text(json.dumps(sweep))
        (folder / POWER_NAME).write_text(to_json(power()))
        document = read_document(folder / "sweep.json", SweepDocument)
        began, ended = "2000-01-01T00:00:00+00:00", "2000-01-01T01:00:00+00:00"
        priced = cost(document, usd_per_hour=usd_per_hour, gpus=1, started_utc=began, ended_utc=ended)
        (folder / COST_NAME).write_text(to_json(priced))
    return read_experiment(small)


def finding(experiment: Experiment, metric: SpentMetric | EffectMetric) -> Finding:
    return conclude(experiment.effect(experiment.arm("moe-tuned"), metric), experiment.drift(metric))


def test_runs_of_earlier_versions_have_neither_power_nor_price(small: Path) -> None:
    experiment = read_experiment(small)
    assert (experiment.baseline.power, experiment.baseline.cost, experiment.session_usd) == (None, None, None)
    assert experiment.other_metrics == ()
    assert experiment_lines(experiment) == []
    assert finding(experiment, SpentMetric.POWER_MEAN) is Finding.TOO_FEW_PAIRS


def test_watts_and_joules_beyond_the_drift_are_an_effect(small: Path) -> None:
    experiment = measured(small, WATTS)
    assert experiment.other_metrics == (SpentMetric.POWER_MEAN, SpentMetric.JOULES_PER_TOKEN)
    effect = experiment.effect(experiment.arm("moe-tuned"), SpentMetric.POWER_MEAN)
    assert effect.share == pytest.approx(-0.10)
    assert effect.n_pairs == 3
    assert finding(experiment, SpentMetric.POWER_MEAN) is Finding.BETWEEN_INSTANCES
    assert finding(experiment, SpentMetric.JOULES_PER_TOKEN) is Finding.BETWEEN_INSTANCES


def test_watts_inside_the_drift_are_no_change_seen(small: Path) -> None:
    experiment = measured(small, {**WATTS, "moe-tuned": 603.0, "moe-default-2": 609.0})
    assert finding(experiment, SpentMetric.POWER_MEAN) is Finding.WITHIN_DRIFT
    lines = experiment_lines(experiment)
    assert lines[1].startswith("moe-tuned: power at 11.50 req/s: not measured")  # no window of its capacity was read
    (line,) = [line for line in lines if "mean power" in line]
    assert line.startswith("moe-tuned: mean power +0.5 % (")
    assert line.endswith("no change seen, within drift")


def test_dollars_are_compared_by_the_brackets_of_the_capacities(small: Path) -> None:
    experiment = measured(small, WATTS, usd_per_hour=4.0)
    effect = experiment.effect(experiment.arm("moe-tuned"), SpentMetric.USD_PER_MILLION)
    assert effect.share == pytest.approx(11.18 / 11.5 - 1)  # capacities of the two arms
    assert effect.interval == (pytest.approx(11.18 / 11.82 - 1), pytest.approx(0.0))
    assert finding(experiment, SpentMetric.USD_PER_MILLION) is Finding.BELOW_RESOLUTION
    drift = experiment.drift(SpentMetric.USD_PER_MILLION)
    assert drift is not None
    assert drift.interval == (pytest.approx(11.18 / 11.5 - 1), pytest.approx(11.5 / 11.18 - 1))
    lines = experiment_lines(experiment)
    assert "moe-default-2: cost: $4.00 for this measurement" in "; ".join(lines)
    assert lines[-1] == "session: $12.00"


def test_one_sweep_says_what_it_drew_and_cost(small: Path) -> None:
    experiment = measured(small, WATTS, usd_per_hour=4.0)
    base = experiment.baseline
    drew, paid = spending_lines(base.directory, base.sweep)
    assert drew == "power at 11.18 req/s: 600 W, 0.222 J per output token (NVML, 1 GPU, idle 79.4 W)"
    assert paid == (
        "cost: $4.00 for this measurement at $4.00/hour, 1 GPU, $0.41 per million output tokens at the capacity"
    )


def test_power_that_was_not_measured_says_why_and_is_no_number(small: Path) -> None:
    experiment = measured(small, WATTS)
    (experiment.baseline.directory / POWER_NAME).write_text(to_json(power(source=None, not_measured="no driver")))
    assert spending_lines(experiment.baseline.directory, experiment.baseline.sweep) == [
        "power: not measured: no driver"
    ]


def test_without_a_capacity_there_is_nothing_to_tell_power_at(small: Path) -> None:
    base = measured(small, WATTS).baseline
    (line,) = spending_lines(base.directory, base.sweep.model_copy(update={"capacity_rps": None}))
    assert line == "power: read (NVML, 1 GPU, idle 79.4 W), but there is no capacity to tell it at"


def test_a_window_without_power_leaves_no_mean(small: Path) -> None:
    experiment = measured(small, WATTS)
    base = experiment.baseline
    rows = [row.model_copy(update={"power_mean_w": None} if row.repeat == 1 else {}) for row in base.sweep.probes]
    (line,) = spending_lines(base.directory, base.sweep.model_copy(update={"probes": rows}))
    assert line.startswith("power at 11.18 req/s: not measured, 0.222 J")


def test_a_forecast_has_a_price_where_one_is_known() -> None:
    assert price_text(None, 90) == "price per hour not known"
    assert price_text(3.99, 120) == "at most $7.98 at $3.99/hour"


def test_passports_that_differ_are_told(small: Path) -> None:
    folder = small / "arms" / "moe-tuned"
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "environment": {**run["environment"], "cpus": 4}}))
    engine = json.loads((folder / "engine.json").read_text())
    passport = {"packages": {"torch": "2.12.0"}, "gpus": {"names": ["NVIDIA H200"]}}
    (folder / "engine.json").write_text(json.dumps({**engine, "details": {**engine["details"], "passport": passport}}))
    experiment = read_experiment(small)
    lines = passport_lines(experiment.passport_differences(experiment.arm("moe-tuned")))
    assert lines == [
        "other gpus.names: None and NVIDIA H200",
        "other packages.torch: None and 2.12.0",
        "other cpus: 2 and 4",
    ]
    assert [line for line in experiment_lines(experiment) if "torch" in line] == [
        "moe-tuned: other packages.torch: None and 2.12.0"
    ]
