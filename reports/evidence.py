"""Which evidence counts for each arm: comparisons by blocks before paired windows, gates before both."""

from __future__ import annotations

from gates.accuracy import AccuracyOutcome
from gates.capacity import CapacityVerdict
from gates.comparison import Claim
from gates.decision import Decision, Evidence, decide
from gates.effect import EffectMetric, Finding, conclude
from reports import numbers
from reports.arms import Arm, Experiment
from reports.effect_document import EffectDocument
from reports.findings import length_apart
from reports.story import Kind

TPOT = EffectMetric.TPOT_MEAN

_UNGATED = (AccuracyOutcome.FAIL, AccuracyOutcome.INCONCLUSIVE)

_OF_FINDING = {
    Finding.TOO_FEW_PAIRS: Kind.TOO_FEW_PAIRS,
    Finding.BELOW_RESOLUTION: Kind.BELOW_RESOLUTION,
    Finding.DRIFT_UNKNOWN: Kind.DRIFT_UNKNOWN,
    Finding.WITHIN_DRIFT: Kind.WITHIN_DRIFT,
    Finding.BETWEEN_INSTANCES: Kind.BETWEEN_INSTANCES,
}
_OF_CLAIM = {
    Claim.NOT_MEASURED: Kind.TOO_FEW_PAIRS,
    Claim.TOO_FEW_PAIRS: Kind.TOO_FEW_PAIRS,
    Claim.BELOW_RESOLUTION: Kind.BELOW_RESOLUTION,
    Claim.WITHIN_DRIFT: Kind.WITHIN_DRIFT,
    Claim.BETWEEN_INSTANCES: Kind.BETWEEN_INSTANCES,
    Claim.REAL: Kind.REAL,
}


def comparison_of(experiment: Experiment, arm: Arm) -> EffectDocument | None:
    """The concluded comparison by blocks of an arm with the baseline; None without one."""
    wanted = (experiment.document.baseline, arm.label)
    found = (each.document for each in experiment.comparisons)
    return next((doc for doc in found if (doc.a.label, doc.b.label) == wanted and doc.outcome == "concluded"), None)


def struck_because(experiment: Experiment, arm: Arm) -> str | None:
    """Why an arm is no result, in plain text; None where it is one."""
    if arm.run.status != "done":
        return f"its run is {arm.run.status}" + (f": {arm.run.reason}" if arm.run.reason else "")
    apart = length_apart(experiment, arm)
    if apart is not None:
        return f"its mean output differs by {numbers.signed_share(apart)} from the baseline's, which is other work"
    if arm.gate is not None:
        return f"accuracy gate {arm.gate.outcome}" if arm.gate.outcome in _UNGATED else None
    if any(each.gate is not None for each in experiment.arms):
        return "no accuracy gate ran, as one did for other arms"
    return None


def kind_of(experiment: Experiment, arm: Arm) -> Kind:
    """What kind of answer the evidence gives for a compared arm."""
    base = experiment.baseline
    if base.sweep.verdict is CapacityVerdict.NONE:
        return Kind.NOTHING_PASSED
    if any(each.gate is not None and each.gate.outcome in _UNGATED for each in (base, arm)):
        return Kind.GATE_FAILED
    if not is_comparable(experiment, arm):
        return Kind.NOT_COMPARABLE
    document = comparison_of(experiment, arm)
    if document is not None:
        return _OF_CLAIM[document.primary.claim]
    return _OF_FINDING[conclude(experiment.effect(arm, TPOT), experiment.drift(TPOT))]


def is_comparable(experiment: Experiment, arm: Arm) -> bool:
    """Whether both arms ended well, did the same work and have a rate in common."""
    base = experiment.baseline
    if experiment.document.anchor_rps is None or length_apart(experiment, arm) is not None:
        return False
    if base.gate is not None and base.gate.outcome in _UNGATED:
        return False
    return all(each.run.status == "done" for each in (base, arm))


def measured(experiment: Experiment, arm: Arm) -> tuple[float | None, tuple[float, float] | None]:
    """The effect on mean TPOT that counts, and its interval: by blocks in turn where they were run, else by windows."""
    document = comparison_of(experiment, arm)
    found = experiment.effect(arm, TPOT) if document is None else document.primary
    return found.share, found.interval


def evidence_of(experiment: Experiment, arm: Arm) -> Evidence:
    """What a decision on a compared arm rests on."""
    drift, document = experiment.drift(TPOT), comparison_of(experiment, arm)
    reach = None if drift is None else drift.reach_share
    is_real = document is not None and document.primary.claim is Claim.REAL
    if is_real or (document is not None and document.offset_share is not None):
        reach = 0.0  # the interval has the offset of a start in it, and blocks in turn have no drift in time
    return Evidence(
        interval=measured(experiment, arm)[1],
        reach_share=reach,
        is_real=is_real,
        accuracy=None if arm.gate is None else arm.gate.outcome,
        is_comparable=is_comparable(experiment, arm),
    )


_FIRST = (Decision.ADOPT, Decision.MEASURE_LONGER, Decision.IGNORE)


def arm_to_decide(experiment: Experiment) -> Arm | None:
    """The compared arm that headline and decision are about: the most promising, of equal ones the first."""
    arms = experiment.compared
    if not arms:
        return None
    return min(arms, key=lambda arm: _FIRST.index(decide(evidence_of(experiment, arm))[0]))
