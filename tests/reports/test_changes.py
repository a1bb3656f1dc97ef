"""Changes in percent, and of accuracy in points."""

from __future__ import annotations

from gates.effect import AnswerMetric, EffectMetric
from gates.spending import SpentMetric
from reports.changes import change, change_interval, compact, size, with_interval

TPOT, WATTS, ACCURACY = EffectMetric.TPOT_MEAN, SpentMetric.POWER_MEAN, AnswerMetric.ACCURACY


def test_accuracy_changes_in_points_and_everything_else_in_percent() -> None:
    assert [change(each, -0.02) for each in (TPOT, WATTS, ACCURACY)] == ["-2.0 %", "-2.0 %", "-2.0 points"]
    assert [size(each, 0.02) for each in (TPOT, WATTS, ACCURACY)] == ["2.0 %", "2.0 %", "2.0 points"]


def test_an_interval_stands_in_brackets_where_there_is_one() -> None:
    assert with_interval(TPOT, -0.02, (-0.03, 0.0)) == "-2.0 % (-3.0 % to 0.0 %)"
    assert with_interval(ACCURACY, 0.0, (-0.053, 0.053)) == "0.0 points (-5.3 to +5.3)"
    assert compact(TPOT, -0.02, (-0.03, 0.0)) == "-2.0 % (-3.0 to 0.0)"
    assert compact(ACCURACY, 0.0, (-0.053, 0.053)) == "0.0 points (-5.3 to +5.3)"
    assert with_interval(TPOT, 0.02, None) == "+2.0 %"
    assert with_interval(ACCURACY, None, None) == change_interval(ACCURACY, None) == "not measured"
