"""From an experiment to its story: headline, four bullets, cautions and the one decision, chosen from the evidence."""

from __future__ import annotations

from collections.abc import Iterator

from gates.capacity import CapacityVerdict
from gates.decision import WORTH_SHARE, Decision, Ground, decide, payback_s
from gates.effect import AnswerMetric, Effect, conclude, smallest_visible_share
from reports import numbers
from reports.arms import Arm, Experiment
from reports.compare_words import sentence
from reports.end_to_end import end_to_end
from reports.evidence import TPOT, arm_to_decide, comparison_of, evidence_of, kind_of, measured, struck_because
from reports.findings import (
    capacity_claim,
    capacity_relation,
    capacity_text,
    effect_text,
    experiment_rows,
    fault_lines,
    mean_of,
)
from reports.gates_words import score_text, verdict_text
from reports.kernels import KernelsDocument, read_kernels, typical
from reports.markdown import code, escape, struck
from reports.spending import change_text
from reports.story import Decided, Kind, Story
from reports.text_words import text_lines


def tell(experiment: Experiment) -> Story:
    """What the experiment says. Raises UsageError where one of its files cannot be read."""
    arm = arm_to_decide(experiment)
    kind = _kind(experiment, arm)
    reasons = ((each.label, struck_because(experiment, each)) for each in experiment.arms)
    return Story(
        kind=kind,
        arm=None if arm is None else arm.label,
        headline=_headline(experiment, kind, arm),
        bullets=(
            kernels_bullet(experiment),
            _capacity_bullet(experiment),
            _effect_bullet(experiment),
            f"{_accuracy_part(experiment)} {_power_part(experiment)}",
        ),
        comparisons=tuple(sentence(each.document) for each in experiment.comparisons),
        cautions=tuple(fault_lines(experiment)),
        struck={label: reason for label, reason in reasons if reason is not None},
        decided=None if arm is None or arm.is_smoke else _decided(experiment, arm),
        table=None if experiment.document.anchor_rps is None else end_to_end(experiment),
    )


def _kind(experiment: Experiment, arm: Arm | None) -> Kind:
    if arm is not None:
        return kind_of(experiment, arm)
    return Kind.NOTHING_PASSED if experiment.baseline.sweep.verdict is CapacityVerdict.NONE else Kind.ONE_ARM


def _headline(experiment: Experiment, kind: Kind, arm: Arm | None) -> str:
    """The one sentence that a reader takes away, with the mark in front."""
    mark = f"{experiment.mark}. " if experiment.mark else ""
    capacities = ", ".join(f"{code(each.label)} {capacity_claim(each.sweep)}" for each in experiment.arms)
    return f"**{mark}{_answer(experiment, kind, arm)} Capacity: {capacities}.**"


def _answer(experiment: Experiment, kind: Kind, arm: Arm | None) -> str:
    base, name = code(experiment.baseline.label), f"{kind[:1].upper()}{kind[1:]}"
    if kind is Kind.NOTHING_PASSED:
        return f"{name}: {base} has no passing rate, so there is no rate at which to compare arms."
    if kind is Kind.GATE_FAILED and arm is not None:
        bad = [each for each in (experiment.baseline, arm) if struck_because(experiment, each) is not None]
        told = "; ".join(f"{code(each.label)} {_gate_text(each)}" for each in bad)
        return f"{name}: {told}, so nothing is claimed of it."
    if experiment.document.anchor_rps is None:
        return f"{name}: {base} has no capacity that is claimed, so there is no rate at which to compare arms."
    if kind is Kind.NOT_COMPARABLE and arm is not None:
        return f"{name}: {_why_not_comparable(experiment, arm)}. {_windows_answer(experiment)}"
    if arm is not None and (document := comparison_of(experiment, arm)) is not None:
        said = escape(sentence(document)).replace("Real: ", f"{Kind.REAL.capitalize()}: ", 1)
        return f"{said} Drift between two equal arms: {effect_text(experiment.drift(TPOT))}."
    answer = _windows_answer(experiment)
    return f"{name}: {answer[:1].lower()}{answer[1:]}"


def _why_not_comparable(experiment: Experiment, arm: Arm) -> str:
    reasons = ((each, struck_because(experiment, each)) for each in (experiment.baseline, arm))
    return "; ".join(f"{code(each.label)}: {escape(why)}" for each, why in reasons if why is not None)


