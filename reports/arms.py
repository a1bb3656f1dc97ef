"""The arms of an experiment, read from its directory: which windows are compared, and the effects between arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gates.accuracy import effect_of
from gates.effect import AnswerMetric, Effect, EffectMetric, bracket_effect, effect
from gates.slo import Objective, parse_objective
from gates.spending import SpentMetric
from reports.changes import Metric
from reports.cost import CostDocument, read_cost, session_usd
from reports.effect_document import DifferenceRow, EffectDocument
from reports.gates_document import GatesDocument
from reports.passport import differences, machine_differences
from reports.power_document import PowerDocument, read_power
from reports.run_directory import (
    EngineDocument,
    ExperimentDocument,
    ProbeRow,
    RunDocument,
    SweepDocument,
    TruthArm,
    TruthDocument,
    read_document,
)
from reports.tuning_document import Tuning
from traffic.errors import UsageError

SIMULATED = "SIMULATED"
SMOKE = "smoke: not a measurement"

TOKENS_APART_SHARE = 0.01
"""Arms whose mean output length differs by more than this answered different work: flagged."""


@dataclass(frozen=True, slots=True)
class AnchorWindows:
    """An arm's windows at the anchor rate, one per repeat, ascending.

    whole: followed to the end, so that a mean or percentile of them stands for the cohort. cut: valid but ended early;
    they have an outcome, and what they measured is only the quick part of their cohort. invalid: no result.
    """

    whole: tuple[ProbeRow, ...]
    cut: tuple[ProbeRow, ...]
    invalid: tuple[ProbeRow, ...]

    @property
    def passed(self) -> int:
        """Valid windows that passed; those that ended early count."""
        return sum(row.outcome is not None and row.outcome.passed for row in (*self.whole, *self.cut))

    @property
    def valid(self) -> int:
        """Valid windows."""
        return len(self.whole) + len(self.cut)


@dataclass(frozen=True, slots=True)
class Arm:
    """One labelled configuration: its directory and its documents.

    power, cost: None in runs of earlier versions. gate: None where accuracy was not measured.
    """

    label: str
    directory: Path
    run: RunDocument
    sweep: SweepDocument
    engine: EngineDocument
    power: PowerDocument | None = None
    cost: CostDocument | None = None
    gate: GatesDocument | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether any of its documents says so: a mark too many is better than one too few."""
        return "simulated" in (self.run.engine, self.sweep.engine, self.engine.kind)

    @property
    def is_smoke(self) -> bool:
        """Whether it is a smoke run."""
        return self.sweep.is_smoke

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The SLO as it was judged."""
        return tuple(parse_objective(text) for text in self.sweep.slo)

    def at(self, rate_rps: float | None) -> AnchorWindows:
        """The windows at a rate. Of several with one repeat the whole one counts, then the later one."""
        rows = [row for row in self.sweep.probes if row.rate_rps is not None and row.rate_rps == rate_rps]
        best: dict[int, ProbeRow] = {}
        for row in rows:
            known = best.get(row.repeat)
            if row.is_valid and (known is None or row.is_whole or not known.is_whole):
                best[row.repeat] = row
        valid = [best[repeat] for repeat in sorted(best)]
        return AnchorWindows(
            whole=tuple(row for row in valid if row.is_whole),
            cut=tuple(row for row in valid if not row.is_whole),
            invalid=tuple(row for row in rows if not row.is_valid),
        )


@dataclass(frozen=True, slots=True)
class BlockComparison:
    """A comparison by interleaved blocks, and the folder in which it lies."""

    directory: Path
    document: EffectDocument


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment's documents and arms, in the order in which they ran. truth is None outside a demonstration.

    tunings: searches whose run directories were given beside those of the arms.
    """

    directory: Path
    document: ExperimentDocument
    arms: tuple[Arm, ...]
    truth: TruthDocument | None
    comparisons: tuple[BlockComparison, ...] = ()
    tunings: tuple[Tuning, ...] = ()

    def arm(self, label: str) -> Arm:
        """An arm by its label."""
        return next(each for each in self.arms if each.label == label)

    @property
    def baseline(self) -> Arm:
        """The arm that effects are measured against."""
        return self.arm(self.document.baseline)

    @property
    def drift_arm(self) -> Arm | None:
        """The arm that equals the baseline."""
        return None if self.document.drift_arm is None else self.arm(self.document.drift_arm)

    @property
    def compared(self) -> tuple[Arm, ...]:
        """The arms whose effect is asked for."""
        return tuple(each for each in self.arms if each.label not in (self.document.baseline, self.document.drift_arm))

    @property
    def equals(self) -> tuple[Arm, ...]:
        """The baseline and, where there is one, the arm that equals it."""
        return (self.baseline,) if self.drift_arm is None else (self.baseline, self.drift_arm)

    @property
    def mark(self) -> str:
        """What every heading, figure and caption must say; empty for a measurement on a server."""
        is_simulated = self.document.engine == "simulated" or any(each.document.is_simulated for each in self.tunings)
        return mark_of(self.arms, is_simulated=is_simulated)

    def effect(self, arm: Arm, metric: Metric) -> Effect:
        """The effect of an arm against the baseline at the anchor rate.

        Of dollars it is at each one's capacity, of accuracy at whatever load its gate was held.
        """
        if isinstance(metric, AnswerMetric):
            runs = (None if each.gate is None else each.gate.run() for each in (self.baseline, arm))
            return effect_of(*runs)
        if metric is SpentMetric.USD_PER_MILLION:
            return _cost_effect(self.baseline.cost, arm.cost)
        return effect(metric, *paired_values(self.baseline, arm, self.document.anchor_rps, metric))

    def drift(self, metric: Metric) -> Effect | None:
        """The same of the arm that equals the baseline; None without one."""
        return None if self.drift_arm is None else self.effect(self.drift_arm, metric)

    @property
    def other_metrics(self) -> tuple[AnswerMetric | SpentMetric, ...]:
        """What was measured in the baseline beside latency, so that arms can be held against it."""
        rows = self.baseline.at(self.document.anchor_rps).whole
        cost = self.baseline.cost
        has: dict[AnswerMetric | SpentMetric, bool] = {
            AnswerMetric.ACCURACY: self.effect(self.baseline, AnswerMetric.ACCURACY).share is not None,
            SpentMetric.POWER_MEAN: any(row.power_mean_w is not None for row in rows),
            SpentMetric.JOULES_PER_TOKEN: any(row.joules_per_output_token is not None for row in rows),
            SpentMetric.USD_PER_MILLION: cost is not None and cost.per_million_output_usd is not None,
        }
        return tuple(metric for metric, is_there in has.items() if is_there)

    @property
    def session_usd(self) -> float | None:
        """The price of the whole experiment; None where no price is known."""
        cost, document = self.baseline.cost, self.document
        return session_usd(None if cost is None else cost.usd_per_hour, document.started_utc, document.ended_utc)

    def passport_differences(self, arm: Arm) -> list[DifferenceRow]:
        """In what an arm's server and machine differ from the baseline's: what was meant to, and what was not."""
        base = self.baseline
        return [*differences(base.engine, arm.engine), *machine_differences(base.run, arm.run)]

    def truth_of(self, arm: Arm) -> TruthArm | None:
        """What was hidden in an arm."""
        return None if self.truth is None else next((e for e in self.truth.arms if e.label == arm.label), None)


