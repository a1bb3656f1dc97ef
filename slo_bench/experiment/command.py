"""`slo-bench experiment`: a plan's arms in order, the first one again at the end, comparisons, and one lab note."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from gates.capacity import CapacityVerdict
from reports.arms import read_experiment
from reports.run_directory import RunDocument, read_document
from reports.spending import experiment_lines
from reports.text_words import text_lines
from slo_bench.accuracy.after_sweep import gate_line, sweep_gate
from slo_bench.accuracy.holding import GatePlan
from slo_bench.commands import forecast, marks, run_record, sweep_plan, warn_of_files
from slo_bench.compare.planned import ArmComparison, check_same_comparison, compare_arms, planned_comparisons
from slo_bench.config import SweepOptions
from slo_bench.doctor.client_limit import client_limit
from slo_bench.engine_options import EngineOptions, option
from slo_bench.engines import confirm, host_for
from slo_bench.environment import environment
from slo_bench.experiment.arms import Arm, Experiment, Progress, run_experiment
from slo_bench.experiment.plan import Plan, PlannedArm, read_plan, shown_plan
from slo_bench.experiment.tuning import FOLDER, placed, rehearsed_tune, tune_before
from slo_bench.lock import held
from slo_bench.options import Options
from slo_bench.resume import check_same
from slo_bench.stopped import resumable
from slo_bench.store import RunStore, write_text
from slo_bench.sweep import SweepPlan
from slo_bench.view import SweepView
from traffic.errors import EngineError, InvalidMeasurement, UsageError
from traffic.step_model import EngineSettings

NOTE = "note.md"
PLAN_NAME = "plan.toml"
_RUN = "run"


class ExperimentOptions(Options):
    """Options of `slo-bench experiment`."""

    plan: Path | None = option(None, "the plan, a TOML file", group=_RUN, metavar="PLAN.toml", is_positional=True)
    rehearse: bool = option(
        default=False,
        description="run the plan on the simulated engine, with the levers that it knows: see the whole way first",
        group=_RUN,
    )
    mode: Literal["smoke", "quick", "full"] | None = option(None, "in place of the plan's mode", group=_RUN)
    gate: Literal["gsm8k", "none"] | None = option(None, "in place of the plan's accuracy gate", group=_RUN)
    gsm8k_file: Path | None = option(None, "in place of the plan's GSM8K items", group=_RUN, metavar="FILE")
    runs_dir: Path = option(Path("runs"), "where run directories are made", group=_RUN, metavar="DIR")
    resume: bool = option(default=False, description="go on where an earlier run of this plan ended", group=_RUN)
    dry_run: bool = option(default=False, description="print what would be measured, then stop", group=_RUN)
    yes: bool = option(default=False, description="do not ask before loading a host that is not this one", group=_RUN)

    @model_validator(mode="after")
    def _has_a_plan(self) -> ExperimentOptions:
        if self.plan is None:
            raise ValueError("give a plan: slo-bench experiment PLAN.toml")
        return self

    def the_plan(self) -> Plan:
        """The plan as it will run. Raises UsageError for one that cannot."""
        assert self.plan is not None  # noqa: S101 - the validator has seen to it
        plan = read_plan(self.plan)
        arms = [self._changed_arm(arm, self.runs_dir / plan.label) for arm in plan.arms]
        return Plan(plan.label, plan.title, tuple(arms), plan.drift_arm, plan.comparisons)

    def _changed_arm(self, arm: PlannedArm, directory: Path) -> PlannedArm:
        options = self._changed(arm.options)
        if arm.tune is None:
            return PlannedArm(arm.label, options)
        tune = placed(rehearsed_tune(arm.tune) if self.rehearse else arm.tune, directory)
        if not tune.simulated:  # a SIMULATED file is for no server
            options = options.model_copy(update={"tuned_moe_dir": tune.output})
        return PlannedArm(arm.label, options, tune)

    def _changed(self, options: SweepOptions) -> SweepOptions:
        options = rehearsed(options) if self.rehearse else options
        given = {"mode": self.mode, "gate": self.gate, "gsm8k_file": self.gsm8k_file}
        return options.model_copy(update={name: value for name, value in given.items() if value is not None})

    def engine_kind(self) -> Literal["simulated", "attached", "vllm"]:
        """Which engine the plan's first arm names."""
        return self.the_plan().arms[0].options.engine_kind()


def rehearsed(options: SweepOptions) -> SweepOptions:
    """The same load on the simulated engine, with the levers that it has under the same names."""
    known = [name for name in EngineSettings.__dataclass_fields__ if getattr(options, name, None) is not None]
    levers = [f"{name}={getattr(options, name)}" for name in known]
    names = [name for name in SweepOptions.model_fields if name not in EngineOptions.model_fields]
    load = {name: getattr(options, name) for name in names}
    load |= {"load_workers": 1, "ray_address": None, "gate": None}
    return SweepOptions(**load, engine="simulated", simulated=[*levers, *options.simulated])


