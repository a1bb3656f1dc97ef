"""From graded items to a verdict: nothing is dropped, inconclusive is no pass, arms are compared item by item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.accuracy import (
    AccuracyOutcome,
    AccuracyRun,
    ItemResult,
    Score,
    compare,
    differences,
    effect_of,
    judge_accuracy,
    not_applicable,
    score,
)
from gates.answers import Grade
from gates.effect import Finding, conclude
from traffic.errors import UsageError

RIGHT, WRONG, NONE = Grade.RIGHT, Grade.WRONG, Grade.NO_ANSWER
CUT = "cut"
ERROR = None


def arm(*grades: Grade | str | None, label: str = "one", **changes: Any) -> AccuracyRun:
    """An arm with these grades, in the order of its items."""
    results = tuple(
        ItemResult(index, NONE, is_cut_off=True)
        if grade == CUT
        else ItemResult(index, None, error="HTTP 500: out of memory", attempts=3)
        if grade is None
        else ItemResult(index, Grade(grade))
        for index, grade in enumerate(grades)
    )
    return replace(AccuracyRun(label, "openai/gsm8k", "a1", "b2", 4096, 16, results), **changes)


def shares(right: int, n: int = 50, **changes: Any) -> AccuracyRun:
    return arm(*[RIGHT] * right, *[WRONG] * (n - right), **changes)


FIRST = shares(45, label="moe-default")


def test_r24_a_failed_request_is_never_dropped_from_the_score() -> None:
    verdict = judge_accuracy(arm(*[RIGHT] * 45, *[WRONG] * 3, *[ERROR] * 2), floor=0.5, first=FIRST)
    assert (verdict.outcome, verdict.passed) == (AccuracyOutcome.INCONCLUSIVE, False)
    assert verdict.score == Score(n=50, right=45, wrong=3, no_answer=0, cut_off=0, errors=2, retries=4)
    assert verdict.score.share == 0.9
    assert verdict.reasons == ("requests failed for 2 of 50 items: HTTP 500: out of memory",)


def test_r24_half_the_items_failed_is_no_perfect_score() -> None:
    verdict = judge_accuracy(arm(*[RIGHT] * 25, *[ERROR] * 25), floor=0.5)
    assert verdict.outcome is AccuracyOutcome.INCONCLUSIVE
    assert verdict.score is not None
    assert verdict.score.share == 0.5
    assert "25 of 50 items" in verdict.reasons[0]


@pytest.mark.parametrize(("right", "text"), [(45, "45/50 right (79% to 96%)"), (48, "48/50 right (87% to 99%)")])
def test_r24_a_score_is_printed_with_its_interval(right: int, text: str) -> None:
    assert str(score(shares(right).results)) == text


def test_r24_two_runs_of_one_configuration_do_not_differ() -> None:
    verdict = judge_accuracy(FIRST, first=shares(48, label="again"))
    assert verdict.outcome is AccuracyOutcome.PASS
    assert verdict.comparison is not None
    assert (verdict.comparison.lost, verdict.comparison.gained) == ((45, 46, 47), ())
    assert "; ".join(verdict.reasons) == (
        "no drop was shown: of the items, 3 lost and 0 gained against again, p = 0.12; "
        "with 50 items one of 15.8 points would show in 80% of all runs, a smaller one less often"
    )


def test_r23_many_cut_answers_make_no_accuracy() -> None:
    verdict = judge_accuracy(arm(*[RIGHT] * 47, *[CUT] * 3), floor=0.5, first=FIRST)
    assert verdict.outcome is AccuracyOutcome.INCONCLUSIVE
    assert verdict.reasons == ("token budget too small: 3 of 50 answers were cut at 4096 tokens",)
    assert verdict.score is not None
    assert (verdict.score.cut_off, verdict.score.share, verdict.score.interval) == (3, None, None)
    assert str(verdict.score) == "no accuracy: 3 of 50 answers were cut"


def test_r23_a_few_cut_answers_are_counted_as_not_right() -> None:
    verdict = judge_accuracy(arm(*[RIGHT] * 48, *[CUT] * 2), floor=0.9)
    assert verdict.outcome is AccuracyOutcome.PASS
    assert verdict.score == Score(n=50, right=48, wrong=0, no_answer=2, cut_off=2, errors=0, retries=0)


@pytest.mark.parametrize(("n", "most"), [(50, 2), (100, 2), (1319, 26)])
def test_how_many_cut_answers_are_a_few(n: int, most: int) -> None:
    few = Score(n=n, right=0, wrong=n - most, no_answer=most, cut_off=most, errors=0, retries=0)
    assert not few.is_budget_too_small
    assert replace(few, cut_off=most + 1).is_budget_too_small


def test_a_score_below_the_floor_fails_and_one_at_it_passes() -> None:
    below, at = (judge_accuracy(shares(right), floor=0.28) for right in (13, 14))
    assert (below.outcome, at.outcome) == (AccuracyOutcome.FAIL, AccuracyOutcome.PASS)
    assert below.reasons == ("13/50 right (16% to 40%) is below the floor of 0.28",)
    assert "the floor lies inside the interval, so another run may fall below it" in at.reasons[0]
    assert judge_accuracy(shares(50), floor=0.9).reasons == ("50/50 right (93% to 100%) is not below the floor of 0.9",)


@pytest.mark.parametrize("floor", [0.0, -0.1, 85.0])
def test_a_floor_in_percent_is_refused(floor: float) -> None:
    with pytest.raises(UsageError, match=r"for 85 % give 0\.85"):
        judge_accuracy(FIRST, floor=floor)


@pytest.mark.parametrize(
    ("lost", "gained", "outcome"),
    [
        (4, 0, AccuracyOutcome.PASS),
        (5, 0, AccuracyOutcome.FAIL),
        (7, 1, AccuracyOutcome.FAIL),
        (10, 3, AccuracyOutcome.FAIL),
        (6, 1, AccuracyOutcome.PASS),
        (0, 5, AccuracyOutcome.PASS),
    ],
)
def test_an_arm_fails_when_it_loses_more_items_than_chance_would(
    lost: int, gained: int, outcome: AccuracyOutcome
) -> None:
    other = arm(*[WRONG] * lost, *[RIGHT] * (45 - lost), *[RIGHT] * gained, *[WRONG] * (5 - gained))
    verdict = judge_accuracy(other, first=FIRST)
    assert verdict.outcome is outcome
    assert verdict.comparison is not None
    assert verdict.comparison.lost == tuple(range(lost))
    assert verdict.comparison.gained == tuple(range(45, 45 + gained))
    assert (verdict.comparison.p_worse < 0.05) is (outcome is AccuracyOutcome.FAIL)


def test_a_lost_answer_counts_as_much_as_a_wrong_one() -> None:
    other = arm(*[NONE] * 5, *[RIGHT] * 40, *[WRONG] * 5)
    assert judge_accuracy(other, first=FIRST).outcome is AccuracyOutcome.FAIL


def test_equal_scores_on_different_items_are_no_drop() -> None:
    other = arm(*[WRONG] * 5, *[RIGHT] * 45)
    verdict = judge_accuracy(other, first=FIRST)
    assert (verdict.outcome, verdict.comparison and verdict.comparison.p_worse) == (AccuracyOutcome.PASS, 638 / 1024)


def test_the_floor_fails_an_arm_whose_comparison_says_nothing() -> None:
    verdict = judge_accuracy(shares(40), floor=0.9, first=replace(FIRST, prompt_sha256="other"))
    assert verdict.outcome is AccuracyOutcome.FAIL
    assert verdict.reasons == (
        "40/50 right (67% to 89%) is below the floor of 0.9",
        "not comparable: another prompt",
    )


@pytest.mark.parametrize(
    ("change", "name"),
    [({"items_sha256": "x"}, "items"), ({"prompt_sha256": "x"}, "prompt"), ({"token_budget": 1}, "token budget")],
)
def test_arms_that_were_not_asked_the_same_are_not_compared(change: dict[str, Any], name: str) -> None:
    other = replace(FIRST, **change)
    assert differences(FIRST, other) == (name,)
    verdict = judge_accuracy(other, first=FIRST)
    assert (verdict.outcome, verdict.comparison) == (AccuracyOutcome.INCONCLUSIVE, None)
    assert verdict.reasons == (f"not comparable: another {name}",)
    with pytest.raises(ValueError, match="were not asked the same"):
        compare(FIRST, other)


def test_another_concurrency_is_compared() -> None:
    assert judge_accuracy(replace(FIRST, concurrency=1), first=FIRST).outcome is AccuracyOutcome.PASS


@pytest.mark.parametrize("first", [arm(*[RIGHT] * 49, ERROR), arm(*[RIGHT] * 40, *[CUT] * 10)])
def test_a_first_arm_without_an_accuracy_has_nothing_to_compare_with(first: AccuracyRun) -> None:
    verdict = judge_accuracy(shares(50), first=first)
    assert verdict.outcome is AccuracyOutcome.INCONCLUSIVE
    assert "has no accuracy to compare with" in verdict.reasons[0]


@pytest.mark.parametrize("right", [0, 7])
def test_a_first_arm_with_too_little_to_lose_shows_nothing(right: int) -> None:
    verdict = judge_accuracy(shares(right), first=shares(right))
    assert verdict.outcome is AccuracyOutcome.INCONCLUSIVE
    assert "too little to show any drop" in verdict.reasons[0]


def test_without_a_floor_and_a_first_arm_a_score_is_told_and_not_judged() -> None:
    verdict = judge_accuracy(FIRST)
    assert (verdict.outcome, verdict.passed) == (AccuracyOutcome.UNJUDGED, False)
    assert verdict.smallest_visible_drop_share == pytest.approx(0.158, abs=0.001)


def test_no_items_are_no_accuracy() -> None:
    verdict = judge_accuracy(arm(), floor=0.5)
    assert (verdict.outcome, verdict.reasons) == (AccuracyOutcome.INCONCLUSIVE, ("no items were asked",))
    assert str(verdict.score) == "no items"


def test_random_weights_have_no_accuracy() -> None:
    verdict = not_applicable()
    assert (verdict.outcome, verdict.passed) == (AccuracyOutcome.NOT_APPLICABLE, False)
    assert verdict.reasons == ("not applicable: random weights",)


grades = st.lists(st.sampled_from([RIGHT, WRONG, NONE, CUT, ERROR]), max_size=60)


@settings(deadline=None, max_examples=50)
@given(grades)
def test_every_item_is_in_one_count(given_grades: list[Grade | str | None]) -> None:
    found = score(arm(*given_grades).results)
    assert found.n == len(given_grades) == found.right + found.wrong + found.no_answer + found.errors
    assert found.cut_off <= found.no_answer


@settings(deadline=None, max_examples=50)
@given(grades)
def test_errors_never_pass(given_grades: list[Grade | str | None]) -> None:
    verdict = judge_accuracy(arm(*given_grades, ERROR), floor=0.01, first=arm(*given_grades, RIGHT))
    assert verdict.outcome is AccuracyOutcome.INCONCLUSIVE


def test_the_effect_on_accuracy_is_the_difference_over_the_same_items() -> None:
    found = effect_of(arm(RIGHT, RIGHT, RIGHT, WRONG), arm(RIGHT, WRONG, NONE, RIGHT))
    assert (found.share, found.n_pairs) == (-0.25, 4)
    assert found.interval is not None
    assert found.interval[0] < -0.25 < found.interval[1]


@pytest.mark.parametrize(
    ("right", "right_again", "finding"),
    [
        (45, 45, Finding.BELOW_RESOLUTION),
        (35, 34, Finding.WITHIN_DRIFT),
        (20, 45, Finding.BETWEEN_INSTANCES),
    ],
)
def test_a_change_of_accuracy_inside_the_drift_is_no_change_seen(
    right: int, right_again: int, finding: Finding
) -> None:
    found = conclude(effect_of(FIRST, shares(right)), effect_of(FIRST, shares(right_again)))
    assert found is finding
    assert found.said.startswith("no change seen") == (finding is not Finding.BETWEEN_INSTANCES)


@pytest.mark.parametrize(
    "other", [None, arm(*[RIGHT] * 49, ERROR), arm(*[RIGHT] * 40, *[CUT] * 10), shares(45, items_sha256="other")]
)
def test_without_an_accuracy_on_both_sides_there_is_no_effect(other: AccuracyRun | None) -> None:
    for found in (effect_of(FIRST, other), effect_of(other, FIRST)):
        assert (found.share, found.interval, found.n_pairs) == (None, None, 0)
        assert conclude(found, None) is Finding.TOO_FEW_PAIRS
