from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gates.accuracy import AccuracyOutcome
from gates.decision import WORTH_SHARE, Decision, Evidence, Ground, decide, payback_s

GOOD = Evidence((-0.05, -0.04), 0.0, is_real=True, accuracy=AccuracyOutcome.PASS, is_comparable=True)


def test_a_real_gain_with_accuracy_held_is_adopted() -> None:
    assert decide(GOOD) == (Decision.ADOPT, Ground.REAL)
    assert decide(replace(GOOD, accuracy=AccuracyOutcome.NOT_APPLICABLE))[0] is Decision.ADOPT


def test_a_failed_gate_decides_before_anything_else() -> None:
    lost = replace(GOOD, accuracy=AccuracyOutcome.FAIL, is_comparable=False, interval=None)
    assert decide(lost) == (Decision.IGNORE, Ground.ACCURACY_LOST)


@pytest.mark.parametrize(
    ("evidence", "ground"),
    [
        (replace(GOOD, is_comparable=False), Ground.NOT_COMPARABLE),
        (replace(GOOD, interval=None), Ground.NO_INTERVAL),
        (replace(GOOD, reach_share=None), Ground.NO_INTERVAL),
        (replace(GOOD, is_real=False), Ground.OPEN),
        (replace(GOOD, interval=(-0.05, 0.01)), Ground.OPEN),
        (replace(GOOD, accuracy=None), Ground.ACCURACY_OPEN),
        (replace(GOOD, accuracy=AccuracyOutcome.INCONCLUSIVE), Ground.ACCURACY_OPEN),
    ],
)
def test_what_is_open_is_measured_longer(evidence: Evidence, ground: Ground) -> None:
    assert decide(evidence) == (Decision.MEASURE_LONGER, ground)


@pytest.mark.parametrize("interval", [(-0.029, -0.02), (-0.01, 0.01), (0.02, 0.04)])
def test_no_gain_that_is_worth_it_is_ignored_real_or_not(interval: tuple[float, float]) -> None:
    for is_real in (True, False):
        assert decide(replace(GOOD, interval=interval, is_real=is_real)) == (Decision.IGNORE, Ground.TOO_SMALL)


def test_drift_leaves_a_gain_open_that_the_interval_alone_excludes() -> None:
    small = replace(GOOD, interval=(-0.02, 0.01), is_real=False)
    assert decide(small)[0] is Decision.IGNORE
    assert decide(replace(small, reach_share=0.015)) == (Decision.MEASURE_LONGER, Ground.OPEN)


@given(
    ends=st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5)),
    reach=st.floats(0, 0.2),
    is_real=st.booleans(),
    accuracy=st.sampled_from([None, *AccuracyOutcome]),
)
def test_nothing_is_adopted_that_may_be_slower_or_answer_worse(
    ends: tuple[float, float], reach: float, is_real: bool, accuracy: AccuracyOutcome | None
) -> None:
    evidence = Evidence((min(ends), max(ends)), reach, is_real, accuracy, is_comparable=True)
    if decide(evidence)[0] is Decision.ADOPT:
        assert max(ends) < 0
        assert reach - min(ends) >= WORTH_SHARE
        assert is_real
        assert accuracy in (AccuracyOutcome.PASS, AccuracyOutcome.NOT_APPLICABLE)


def test_time_is_given_back_by_a_gain_alone() -> None:
    assert payback_s(9540, 0.05) == pytest.approx(190_800)
    assert payback_s(9540, 0.0) is None
    assert payback_s(9540, -0.02) is None
