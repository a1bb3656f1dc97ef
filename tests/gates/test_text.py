"""The text gate: what two arms say differently of the same tokens, held against a repeat and against rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gates.text import (
    LOWEST_LOGPROB,
    ROUNDING_LARGEST,
    ROUNDING_MEAN,
    ROUNDING_TOP_SHARE,
    TextDifference,
    TextOutcome,
    TextResult,
    TextRun,
    difference,
    judge_text,
)

FIRST = TextRun(
    "first",
    "a",
    (
        TextResult((-1.0, -2.0, -0.5), ("5", "7", "9"), ("the", "sea")),
        TextResult((-3.0,), ("5",), ("and",)),
    ),
)
NOTHING = TextDifference(4, 0.0, 0.0, 0.0, (None, None))


def changed(place: int, **changes: object) -> TextRun:
    """The first arm with one text that differs."""
    results = list(FIRST.results)
    results[place] = replace(results[place], **changes)  # type: ignore[arg-type]
    return replace(FIRST, label="other", results=tuple(results))


def differing(mean: float = 0.0, largest: float = 0.0, top: float = 0.0) -> TextDifference:
    return TextDifference(1000, mean, largest, top, (None,))


def test_two_arms_differ_by_the_mean_and_the_largest_change_over_all_tokens() -> None:
    found = difference(FIRST, changed(0, logprobs=(-1.0, -2.5, -0.2)))
    assert found is not None
    assert found.n == 4
    assert found.mean_logprob == pytest.approx(0.2)
    assert found.largest_logprob == pytest.approx(0.5)
    assert (found.changed_top_share, found.diverged_at) == (0.0, (None, None))


def test_another_likeliest_token_counts_wherever_it_stands() -> None:
    found = difference(FIRST, changed(0, top=("5", "8", "9")))
    assert found is not None
    assert (found.changed_top_share, found.mean_logprob) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("continuation", "place"), [(("the", "hill"), 1), (("the",), 1), (("the", "sea", "is"), 2), ((), 0)]
)
def test_free_running_text_shows_where_it_parts_and_decides_nothing(continuation: tuple[str, ...], place: int) -> None:
    found = difference(FIRST, changed(0, continuation=continuation))
    assert found is not None
    assert found.diverged_at == (place, None)
    assert judge_text(found, NOTHING).outcome is TextOutcome.SAME


def test_impossible_tokens_differ_by_nothing_however_a_server_writes_them() -> None:
    before = replace(FIRST, results=(TextResult((float("-inf"),), ("1",), ()),))
    after = replace(FIRST, results=(TextResult((-9999.0,), ("1",), ()),))
    found = difference(before, after)
    assert found is not None
    assert found.largest_logprob == 0.0
    assert LOWEST_LOGPROB == -100.0


def test_other_texts_or_another_tokenizer_are_not_compared() -> None:
    assert difference(FIRST, replace(FIRST, texts_sha256="b")) is None
    assert difference(FIRST, changed(1, logprobs=(-3.0, -1.0), top=("5", "6"))) is None
    assert difference(replace(FIRST, results=()), replace(FIRST, results=())) is None


@given(
    st.lists(
        st.tuples(st.floats(-50, 0), st.floats(-50, 0), st.sampled_from("abc"), st.sampled_from("abc")), min_size=1
    )
)
def test_a_difference_is_the_same_from_both_sides_and_none_from_itself(
    tokens: list[tuple[float, float, str, str]],
) -> None:
    one, another = (
        TextRun("x", "a", (TextResult(tuple(t[side] for t in tokens), tuple(t[2 + side] for t in tokens), ()),))  # type: ignore[misc]
        for side in (0, 1)
    )
    there = difference(one, another)
    assert there == difference(another, one)
    assert there is not None
    assert there.mean_logprob <= there.largest_logprob + 1e-12
    itself = difference(one, one)
    assert itself is not None
    assert (itself.largest_logprob, itself.changed_top_share) == (0.0, 0.0)


def test_no_more_than_twice_what_the_repeat_differs_by_is_the_same_text() -> None:
    repeat = differing(mean=0.1, largest=2.0, top=0.05)
    assert judge_text(differing(mean=0.2, largest=4.0, top=0.1), repeat).outcome is TextOutcome.SAME
    assert judge_text(differing(mean=0.201, largest=4.0, top=0.1), repeat).outcome is TextOutcome.CHANGED


def test_more_than_an_exact_repeat_but_no_more_than_rounding_does_is_within_rounding() -> None:
    found = differing(mean=ROUNDING_MEAN, largest=ROUNDING_LARGEST, top=ROUNDING_TOP_SHARE)
    verdict = judge_text(found, NOTHING)
    assert verdict.outcome is TextOutcome.ROUNDING
    assert "mean |Δ logprob| 0.0625 (repeat 0, rounding up to 0.0625)" in verdict.reason


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (differing(mean=0.07), "mean"),
        (differing(mean=0.01, largest=3.0), "largest"),
        (differing(mean=0.01, top=0.03), "share of changed top tokens"),
    ],
)
def test_each_measure_alone_can_show_another_text(found: TextDifference, named: str) -> None:
    verdict = judge_text(found, NOTHING)
    assert verdict.outcome is TextOutcome.CHANGED
    assert named in verdict.reason


@pytest.mark.parametrize(
    ("found", "repeat", "who"), [(None, NOTHING, "this arm"), (NOTHING, None, "a repeat of the first arm")]
)
def test_without_a_repeat_nothing_is_judged(
    found: TextDifference | None, repeat: TextDifference | None, who: str
) -> None:
    verdict = judge_text(found, repeat)
    assert verdict.outcome is TextOutcome.UNJUDGED
    assert who in verdict.reason
