"""The end-to-end table: what users saw at the anchor rate, what it drew and cost, a column per arm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gates.effect import CONFIDENCE, AnswerMetric, EffectMetric
from gates.spending import SpentMetric
from reports import numbers
from reports.arms import Arm, Experiment
from reports.changes import Metric, change
from reports.evidence import struck_because
from reports.findings import capacity_claim, experiment_rows, mean_of
from reports.run_directory import ProbeRow
from reports.story import Cell, Column, Row, Table

Form = Callable[[float | None], str]

NO_VALUE = "-"
ARRIVAL_SETS_IT = "set by the arrival rate"

_NO_CELL = Cell(NO_VALUE)


def end_to_end(experiment: Experiment) -> Table:
    """The table; an arm that is no result keeps its column and is marked."""
    columns = tuple(_columns(experiment))
    return Table(columns, tuple(_rows(experiment, columns)))


def _columns(experiment: Experiment) -> Iterator[Column]:
    for arm in experiment.arms:
        struck = struck_because(experiment, arm)
        yield Column(arm.label, arm.label, is_effect=False, struck=struck)
        if arm is not experiment.baseline:
            title = "drift" if arm is experiment.drift_arm else "effect"
            yield Column(title, arm.label, is_effect=True, struck=struck)


def _rows(experiment: Experiment, columns: Sequence[Column]) -> Iterator[Row]:
    def row(name: str, of_arm: Callable[[Arm], Cell], of_effect: Callable[[Arm], Cell] = lambda _: _NO_CELL) -> Row:
        made = (of_effect if each.is_effect else of_arm for each in columns)
        return Row(name, tuple(make(experiment.arm(each.arm)) for make, each in zip(made, columns, strict=True)))

    yield row("windows passed", lambda arm: Cell(_passed(experiment, arm)))
    yield row("requests in whole windows (n)", lambda arm: _n(experiment, arm))
    for name, of_row, form, metric in _MEASURES:
        yield row(name, _over_windows(experiment, of_row, form), _effect_of(experiment, metric))
    yield row(
        f"output tokens/s ({ARRIVAL_SETS_IT})",
        _over_windows(experiment, lambda row: row.output_tokens_per_s, _tokens),
        lambda _: Cell(ARRIVAL_SETS_IT),
    )
    yield row("output tokens per request", _over_windows(experiment, lambda row: row.output_tokens_mean, numbers.count))
    yield row("send lag p99 (ms), worst window", lambda arm: _worst_lag(experiment, arm))
    yield row(_accuracy_name(experiment), _accuracy, _effect_of(experiment, AnswerMetric.ACCURACY))
    for name, of_row, form, metric in _POWER:
        yield row(name, _over_windows(experiment, of_row, form), _effect_of(experiment, metric))
    yield row(
        "dollars per million output tokens, at its own capacity",
        lambda arm: _usd(None if arm.cost is None else arm.cost.per_million_output_usd),
        _effect_of(experiment, SpentMetric.USD_PER_MILLION),
    )
    if any(gpus_of(arm) for arm in experiment.arms):
        yield row("GPUs", lambda arm: Cell(numbers.count(gpus_of(arm)), gpus_of(arm)))
        yield row("output tokens/s per GPU", _per_gpu(experiment, lambda row: row.output_tokens_per_s, _tokens))
        yield row("mean power per GPU (W)", _per_gpu(experiment, lambda row: row.power_mean_w, _watts))
    yield row("own capacity", lambda arm: Cell(capacity_claim(arm.sweep), arm.sweep.capacity_rps))


def gpus_of(arm: Arm) -> int | None:
    """How many GPUs the server used; None where it is not known."""
    if arm.power is not None and arm.power.gpus:
        return len(arm.power.gpus)
    return None if arm.cost is None else arm.cost.gpus


def _ms(value_s: float | None) -> str:
    return numbers.ms(value_s, unit=False)


def _rate(value_rps: float | None) -> str:
    return numbers.rate(value_rps, unit=False)


def _tokens(value: float | None) -> str:
    return numbers.tokens_per_s(value, unit=False)


def _watts(value_w: float | None) -> str:
    return numbers.watts(value_w, unit=False)


def _joules(value_j: float | None) -> str:
    return numbers.joules(value_j, unit=False)


def _usd(value_usd: float | None) -> Cell:
    return Cell(numbers.usd(value_usd), value_usd)


_Measure = tuple[str, Callable[[ProbeRow], float | None], Form, Metric | None]

_MEASURES: tuple[_Measure, ...] = (
    ("TTFT p50 (ms)", lambda row: row.ttft_p50_s, _ms, None),
    ("TTFT p99 (ms)", lambda row: row.ttft_p99_s, _ms, EffectMetric.TTFT_P99),
    ("TTFT mean (ms)", lambda row: row.ttft_mean_s, _ms, EffectMetric.TTFT_MEAN),
    ("TPOT p50 (ms)", lambda row: row.tpot_p50_s, _ms, None),
    ("TPOT p99 (ms)", lambda row: row.tpot_p99_s, _ms, EffectMetric.TPOT_P99),
    ("TPOT mean (ms)", lambda row: row.tpot_mean_s, _ms, EffectMetric.TPOT_MEAN),
    ("goodput (req/s)", lambda row: row.goodput_rps, _rate, None),
)
_POWER: tuple[_Measure, ...] = (
    ("mean power (W), all GPUs", lambda row: row.power_mean_w, _watts, SpentMetric.POWER_MEAN),
    ("energy per output token (J)", lambda row: row.joules_per_output_token, _joules, SpentMetric.JOULES_PER_TOKEN),
)


def _passed(experiment: Experiment, arm: Arm) -> str:
    windows = arm.at(experiment.document.anchor_rps)
    notes = [f"{numbers.count(len(windows.cut))} ended early, not below"] if windows.cut else []
    if windows.invalid:
        notes.append(f"{numbers.count(len(windows.invalid))} invalid")
    return "; ".join([numbers.of(windows.passed, windows.valid), *notes])


def _n(experiment: Experiment, arm: Arm) -> Cell:
    rows = experiment_rows(experiment, arm)
    n = sum(row.n for row in rows) if rows else None
    return Cell(numbers.count(n), n)


def _over_windows(
    experiment: Experiment, of_row: Callable[[ProbeRow], float | None], form: Form
) -> Callable[[Arm], Cell]:
    """The mean of an arm's windows, and the lowest and highest where there are several."""

    def cell(arm: Arm) -> Cell:
        values = [of_row(row) for row in experiment_rows(experiment, arm)]
        known = [value for value in values if value is not None]
        if not known or len(known) != len(values):
            few = f" in {numbers.of(len(values) - len(known), len(values))}" if known else ""
            return Cell(f"{numbers.NOT_MEASURED}{few}")
        mean, lowest, highest = mean_of(known), form(min(known)), form(max(known))
        ends = "" if lowest == highest else f" ({lowest} to {highest})"
        return Cell(f"{form(mean)}{ends}", mean)

    return cell


