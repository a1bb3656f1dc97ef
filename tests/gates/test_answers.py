"""What a completion answers: published verdicts, the field reports, and no text that breaks or stalls the reading."""

from __future__ import annotations

import json
import os
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.answers import MAX_DIGITS, Answer, FoundBy, Grade, gold_number, grade, read_answer

DATA = Path(os.environ.get("SLO_BENCH_DATA", Path(__file__).parents[3] / "shared" / "data"))
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
MINUS = "\N{MINUS SIGN}"


def test_all_published_verdicts_on_four_models_are_ours_too() -> None:
    path = DATA / "gsm8k_model_solutions.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent; SLO_BENCH_DATA names the folder")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    agree = [
        (grade(row[model]["solution"], gold) is Grade.RIGHT) is row[model]["is_correct"]
        for row, gold in ((row, gold_number(row["ground_truth"])) for row in rows)
        for model in MODELS
    ]
    assert (len(agree), sum(agree)) == (5276, 5276)


@pytest.mark.parametrize(
    ("completion", "gold", "verdict"),
    [
        ("They need two tickets, so it will cost $29.00.", 29, Grade.RIGHT),
        ("#### 1,234", 1234, Grade.RIGHT),
        ("The answer is $1,234.00", 1234, Grade.RIGHT),
        ("The answer is **18**.", 18, Grade.RIGHT),
        (r"\boxed{18}", 18, Grade.RIGHT),
        ("29.0 dollars", 29, Grade.RIGHT),
        ("40%", 40, Grade.RIGHT),
        ("#### -3", -3, Grade.RIGHT),
        ("#### -3", 3, Grade.WRONG),
        ("#### 3", -3, Grade.WRONG),
        (f"{MINUS}3", -3, Grade.RIGHT),
        ("29.5", 29, Grade.WRONG),
        ("", 0, Grade.NO_ANSWER),
        ("I cannot say", 0, Grade.NO_ANSWER),
        (None, 0, Grade.NO_ANSWER),
    ],
)
def test_r21_numbers_are_compared_and_signs_are_kept(completion: str | None, gold: int, verdict: Grade) -> None:
    assert grade(completion, gold) is verdict
    assert grade(completion, str(gold)) is verdict


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("4 left, then 1 more, so 5 left.\n#### 5\n\nQuestion: Tom has 7 and 5.\nAnswer: 7+5=12\n#### 12", 5),
        ("4 left, then 1 more, so 5 left.\n\nQuestion: Tom has 7 and 5.\nAnswer: 7+5=12\n#### 12", 5),
        ("so 5 left.\r\n \r\nQ: Tom has 7 and 5.\r\nA: 12", 5),
        ("<think>Example: 450/90=5, 5*10=50, #### 50. Now ours: 9*2=18.</think>\n#### 18", 18),
        ("First, identify the Question: how many eggs? 16-7=9, 9*2=18.\n#### 18", 18),
        ("Question: how many eggs?\n16-7=9, 9*2=18.\n#### 18", 18),
        ("\n\nQuestion: how many eggs?\n\n16-7=9, 9*2=18, so 18", 18),
    ],
)
def test_r22_only_a_new_example_ends_the_answer_and_the_first_marker_counts(completion: str, gold: int) -> None:
    assert grade(completion, gold) is Grade.RIGHT


def test_r22_an_example_after_no_answer_gives_none() -> None:
    assert grade("I cannot say.\n\nQuestion: What is 5 + 7?\n#### 12", 12) is Grade.NO_ANSWER


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("completion", ["<think>5 * 4 = 20, wait, that is not", "Well. <think>5 * 4 = 20"])
def test_r23_thinking_without_an_end_is_no_answer(completion: str, is_cut: bool) -> None:
    assert read_answer(completion, is_cut=is_cut) == Answer(is_cut_off=True)


@pytest.mark.parametrize("completion", [None, "", "5 * 4 = 20, wait, that is not", "So the answer is 20. But wait"])
def test_r23_a_cut_answer_is_read_only_where_it_is_marked(completion: str | None) -> None:
    assert read_answer(completion, is_cut=True) == Answer(is_cut_off=True)


def test_r23_a_number_that_the_limit_may_have_cut_is_no_answer() -> None:
    assert read_answer("#### 12", is_cut=True).is_cut_off
    assert read_answer("#### 12.", is_cut=True).is_cut_off
    assert read_answer(r"\boxed{12", is_cut=True).is_cut_off
    assert read_answer("#### 12\nThis follows from", is_cut=True) == Answer(Fraction(12), FoundBy.HASHES)
    assert read_answer(r"\boxed{12} since", is_cut=True) == Answer(Fraction(12), FoundBy.BOXED)


