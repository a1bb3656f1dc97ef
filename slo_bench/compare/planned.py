"""Comparisons of two arms of an experiment, at the anchor rate unless they name a load of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from reports.compare_words import outlook_lines, sentence
from reports.effect_document import EffectDocument
from reports.run_directory import read_document
from slo_bench.compare.command import NOTE, compare_arm, compare_into, compare_load, side_by_side
from slo_bench.compare.comparison import Watch
from slo_bench.compare.earlier import DOCUMENT, EarlierPart, read_part
from slo_bench.compare.options import loop_fault, same_text
from slo_bench.compare.plan import ComparisonPlan, comparison_plan
from slo_bench.config import LoadOptions
from slo_bench.earlier import LATER_STARTS
from slo_bench.experiment.plan import Plan, PlannedArm, PlannedComparison
from slo_bench.resume import check_same_design
from traffic.errors import UsageError

SMOKE_BLOCK_S = 20.0
"""A smoke run ends in minutes; the note says that its blocks are short. The ramp stays: with less of it a server still
fills up inside the block, which reads as one that does not keep up."""


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """Two arms that are to be compared.

    plan: of an open loop without a rate where that is the anchor rate. first_start: how many servers the experiment
    used before, so that the simulated engine draws new noise, and running servers are sent new text.
    """

    labels: tuple[str, str]
    arms: tuple[LoadOptions, LoadOptions]
    plan: ComparisonPlan
    first_start: int

    @property
    def folder(self) -> Path:
        """Where it lies in the experiment's directory."""
        return Path("compare") / "--".join(self.labels)

    @property
    def is_at_anchor(self) -> bool:
        """Whether the rate is known only after the first arm's sweep."""
        return self.plan.block.rate_rps is None and self.plan.block.concurrency is None

    def at(self, anchor_rps: float | None) -> ComparisonPlan:
        """The plan with its rate."""
        if not self.is_at_anchor:
            return self.plan
        return replace(self.plan, block=replace(self.plan.block, rate_rps=anchor_rps))

    def forecast(self) -> str:
        """What will be measured, in one line."""
        at = "the anchor rate" if self.is_at_anchor else self.plan.load_text()
        return f"then {self.labels[1]} against {self.labels[0]} at {at}: {self.plan.cost()}"


def planned_comparisons(plan: Plan) -> list[ArmComparison]:
    """All comparisons of a plan, checked before anything starts. Raises UsageError with the place of what cannot be."""
    arms = {arm.label: arm for arm in plan.arms}
    made: list[ArmComparison] = []
    for planned in plan.comparisons:
        first_start = len(arms) + sum(each.plan.servers for each in made)
        try:
            made.append(arm_comparison((arms[planned.base], arms[planned.other]), planned, first_start))
        except UsageError as error:
            raise UsageError(f"{planned.where}: {error}") from None
    return made


def arm_comparison(arms: tuple[PlannedArm, PlannedArm], planned: PlannedComparison, first_start: int) -> ArmComparison:
    """The comparison of two planned arms. Raises UsageError for an impossible one."""
    design = planned.design
    a, b = (arm.options for arm in arms)
    sides: tuple[LoadOptions, LoadOptions] = (a, b)
    mode = a.the_mode()
    if mode.is_smoke:
        design = design.model_copy(update={"duration": min(SMOKE_BLOCK_S, design.duration)})
    fault = loop_fault(design, a)
    if fault is not None:
        raise UsageError(fault)
    if a.model != b.model and not planned.allow_different_models:
        raise UsageError(f"the arms serve different models, {a.model} and {b.model}: allow_different_models = true")
    load = replace(compare_load(a), bounds=mode.bounds)
    plan = comparison_plan(design, load, a.engine_kind(), allow_different_models=planned.allow_different_models)
    if plan.placement == "coresident":
        sides = side_by_side(sides, plan.servers)
    if plan.placement == "attached":
        sides = same_text(*sides)
    return ArmComparison((arms[0].label, arms[1].label), sides, plan, first_start)


async def compare_arms(
    made: ArmComparison, anchor_rps: float | None, directory: Path, view: Watch, *, goes_on: bool = False
) -> EffectDocument:
    """Compare into `directory`, the experiment's, and say what came out. Raises as `run_comparison` does.

    anchor_rps: needed where the comparison is made there. goes_on: what the directory holds of it is taken as it is;
    raises UsageError where that was made by another design.
    """
    plan = made.at(anchor_rps)
    earlier = begun(made, anchor_rps, directory) if goes_on else None
    first_start = made.first_start + (0 if earlier is None else LATER_STARTS * earlier.number)
    a, b = (
        compare_arm(label, options, (), view.say, first_start=first_start)
        for label, options in zip(made.labels, made.arms, strict=True)
    )
    view.say(f"{made.labels[1]} against {made.labels[0]}: {plan.said()}")
    document = await compare_into(directory / made.folder, plan, (a, b), view, earlier=earlier)
    for line in (sentence(document), *outlook_lines(document), f"note: {directory / made.folder / NOTE}"):
        view.say(line)
    return document


def check_same_comparison(made: ArmComparison, directory: Path) -> None:
    """Raise UsageError where `directory`, the experiment's, holds this comparison by another design."""
    path = directory / made.folder / DOCUMENT
    if path.exists():
        stored = read_document(path, EffectDocument)
        check_same_design(str(path.parent), stored.design, made.at(stored.rate_rps).design())


def begun(made: ArmComparison, anchor_rps: float | None, directory: Path) -> EarlierPart | None:
    """What `directory`, the experiment's, holds of a comparison; None where it never began.

    Raises UsageError where it was made by another design.
    """
    folder = directory / made.folder
    return read_part(folder, made.at(anchor_rps)) if folder.exists() else None