async def experiment(options: ExperimentOptions) -> int:
    """Run the plan: 0 when every arm has an answer and every comparison is concluded, else the code of what is missing.

    1 when the baseline carries nothing or an arm's accuracy gate failed, 3 or 4 for the first fault of an arm or a
    comparison, 3 for a gate that is inconclusive, 5 for a comparison that stays open.
    """
    plan = options.the_plan()
    directory = options.runs_dir / plan.label
    first = plan.arms[0].options
    comparisons = planned_comparisons(plan)
    sweep = sweep_plan(first.model_copy(update={"label": plan.label}))
    with SweepView(sweep.load.slo, marks=marks(first, is_smoke=sweep.mode.is_smoke)) as view:
        view.say(f"{plan.title}: {len(plan.arms)} arms, {', '.join(arm.label for arm in plan.arms)}")
        limit = client_limit(first, sweep.load, view.say)
        sweep = sweep if limit is None else sweep.within(limit)
        warn_of_files(first, sweep.load, sweep.search.ceiling_rps, view.say)
        view.say(forecast(replace(sweep, label="each arm"), first.usd_per_hour))
        for each in comparisons:
            view.say(each.forecast())
        if (line := gate_line(first)) is not None:
            view.say(line)
        if options.dry_run:
            return 0
        gates = _gates(plan)
        for arm in plan.arms:
            confirm(arm.options, is_agreed=options.yes)
        arms = [_arm(planned, sweep, directory, view, gate) for planned, gate in zip(plan.arms, gates, strict=True)]
        made = Experiment(plan.label, plan.title, arms, plan.drift_arm, sweep)
        with held(directory, is_new=not options.resume):
            return await _run(options, made, comparisons, directory, view)


async def _run(
    options: ExperimentOptions,
    made: Experiment,
    comparisons: Sequence[ArmComparison],
    directory: Path,
    view: SweepView,
) -> int:
    """Measure everything and write the note; the exit code."""
    from reports.note import write_note  # noqa: PLC0415 - it brings matplotlib, which --help need not wait for

    if options.resume:
        _check_resumable(made.arms, directory)
        for each in comparisons:
            check_same_comparison(each, directory)
    else:
        _check_unused(made.arms, directory)
    # The simulated engine is part of what is reproduced, its noise and its drift too: all of it runs again.
    goes_on = options.resume and options.engine_kind() != "simulated"
    if options.plan is not None:
        write_text(directory / PLAN_NAME, shown_plan(options.plan))
    if not goes_on:
        shutil.rmtree(directory / FOLDER, ignore_errors=True)
    with resumable(directory / "arms"):
        progress = await run_experiment(made, directory, view, view.say, goes_on=goes_on)
        are_concluded = await _compared(comparisons, progress, directory, view, goes_on=goes_on)
    write_note(directory, directory / NOTE, directory / "figures")
    found = read_experiment(directory)
    for line in [*experiment_lines(found), *text_lines(found)]:
        view.say(line)
    view.say(f"note: {directory / NOTE}")
    return _exit_code(progress, are_concluded=are_concluded)


async def _compared(
    comparisons: Sequence[ArmComparison], progress: Progress, directory: Path, view: SweepView, *, goes_on: bool
) -> bool:
    """Run the comparisons; whether all are concluded. One that fails is told and does not end the experiment."""
    concluded = 0
    for made in comparisons:
        document = None
        missing = [label for label in made.labels if label not in progress.found]
        if missing:
            view.say(f"{made.folder}: not compared, {missing[0]} has no sweep")
        elif made.is_at_anchor and progress.anchor_rps is None:
            view.say(f"{made.folder}: not compared, there is no anchor rate; give it a request_rate")
        else:
            try:
                document = await compare_arms(made, progress.anchor_rps, directory, view, goes_on=goes_on)
            except (EngineError, InvalidMeasurement) as fault:
                progress.first_fault = progress.first_fault or fault
                view.say(f"{made.folder}: {fault}")
        concluded += document is not None and document.outcome == "concluded"
    return concluded == len(comparisons)


def _check_resumable(arms: Sequence[Arm], directory: Path) -> None:
    """Raise UsageError when there is nothing to resume, or an arm was measured under other settings or elsewhere."""
    if not directory.is_dir():
        raise UsageError(f"there is nothing to resume in {directory}: leave --resume out")
    if RunStore(directory).has_begun:
        raise UsageError(f"{directory} holds a run of its own and no experiment: give the plan another label")
    here = environment()
    for arm in arms:
        path = directory / "arms" / arm.label / "run.json"
        if path.exists():
            check_same(read_document(path, RunDocument), arm.record, here)


def _check_unused(arms: Sequence[Arm], directory: Path) -> None:
    """Raise UsageError when the directory is taken; it names --resume where that would go on with this experiment."""
    store = RunStore(directory)
    if (directory / "arms").is_dir() and not (directory / NOTE).exists():
        try:
            _check_resumable(arms, directory)
        except UsageError:
            store.check_unused()
        raise UsageError(f"{directory} holds this experiment, unfinished: go on with --resume, or give another label")
    store.check_unused()


def _exit_code(progress: Progress, *, are_concluded: bool) -> int:
    fault = progress.first_fault
    if fault is not None:
        return 4 if isinstance(fault, EngineError) else 3
    verdicts = {document.verdict for document in progress.found.values()}
    if progress.anchor_rps is None or CapacityVerdict.GATE_FAILED in verdicts:
        return 1
    if CapacityVerdict.GATE_INCONCLUSIVE in verdicts:
        return 3
    return 0 if are_concluded else 5


def _gates(plan: Plan) -> list[GatePlan | None]:
    """The accuracy gate of each arm; the items are read once. Raises UsageError when they cannot be had."""
    gates: list[GatePlan | None] = []
    item_set = None
    for arm in plan.arms:
        gate = sweep_gate(arm.options, item_set)
        item_set = item_set if gate is None else gate.item_set or item_set
        gates.append(gate)
    return gates


def _arm(planned: PlannedArm, sweep: SweepPlan, directory: Path, view: SweepView, gate: GatePlan | None) -> Arm:
    folder, tune = directory / "arms" / planned.label, planned.tune
    log_path = folder / "engine.log"
    return Arm(
        record=run_record(planned.label, planned.options, sweep.load.slo),
        host=lambda start: host_for(planned.options, log_path=log_path, say=view.say, start=start),
        gate=gate,
        before=None if tune is None else lambda: tune_before(tune, folder, view.say),
    )