def _gate_text(arm: Arm) -> str:
    return "has no accuracy gate" if arm.gate is None else f"accuracy gate {escape(verdict_text(arm.gate))}"


def _windows_answer(experiment: Experiment) -> str:
    """The effects by paired windows beside the drift."""
    drift, parts = experiment.drift(TPOT), []
    for arm in experiment.compared:
        effect = experiment.effect(arm, TPOT)
        is_result = struck_because(experiment, arm) is None
        told = f"{effect_text(effect)}, {conclude(effect, drift)}"
        parts.append(f"{code(arm.label)} {told if is_result else f'{struck(effect_text(effect))}, no result'}")
    if not parts and drift is None:
        return f"{code(experiment.baseline.label)} was measured alone, so nothing is compared."
    what = "; ".join(parts) or "no other configuration was measured"
    at = f"Mean TPOT at {numbers.rate(experiment.document.anchor_rps)} against {code(experiment.baseline.label)}"
    return f"{at}: {what}; drift between two equal arms: {effect_text(drift)}."


def kernels_bullet(experiment: Experiment) -> str:
    """The range of the kernels' changes per routing and the typical one; or that they were not timed."""
    parts = [
        f"{code(arm.label)} {_range(kernels, routing)}"
        for arm, kernels in timed_kernels(experiment)
        for routing in kernels.routings
    ]
    return f"Kernel time: {'; '.join(parts)}." if parts else "Kernels were not timed."


def timed_kernels(experiment: Experiment) -> Iterator[tuple[Arm, KernelsDocument]]:
    """The arms with a kernels.json, and it."""
    for arm in experiment.arms:
        if (kernels := read_kernels(arm.directory)) is not None:
            yield arm, kernels


def _range(kernels: KernelsDocument, routing: str) -> str:
    changes = list(kernels.changes(routing).values())
    ends = f"{numbers.signed_share(min(changes))} to {numbers.signed_share(max(changes))}"
    sizes = numbers.plural(len(changes), "batch size")
    return f"under {escape(routing)} routing {ends} over {sizes}, typically {numbers.signed_share(typical(changes))}"


def _capacity_bullet(experiment: Experiment) -> str:
    parts = []
    for arm in experiment.arms:
        is_claimed = arm in experiment.compared and struck_because(experiment, arm) is None
        relation = f", {capacity_relation(arm, experiment.equals)}" if is_claimed else ""
        parts.append(f"{code(arm.label)} {capacity_text(arm.sweep)}{relation}")
    return f"Capacity: {'; '.join(parts)}."


def _effect_bullet(experiment: Experiment) -> str:
    """The effect on mean TPOT by paired windows, what may be said of it, and the drift beside it."""
    anchor_rps, drift = experiment.document.anchor_rps, experiment.drift(TPOT)
    if anchor_rps is None:
        return "Mean TPOT was compared at no rate."
    at = f"Mean TPOT at {numbers.rate(anchor_rps)}"
    parts = [f"{code(arm.label)} {_effect_part(experiment, arm)}" for arm in experiment.compared]
    if not parts and drift is None:
        return f"{at} was compared with nothing: no other configuration was measured."
    what = "; ".join(parts) or "no other configuration was measured"
    return f"{at} against {code(experiment.baseline.label)}: {what}. {_drift_text(experiment, drift)}"


def _effect_part(experiment: Experiment, arm: Arm) -> str:
    """By blocks in turn where they were run, and by paired windows; struck out where the arm is no result."""
    effect, drift = experiment.effect(arm, TPOT), experiment.drift(TPOT)
    finding, why_not = conclude(effect, drift), struck_because(experiment, arm)
    if why_not is not None:
        return f"{struck(effect_text(effect))} no result, {escape(why_not)}"
    windows = (
        f"{effect_text(effect)}: **{finding}** ({finding.meaning}), smallest visible effect "
        f"{numbers.share(smallest_visible_share(effect, drift))}"
    )
    document = comparison_of(experiment, arm)
    if document is None:
        return windows
    found = document.primary
    blocks = f"{numbers.signed_interval(found.interval)}, {numbers.plural(found.n_pairs, 'pair')} of blocks"
    visible = numbers.share(found.smallest_visible_share)
    return (
        f"by blocks in turn {numbers.signed_share(found.share)} ({blocks}): **{found.claim}**, smallest visible effect "
        f"{visible}; by windows {windows}"
    )