def mark_of(arms: Sequence[Arm], *, is_simulated: bool = False) -> str:
    """The marks of some arms together."""
    marks = []
    if is_simulated or any(arm.is_simulated for arm in arms):
        marks.append(SIMULATED)
    if any(arm.is_smoke for arm in arms):
        marks.append(SMOKE)
    return ", ".join(marks)


def _cost_effect(base: CostDocument | None, other: CostDocument | None) -> Effect:
    """Dollars per million output tokens; both ends of each arm come from its capacity's bracket."""
    ends = [(None, None) if each is None else each.per_million_interval_usd or (None, None) for each in (base, other)]
    at = [None if each is None else each.per_million_output_usd for each in (base, other)]
    return bracket_effect(SpentMetric.USD_PER_MILLION, ends[0], ends[1], at=(at[0], at[1]))


def value_of(row: ProbeRow, metric: Metric) -> float | None:
    """A window's value of a metric, in seconds, watts or joules; None of dollars and accuracy, which no window has."""
    values: dict[Metric, float | None] = {
        EffectMetric.TPOT_MEAN: row.tpot_mean_s,
        EffectMetric.TTFT_MEAN: row.ttft_mean_s,
        EffectMetric.TPOT_P99: row.tpot_p99_s,
        EffectMetric.TTFT_P99: row.ttft_p99_s,
        SpentMetric.POWER_MEAN: row.power_mean_w,
        SpentMetric.JOULES_PER_TOKEN: row.joules_per_output_token,
    }
    return values.get(metric)


