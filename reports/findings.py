"""What the evidence of an experiment says, in sentences of Markdown; every number beside its n and its drift."""

from __future__ import annotations

from collections.abc import Sequence

from gates.capacity import CapacityVerdict, rate_text
from gates.effect import AnswerMetric, Effect, EffectMetric, Finding, conclude
from gates.slo import Objective
from gates.spending import SpentMetric
from reports import numbers
from reports.arms import TOKENS_APART_SHARE, Arm, Experiment
from reports.changes import change, change_interval
from reports.markdown import code, escape, struck
from reports.run_directory import ProbeRow, SweepDocument
from reports.starts import starts_lines


def objective_text(objective: Objective) -> str:
    """An objective as it is said: p99 TTFT at most 2,000 ms."""
    return f"p{objective.percentile} {objective.metric.upper()} at most {numbers.limit_ms(objective.limit_s)}"


def capacity_text(sweep: SweepDocument) -> str:
    """A capacity with its windows: 11.18 req/s (11.18: 3 of 3; 11.50: 0 of 3; resolution 2.8 %)."""
    ends = {rate_text(rate) for rate in (sweep.capacity_rps, sweep.first_failed_rps) if rate is not None}
    evidence = [escape(tally) for tally in sweep.tallies if tally.partition(":")[0] in ends]
    if sweep.resolution_share is not None:
        evidence.append(f"resolution {numbers.share(sweep.resolution_share)}")
    if sweep.capacity_estimate_rps is not None and sweep.capacity_interval_rps is not None:
        low, high = (numbers.rate(end, unit=False) for end in sweep.capacity_interval_rps)
        evidence.append(f"estimate {numbers.rate(sweep.capacity_estimate_rps)}, 90 % interval {low} to {high}")
    behind = f" ({'; '.join(evidence)})" if evidence else ""
    return capacity_claim(sweep) + behind


def capacity_claim(sweep: SweepDocument) -> str:
    """What a sweep claims, without its evidence; a capacity that a gate forbids is struck out."""
    found, failed = numbers.rate(sweep.capacity_rps), numbers.rate(sweep.first_failed_rps)
    match sweep.verdict:
        case CapacityVerdict.FOUND:
            return found
        case CapacityVerdict.AT_LEAST:
            return f"at least {found}, no rate failed"
        case CapacityVerdict.NONE:
            return f"none: every rate failed, the lowest tried was {failed}"
        case CapacityVerdict.UNFINISHED:
            return f"not found, the search is unfinished: passed so far {found}, failed so far {failed}"
        case CapacityVerdict.GATE_FAILED | CapacityVerdict.GATE_INCONCLUSIVE:
            return f"{struck(numbers.rate(sweep.withheld_capacity_rps))} not claimed, {sweep.verdict}"


def limit_text(sweep: SweepDocument) -> str:
    """What limited an arm at its first failed rate."""
    if sweep.first_failed_rps is None:
        return "nothing limited it up to the highest rate tried"
    limit = "an objective that was not recorded" if sweep.limited_by is None else sweep.limited_by.upper()
    cause = "why is not known yet" if sweep.cause is None else escape(sweep.cause)
    return f"limited by {limit} at {numbers.rate(sweep.first_failed_rps)}; {cause}"


def warm_up_text(sweep: SweepDocument) -> str:
    """Whether the server was warm before it was measured."""
    warm = sweep.warm_up
    if warm is None:
        return "no warm-up was run, so its first windows may be cold"
    blocks = f"{numbers.plural(len(warm.tpot_mean_s), 'block')} of {numbers.seconds(warm.block_s)}"
    at = f"at {numbers.rate(warm.rate_rps)}"
    last = ", ".join(numbers.ms(value) for value in warm.tpot_mean_s[-2:])
    return f"{'warm' if warm.is_warm else '**not warm**'} after {blocks} {at}, mean TPOT of the last ones {last}"


def effect_text(effect: Effect | None) -> str:
    """An effect with its interval and pairs: -2.9 % (-3.4 % to -2.4 %, 3 pairs)."""
    if effect is None or effect.share is None:
        return numbers.NOT_MEASURED
    interval = "no interval" if effect.interval is None else change_interval(effect.metric, effect.interval)
    if effect.metric is SpentMetric.USD_PER_MILLION:
        return f"{numbers.signed_share(effect.share)} ({interval} by the brackets of both)"
    missing = f", {numbers.count(effect.missing_pairs)} more without a value" if effect.missing_pairs else ""
    pairs = numbers.plural(effect.n_pairs, "item" if effect.metric is AnswerMetric.ACCURACY else "pair")
    return f"{change(effect.metric, effect.share)} ({interval}, {pairs}{missing})"