def _per_gpu(experiment: Experiment, of_row: Callable[[ProbeRow], float | None], form: Form) -> Callable[[Arm], Cell]:
    def cell(arm: Arm) -> Cell:
        mean, gpus = mean_of([of_row(row) for row in experiment_rows(experiment, arm)]), gpus_of(arm)
        each = None if mean is None or not gpus else mean / gpus
        return Cell(form(each), each)

    return cell


def _effect_of(experiment: Experiment, metric: Metric | None) -> Callable[[Arm], Cell]:
    def cell(arm: Arm) -> Cell:
        found = None if metric is None else experiment.effect(arm, metric)
        if found is None or found.share is None:
            return _NO_CELL
        return Cell(change(found.metric, found.share), found.share)

    return cell


def _worst_lag(experiment: Experiment, arm: Arm) -> Cell:
    lags = [row.send_lag_p99_s for row in experiment_rows(experiment, arm) if row.send_lag_p99_s is not None]
    worst = max(lags, default=None)
    return Cell(_ms(worst), worst)


def _accuracy_name(experiment: Experiment) -> str:
    has_interval = any(arm.gate is not None and arm.gate.accuracy_interval for arm in experiment.arms)
    return f"accuracy, right of asked{f' ({numbers.confidence(CONFIDENCE)} interval)' if has_interval else ''}"


def _accuracy(arm: Arm) -> Cell:
    gate = arm.gate
    if gate is None or gate.asked is None:
        return Cell(numbers.NOT_MEASURED)
    ends = gate.accuracy_interval
    interval = "" if ends is None else f" ({numbers.share(ends[0])} to {numbers.share(ends[1])})"
    return Cell(f"{numbers.of(gate.right, gate.n)}{interval}", gate.accuracy_share)