def test_r23_a_model_that_ran_on_to_its_own_example_had_answered() -> None:
    completion = "So 5 are left.\n\nQuestion: Tom has 7 apples and"
    assert read_answer(completion, is_cut=True) == Answer(Fraction(5), FoundBy.LAST_NUMBER)


@pytest.mark.parametrize(
    "completion",
    ["<think>5 * 4 = 20</think>\n#### 20", "#### 21, no.</think>#### 20", "<THINKING>19</THINKING>It is 20."],
)
def test_r23_whole_thinking_is_dropped(completion: str) -> None:
    assert grade(completion, 20) is Grade.RIGHT


@pytest.mark.parametrize(
    ("completion", "number", "found_by"),
    [
        ("#### 18", "18", FoundBy.HASHES),
        ("**#### 18**", "18", FoundBy.HASHES),
        ("####18 dollars a day, for 9 eggs", "18", FoundBy.HASHES),
        ("#### 18. Ask me 2 more!", "18", FoundBy.HASHES),
        ("#### 9 * 2 = 18", "18", FoundBy.HASHES),
        ("#### 18 = 9 * 2", "18", FoundBy.HASHES),
        ("#### 54/3 = 18 eggs", "18", FoundBy.HASHES),
        ("#### $-1,234.50", "-1234.5", FoundBy.HASHES),
        ("#### -$3", "-3", FoundBy.HASHES),
        ("#### 1. Count the eggs\n16 - 7 = 9\n#### 2. Sell them\n9 * 2 = 18", "18", FoundBy.LAST_NUMBER),
        ("#### 9 * 2\nwhich is 18", "18", FoundBy.LAST_NUMBER),
        ("A last line of #### and a number: 18", "18", FoundBy.LAST_NUMBER),
        (r"Thus $\boxed{\$1{,}234 \text{ in all}}$, 2 each", "1234", FoundBy.BOXED),
        (r"\[ \boxed{-\frac{1}{2}} \]", "-1/2", FoundBy.BOXED),
        (r"\boxed{3\frac{1}{2}}", "7/2", FoundBy.BOXED),
        (r"first \boxed{5}, then \boxed{\textbf{18}}", "18", FoundBy.BOXED),
        (r"\boxed{x = 18}", "18", FoundBy.LAST_NUMBER),
        ("16 - 7 = 9\nA: 18", "18", FoundBy.LABEL),
        ("**Final Answer:**\n\n$18$", "18", FoundBy.LABEL),
        ("Answer: 18 (9 eggs at 2 dollars)", "18", FoundBy.LABEL),
        ("A: 16 eggs less 7 are 9.\nShe makes 18", "18", FoundBy.LAST_NUMBER),
        ("Job A: 5 dollars, job B: 18 dollars", "18", FoundBy.LAST_NUMBER),
        (r"The answer is \(18\). It took 2 steps.", "18", FoundBy.SENTENCE),
        ("The answer to your 1st question is: 18 eggs, of 20", "18", FoundBy.SENTENCE),
        ("the answer is not 20 but 18", "18", FoundBy.LAST_NUMBER),
        ("3½", "7/2", FoundBy.LAST_NUMBER),
        ("it is 3 1/2", "7/2", FoundBy.LAST_NUMBER),
        ("half of it, .5", "1/2", FoundBy.LAST_NUMBER),
        ("from 16\N{EN DASH}18", "18", FoundBy.LAST_NUMBER),
        ("a fall of \N{EN DASH}18", "-18", FoundBy.LAST_NUMBER),
        ("10 -3", "3", FoundBy.LAST_NUMBER),
        ("10-3 = -18", "-18", FoundBy.LAST_NUMBER),
        ("1\u202f234 or 1'234", "1234", FoundBy.LAST_NUMBER),
        ("1,00,000 rupees", "100000", FoundBy.LAST_NUMBER),
        ("of 16, 17,18", "18", FoundBy.LAST_NUMBER),
        ("an area of 18 ft^2", "18", FoundBy.LAST_NUMBER),
        (r"an area of 18 m^{2}", "18", FoundBy.LAST_NUMBER),
    ],
)
def test_an_answer_is_found_where_it_was_marked_else_last(completion: str, number: str, found_by: FoundBy) -> None:
    assert read_answer(completion) == Answer(Fraction(number), found_by)
    assert found_by.is_strict is (found_by is not FoundBy.LAST_NUMBER)