def capacity_relation(arm: Arm, equals: Sequence[Arm]) -> str:
    """How an arm's bracket lies to those of the equal arms.

    Higher or lower is said only when it lies beyond all of them: what two equal arms may swap is no difference.
    """
    ends = [(each.sweep.capacity_rps, each.sweep.first_failed_rps) for each in (arm, *equals)]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    if len(known) != len(ends):
        return "cannot be compared, a bracket has only one end"
    (low, high), rest = known[0], known[1:]
    against = "the baseline alone, with no equal arm beside it" if len(equals) == 1 else "both equal arms"
    if low >= max(end for _, end in rest):
        return f"higher than {against}, between these server instances"
    if high <= min(end for end, _ in rest):
        return f"lower than {against}, between these server instances"
    return "not told apart, the brackets meet or overlap"


def limit_lines(experiment: Experiment) -> list[str]:
    """What limited each arm, with the evidence of its first failed rate."""
    lines = []
    for arm in experiment.arms:
        lines.append(f"{code(arm.label)}: {limit_text(arm.sweep)}.")
        lines.extend(
            f"{code(arm.label)} passed at {numbers.rate(rate)} although a lower rate failed: the boundary is noisy."
            for rate in arm.sweep.contradictions_rps
        )
    return lines


def fault_lines(experiment: Experiment) -> list[str]:
    """What a reader must know before believing the rest: runs that did not end well, cold servers, invalid windows."""
    failed_arms = experiment.document.failed.items()
    lines = [f"{code(label)} was not measured: {escape(reason)}." for label, reason in failed_arms]
    for arm in experiment.arms:
        name, sweep = code(arm.label), arm.sweep
        if arm.run.status != "done":
            reason = f": {escape(arm.run.reason)}" if arm.run.reason else ""
            lines.append(f"The run of {name} is {arm.run.status}{reason}.")
        lines += starts_lines(arm)
        if sweep.warm_up is None or not sweep.warm_up.is_warm:
            lines.append(f"{name}: {warm_up_text(sweep)}.")
        invalid = sum(not row.is_valid for row in sweep.probes)
        if invalid:
            of_all = numbers.of(invalid, len(sweep.probes))
            lines.append(f"Invalid windows of {name}: {of_all}; struck out below, and used for nothing.")
        failed = sum(row.failed for row in experiment_rows(experiment, arm))
        if failed:
            lines.append(
                f"{numbers.plural(failed, 'request')} of {name} failed at the anchor rate; "
                "they count against every objective and percentile, and are in no mean."
            )
    return lines + _length_lines(experiment)


def experiment_rows(experiment: Experiment, arm: Arm) -> tuple[ProbeRow, ...]:
    """The windows whose values stand in the tables at the anchor rate."""
    return arm.at(experiment.document.anchor_rps).whole


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean over windows; None when any window has none, since leaving out the worst would flatter."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def length_apart(experiment: Experiment, arm: Arm) -> float | None:
    """By which share an arm's mean output differs from the baseline's, where that is other work; else None."""
    base, own = (
        mean_of([row.output_tokens_mean for row in experiment_rows(experiment, each)])
        for each in (experiment.baseline, arm)
    )
    if not base or own is None or abs(own / base - 1) <= TOKENS_APART_SHARE:
        return None
    return own / base - 1


def _length_lines(experiment: Experiment) -> list[str]:
    """Arms whose answers have another length did other work."""
    lines = []
    for arm in experiment.arms:
        apart = length_apart(experiment, arm)
        if apart is not None:
            lines.append(
                f"Mean output of {code(arm.label)} differs by {numbers.signed_share(apart)} from the baseline's: "
                "the arms did not do the same work."
            )
        if not arm.engine.takes_forced_length:
            lines.append(f"{code(arm.label)} takes no forced output length: its answers end where the model ends them.")
    return lines


def truth_verdict(experiment: Experiment, arm: Arm) -> str:
    """What the tool concluded of an arm's mean TPOT, in one cell."""
    if arm is experiment.baseline:
        return "baseline"
    effect = experiment.effect(arm, EffectMetric.TPOT_MEAN)
    if arm is experiment.drift_arm:
        return f"{effect_text(effect)}: drift, the arms are equal"
    finding = conclude(effect, experiment.drift(EffectMetric.TPOT_MEAN))
    said = "a difference " if finding is Finding.BETWEEN_INSTANCES else ""
    return f"{effect_text(effect)}: {said}{finding}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
