"""A capacity is claimed only where the accuracy gate does not forbid it."""

from __future__ import annotations

import pytest

from gates.accuracy import AccuracyOutcome
from gates.capacity import CapacityVerdict, Observation, conclude
from gates.slo import DEFAULT_SLO
from reports.findings import capacity_text
from reports.rows import sweep_document
from reports.run_directory import SweepDocument
from reports.withheld import withheld

CLAIMS = ("capacity_rps", "resolution_share", "capacity_estimate_rps", "capacity_interval_rps", "proven_pass_rps")


def found(verdict: CapacityVerdict = CapacityVerdict.FOUND, *, passed: bool = True) -> SweepDocument:
    seen = [Observation(8.0, 0, passed), Observation(10.0, 0, False)]
    document = sweep_document(
        label="x",
        engine="vllm",
        seed=0,
        slo=DEFAULT_SLO,
        is_smoke=False,
        capacity=conclude(seen, verdict),
        warm_up=None,
        probes=[],
    )
    shown = {"capacity_estimate_rps": 8.5, "capacity_interval_rps": (8.1, 8.9), "proven_pass_rps": 8.0}
    return document.model_copy(update=shown)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (AccuracyOutcome.FAIL, CapacityVerdict.GATE_FAILED),
        (AccuracyOutcome.INCONCLUSIVE, CapacityVerdict.GATE_INCONCLUSIVE),
    ],
)
@pytest.mark.parametrize("before", [CapacityVerdict.FOUND, CapacityVerdict.AT_LEAST, CapacityVerdict.UNFINISHED])
def test_no_pass_leaves_no_claim_and_all_windows(
    before: CapacityVerdict, outcome: AccuracyOutcome, verdict: CapacityVerdict
) -> None:
    sweep = found(before)
    told = withheld(sweep, outcome)
    assert told.verdict is verdict
    assert [getattr(told, name) for name in CLAIMS] == [None] * len(CLAIMS)
    assert told.withheld_capacity_rps == 8.0
    assert (told.tallies, told.first_failed_rps) == (sweep.tallies, 10.0)
    assert SweepDocument.model_validate_json(told.model_dump_json()) == told
    assert capacity_text(told).startswith(f"~~8.00 req/s~~ not claimed, {verdict}")


@pytest.mark.parametrize("outcome", [AccuracyOutcome.PASS, AccuracyOutcome.UNJUDGED, AccuracyOutcome.NOT_APPLICABLE])
def test_whatever_else_the_gate_says_takes_nothing_away(outcome: AccuracyOutcome) -> None:
    assert withheld(found(), outcome) == found()


def test_where_nothing_passed_there_is_nothing_to_withhold() -> None:
    sweep = found(CapacityVerdict.NONE, passed=False)
    assert withheld(sweep, AccuracyOutcome.FAIL) == sweep