def _drift_text(experiment: Experiment, drift: Effect | None) -> str:
    if experiment.drift_arm is None:
        return "Drift was not measured: no arm repeats the baseline's configuration."
    return f"Drift: {effect_text(drift)}, {code(experiment.drift_arm.label)} against its equal."


def _accuracy_part(experiment: Experiment) -> str:
    parts = [
        f"{code(arm.label)} {f'{score_text(arm.gate)}, ' if arm.gate.asked else ''}gate {arm.gate.outcome}"
        for arm in experiment.arms
        if arm.gate is not None
    ]
    told = f"Accuracy: {'; '.join(parts)}." if parts else "Accuracy was not measured."
    texts = (f"{escape(line[:1].upper() + line[1:])}." for line in text_lines(experiment))
    return " ".join([told, *_accuracy_changes(experiment), *texts])


def _accuracy_changes(experiment: Experiment) -> Iterator[str]:
    """Each arm's difference to the baseline beside the drift; nothing where the gate has no accuracy."""
    for arm in experiment.compared:
        if experiment.effect(arm, AnswerMetric.ACCURACY).share is not None:
            told = change_text(experiment, arm, AnswerMetric.ACCURACY)
            yield f"{code(arm.label)} item by item against {code(experiment.baseline.label)}: {told}."


def _power_part(experiment: Experiment) -> str:
    parts = []
    for arm in experiment.arms:
        rows = experiment_rows(experiment, arm)
        watts = mean_of([row.power_mean_w for row in rows])
        if watts is not None:
            joules = numbers.joules(mean_of([row.joules_per_output_token for row in rows]))
            parts.append(f"{code(arm.label)} {numbers.watts(watts)}, {joules} per output token")
    if parts:
        return f"Power at {numbers.rate(experiment.document.anchor_rps)}: {'; '.join(parts)}."
    power = experiment.baseline.power
    reason = power.not_measured if power is not None else None
    return f"Power was not measured{f': {escape(reason)}' if reason else ''}."


def _decided(experiment: Experiment, arm: Arm) -> Decided:
    evidence = evidence_of(experiment, arm)
    decision, ground = decide(evidence)
    worth, gain = numbers.share(WORTH_SHARE), evidence.largest_gain_share
    largest = f"the largest fall of mean TPOT that agrees with interval and drift is {numbers.share(gain)}"
    if gain is not None and gain <= 0:
        largest = "mean TPOT did not fall"
    reason = {
        Ground.TOO_SMALL: f"{ground}: {largest}, and a change counts from {worth}",
        Ground.OPEN: f"{ground}: {largest}, a change counts from {worth}, and none was shown over several starts",
    }.get(ground, str(ground))
    reason = _with_tuning(arm, reason, decision, -(measured(experiment, arm)[0] or 0.0))
    return Decided(decision, ground, arm.label, reason, limits_text(arm))


def _with_tuning(arm: Arm, reason: str, decision: Decision, gain_share: float) -> str:
    """With what the tuning took and, where it is adopted, when that is paid back."""
    kernels = read_kernels(arm.directory)
    if kernels is None or kernels.tuning_s is None:
        return f"{reason}."
    took = f"The tuning took {numbers.count(kernels.tuning_s / 60)} minutes of the machine"
    back_s = payback_s(kernels.tuning_s, gain_share)
    if decision is not Decision.ADOPT or back_s is None:
        return f"{reason}. {took}, which nothing shown pays back."
    hours = numbers.count(back_s / 3600)
    return f"{reason}. {took}; if work takes as much less time as TPOT fell, {hours} hours of load give it back."


def limits_text(arm: Arm) -> str:
    """What the decision is limited to."""
    config = arm.run.config
    engine = arm.engine
    parallel = config.get("tensor_parallel_size") or engine.details.get("tensor_parallel_size")
    version = engine.version or "of a version that is not known"
    gpus = arm.run.environment.get("gpus")
    names = {str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)} if isinstance(gpus, list) else set()
    parts = [
        f"model {escape(engine.model)}",
        f"GPU {escape(', '.join(sorted(names)))}" if names else "no GPU that was seen",
        f"{'SIMULATED engine' if arm.is_simulated else f'engine {engine.kind}'} {escape(version)}",
        f"parallelism {escape(str(parallel))}" if parallel else "parallelism not recorded",
        f"workload {escape(str(config.get('workload') or 'not recorded'))}",
    ]
    return f"It holds for these alone: {', '.join(parts)}."