@pytest.mark.parametrize("completion", ["eighteen", "5/0", "9" * (MAX_DIGITS + 1), "0." + "3" * 100_000])
def test_what_cannot_be_read_is_no_answer(completion: str) -> None:
    assert grade(completion, 18) is Grade.NO_ANSWER


@pytest.mark.parametrize("gold", ["1,234", "A: 1234", "9 * 2\n#### 1,234", 1234, Fraction(1234)])
def test_a_gold_is_a_number_its_text_or_a_solution(gold: str | int | Fraction) -> None:
    assert gold_number(gold) == 1234


def test_a_gold_without_a_number_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no number"):
        grade("18", "none")


numbers = st.one_of(
    st.integers(-(10**9), 10**9).map(Fraction),
    st.decimals(-100_000, 100_000, places=2).map(Fraction),
)
DECORATIONS = (
    "{}", "${}", "**{}**", "{} dollars", "{}%", "**${}**.", "`{}`", "${}$", r"\({}\)", r"\${}", r"\text{{{} eggs}}",
)  # fmt: skip
FRAMES = (
    "{}", "#### {}", "So 3 + 4 it is.\n#### {}\n", "A: {}", "**Answer:** {}", "The answer is {}",
    r"2, so \boxed{{{}}}.", "<think>no, 7</think>{}", "Of 5 eggs, {}\n\nI hope that this helps!",
    "It is {}\n\nQuestion: 4 + 4?\n#### 8",
)  # fmt: skip


@st.composite
def written(draw: st.DrawFn, number: Fraction) -> str:
    """A number in one of the accepted ways."""
    hundredths = str(abs(int(number * 100))).zfill(3)
    whole, decimals = hundredths[:-2], hundredths[-2:]
    separator = draw(st.sampled_from(["", ",", "{,}", "\u00a0", "\u202f"]))
    groups = f"{int(whole):,}".replace(",", separator)
    digits = groups + draw(st.sampled_from(["", ".0", ".00"])) if decimals == "00" else f"{groups}.{decimals}"
    sign = draw(st.sampled_from(["-", MINUS])) if number < 0 else ""
    return draw(st.sampled_from(FRAMES)).format(draw(st.sampled_from(DECORATIONS)).format(sign + digits))


@settings(deadline=None, max_examples=60)
@given(st.data(), numbers, numbers)
def test_a_number_is_right_however_it_is_written_and_another_one_wrong(
    data: st.DataObject, number: Fraction, other: Fraction
) -> None:
    completion = data.draw(written(number))
    assert grade(completion, number) is Grade.RIGHT
    if other != number:
        assert grade(completion, other) is Grade.WRONG


PIECES = (
    "<think>", "</think>", "####", r"\boxed{", "}", "A:", "the answer is", "Question:", "\n", "\n\n", " ", "18", "-",
    "3", "1,234", ".", ",", "/", "=", "$", "%", "(", "**", r"\frac{1}{2}", "½", "eggs", "*", "\u00a0", "0", "^",
)  # fmt: skip
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))
blanks = st.text(" \n\t\r", max_size=4)


@settings(deadline=None, max_examples=60)
@given(texts, blanks, blanks)
def test_blanks_around_a_completion_change_nothing(text: str, before: str, after: str) -> None:
    assert read_answer(f"{before}{text}{after}") == read_answer(text)


@settings(deadline=None, max_examples=60)
@given(texts, st.booleans())
def test_no_text_breaks_the_reading(text: str, is_cut: bool) -> None:
    found = read_answer(text, is_cut=is_cut)
    assert (found.number is None) is (found.found_by is None)
    assert not (found.is_cut_off and found.number is not None)


@pytest.mark.parametrize(
    "junk",
    ["9", "11,", "1 1/", "<think>", "#### 1+1", r"\boxed{", "A:\n", "\n ", "answer is 1*1="],
)
def test_a_hundred_kilobytes_of_junk_take_no_longer_than_prose(junk: str) -> None:
    text = junk * (100_000 // len(junk))
    start_s = time.process_time()
    read_answer(text)
    assert time.process_time() - start_s < 2.0  # a tenth of it is usual; a quadratic pattern takes more than ten
