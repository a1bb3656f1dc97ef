"""Three comparisons and what they say together."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from slo_bench.moe.grouped.verdict import MOST_APART, Comparison, Verdict, is_near, verdict

SHIPPED, CORRECTED, BOTH = Comparison.SHIPPED_REFERENCE, Comparison.CORRECTED_REFERENCE, Comparison.CORRECTED_SHIPPED


@dataclass(frozen=True)
class Row:
    comparison: Comparison
    is_near: bool = True


def found(*missed: Comparison) -> Verdict:
    return verdict([Row(each) for each in Comparison] + [Row(each, is_near=False) for each in missed])


@pytest.mark.parametrize(
    ("missed", "said"),
    [
        ((), Verdict.AGREE),
        ((SHIPPED,), Verdict.SHIPPED_WRONG),
        ((SHIPPED, BOTH), Verdict.SHIPPED_WRONG),
        ((CORRECTED, BOTH), Verdict.CORRECTED_WRONG),
        ((BOTH,), Verdict.APART),
        ((SHIPPED, CORRECTED), Verdict.UNEXPLAINED),
        ((SHIPPED, CORRECTED, BOTH), Verdict.UNEXPLAINED),
    ],
)
def test_what_missed_tells_what_is_wrong(missed: tuple[Comparison, ...], said: Verdict) -> None:
    assert found(*missed) is said


def test_nothing_but_full_agreement_is_a_pass() -> None:
    assert [each for each in Verdict if each.is_pass] == [Verdict.AGREE]


def test_two_results_that_are_equal_are_no_pass_where_both_miss_the_reference() -> None:
    assert not found(SHIPPED, CORRECTED).is_pass
    assert found(SHIPPED, CORRECTED).value == "reference unexplained"


def test_a_comparison_that_was_not_made_is_no_verdict() -> None:
    with pytest.raises(ValueError, match="not compared: corrected with shipped"):
        verdict([Row(SHIPPED), Row(CORRECTED)])
    with pytest.raises(ValueError, match="not compared"):
        verdict([])


def test_near_has_a_limit_and_what_is_not_finite_is_not_near() -> None:
    assert is_near(MOST_APART)
    assert not is_near(MOST_APART * 1.01)
    assert not is_near(None)
