"""What a run drew and cost, in lines for a terminal; what was not measured says why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gates.effect import conclude
from reports import numbers
from reports.arms import Arm, Experiment
from reports.changes import Metric, with_interval
from reports.cost import CostDocument, dollars, read_cost
from reports.effect_document import DifferenceRow
from reports.power_document import PowerDocument, read_power
from reports.run_directory import ProbeRow, SweepDocument


def spending_lines(directory: Path, sweep: SweepDocument) -> list[str]:
    """Power and money of one sweep."""
    power, cost = read_power(directory), read_cost(directory)
    lines = [] if power is None else [power_line(sweep, power)]
    return lines if cost is None or cost.usd_per_hour is None else [*lines, cost_line(cost)]


def power_line(sweep: SweepDocument, power: PowerDocument) -> str:
    """Watts and joules at the capacity: 612 W, 0.412 J per output token (NVML, 1 GPU, ...)."""
    if power.not_measured is not None:
        return f"power: not measured: {power.not_measured}"
    rows = [row for row in sweep.probes if row.is_valid and row.rate_rps == sweep.capacity_rps]
    if sweep.capacity_rps is None:
        return f"power: read ({read_by(power)}), but there is no capacity to tell it at"
    return f"power at {numbers.rate(sweep.capacity_rps)}: {drawn(rows)} ({read_by(power)})"


def drawn(rows: list[ProbeRow]) -> str:
    """Mean power and energy per output token of some windows of one rate."""
    watts, joules = (
        _mean([getattr(row, name) for row in rows]) for name in ("power_mean_w", "joules_per_output_token")
    )
    return f"{numbers.watts(watts)}, {numbers.joules(joules)} per output token"


def read_by(power: PowerDocument) -> str:
    """Where figures of power come from: NVML, 2 GPUs, idle 158 W."""
    parts = [power.source or numbers.NOT_KNOWN, numbers.plural(len(power.gpus), "GPU")]
    if power.idle is not None and power.idle.mean_w is not None:
        state = " with the server up" if power.idle.server_is_up else ""
        parts.append(f"idle{state} {numbers.watts(power.idle.mean_w)}")
    return ", ".join(parts)


def window_power_line(row: ProbeRow, power: PowerDocument) -> str:
    """Watts and joules of a single window."""
    if power.not_measured is not None:
        return f"power: not measured: {power.not_measured}"
    return f"power: {drawn([row])} ({read_by(power)})"


def price_text(usd_per_hour: float | None, minutes: float) -> str:
    """What so many minutes cost at most."""
    if usd_per_hour is None:
        return "price per hour not known"
    return f"at most {numbers.usd(dollars(usd_per_hour, minutes * 60))} at {numbers.usd(usd_per_hour)}/hour"


def cost_line(cost: CostDocument) -> str:
    """Dollars of an arm and per million output tokens."""
    parts = [f"{numbers.usd(cost.measuring_usd)} for this measurement at {numbers.usd(cost.usd_per_hour)}/hour"]
    if cost.gpus is not None:
        per_gpu = f"{numbers.usd(cost.measuring_per_gpu_usd)} for each of {numbers.plural(cost.gpus, 'GPU')}"
        parts.append(per_gpu if cost.gpus > 1 else "1 GPU")
    if cost.per_million_output_usd is not None:
        parts.append(f"{numbers.usd(cost.per_million_output_usd)} per million output tokens at the capacity")
    return f"cost: {', '.join(parts)}"


def experiment_lines(experiment: Experiment) -> list[str]:
    """Power, energy and money of all arms with the same verdict as latency, and what the session cost."""
    power, metrics = experiment.baseline.power, experiment.other_metrics
    lines = [f"power: not measured: {power.not_measured}"] if power is not None and power.not_measured else []
    for arm in experiment.arms:
        if arm.power is not None and arm.power.not_measured is None:
            lines.append(f"{arm.label}: {power_line(arm.sweep, arm.power)}")
        if arm.cost is not None and arm.cost.usd_per_hour is not None:
            lines.append(f"{arm.label}: {cost_line(arm.cost)}")
    for arm in experiment.compared:
        lines += [f"{arm.label}: {metric} {change_text(experiment, arm, metric)}" for metric in metrics]
        lines += [f"{arm.label}: {line}" for line in passport_lines(experiment.passport_differences(arm))]
    usd = experiment.session_usd
    return lines if usd is None else [*lines, f"session: {numbers.usd(usd)}"]


def change_text(experiment: Experiment, arm: Arm, metric: Metric) -> str:
    """An effect beside its drift: -1.2 % (-1.9 % to -0.5 %), drift +0.3 % (...): no change seen, within drift."""
    effect, drift = experiment.effect(arm, metric), experiment.drift(metric)
    beside = "not measured" if drift is None else with_interval(metric, drift.share, drift.interval)
    told = with_interval(metric, effect.share, effect.interval)
    return f"{told}, drift {beside}: {conclude(effect, drift).said}"


def passport_lines(rows: Sequence[DifferenceRow]) -> list[str]:
    """Differences that nobody may have meant: software, model, files and machine."""
    told = [row for row in rows if row.what.startswith(("passport.", "machine.")) or row.what == "version"]
    return [f"other {row.what.partition('.')[2] or row.what}: {row.a} and {row.b}" for row in told]


def _mean(values: list[float | None]) -> float | None:
    """The mean of the windows, None where one has no value: leaving it out might flatter."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