Values = Mapping[int, float | None]


def paired_values(
    base: Arm, other: Arm, rate_rps: float | None, metric: EffectMetric | SpentMetric
) -> tuple[Values, Values]:
    """Values per repeat of two arms at a rate, as `value_of`.

    Only whole windows have one. Windows of different length are no partners, since they do not hold the same requests.
    """
    windows = base.at(rate_rps), other.at(rate_rps)
    lengths = [{row.repeat: row.window_s for row in each.whole} for each in windows]

    def values(side: int) -> dict[int, float | None]:
        rows = {row.repeat: row for row in (*windows[side].cut, *windows[side].invalid, *windows[side].whole)}
        return {
            repeat: value_of(row, metric)
            if repeat in lengths[side] and lengths[1 - side].get(repeat, row.window_s) == row.window_s
            else None
            for repeat, row in rows.items()
        }

    return values(0), values(1)


def read_experiment(directory: Path) -> Experiment:
    """Read an experiment and all its arms.

    Raises UsageError for what cannot be read, and for arms that do not belong together: another label than their
    folder's, another engine or another seed than the experiment's. With another seed no window has a partner.
    """
    document = read_document(directory / "experiment.json", ExperimentDocument)
    arms = tuple(_read_arm(directory / "arms" / label, label, document) for label in document.arms)
    truth_path = directory / "truth.json"
    truth = read_document(truth_path, TruthDocument) if truth_path.exists() else None
    for each in truth.arms if truth is not None else ():
        if each.label not in document.arms:
            raise UsageError(f"{truth_path} tells of an arm {each.label!r} that the experiment does not have")
    paths = sorted((directory / "compare").glob("*/effect.json"))
    comparisons = tuple(BlockComparison(path.parent, read_document(path, EffectDocument)) for path in paths)
    return Experiment(directory, document, arms, truth, comparisons)


def read_arm(directory: Path, label: str) -> Arm:
    """Read one run directory of a sweep. Raises UsageError for what cannot be read."""
    gate_path = directory / "gates.json"
    return Arm(
        label=label,
        directory=directory,
        run=read_document(directory / "run.json", RunDocument),
        sweep=read_document(directory / "sweep.json", SweepDocument),
        engine=read_document(directory / "engine.json", EngineDocument),
        power=read_power(directory),
        cost=read_cost(directory),
        gate=read_document(gate_path, GatesDocument) if gate_path.exists() else None,
    )


def _read_arm(directory: Path, label: str, document: ExperimentDocument) -> Arm:
    arm = read_arm(directory, label)
    for found in (arm.run, arm.sweep):
        for what, has, wants in (
            ("label", found.label, label),
            ("engine", found.engine, document.engine),
            ("seed", found.seed, document.seed),
        ):
            if has != wants:
                raise UsageError(f"{directory} is of {what} {has!r}, but the experiment wants {wants!r} there")
    return arm
