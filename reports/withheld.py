"""A capacity that is not claimed: an engine that did not pass its accuracy gate carries nothing."""

from __future__ import annotations

from gates.accuracy import AccuracyOutcome
from gates.capacity import CapacityVerdict
from reports.run_directory import SweepDocument

_VERDICTS = {
    AccuracyOutcome.FAIL: CapacityVerdict.GATE_FAILED,
    AccuracyOutcome.INCONCLUSIVE: CapacityVerdict.GATE_INCONCLUSIVE,
}


def withheld(sweep: SweepDocument, outcome: AccuracyOutcome) -> SweepDocument:
    """The sweep as it may be told after its accuracy gate: without a claim where the gate failed or is inconclusive.

    The windows and their tallies are facts and stay. A sweep in which nothing passed claims nothing anyway.
    """
    verdict = _VERDICTS.get(outcome)
    if verdict is None or sweep.verdict is CapacityVerdict.NONE:
        return sweep
    return sweep.model_copy(
        update={
            "verdict": verdict,
            "withheld_capacity_rps": sweep.capacity_rps,
            "capacity_rps": None,
            "resolution_share": None,
            "capacity_estimate_rps": None,
            "capacity_interval_rps": None,
            "proven_pass_rps": None,
        }
    )
