"""Items, prompts and their checksums, and the room for an answer."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest

from gates.answers import FoundBy, read_answer
from gates.gsm8k import (
    EXAMPLES,
    LEAST_TOKEN_BUDGET,
    TOKEN_BUDGET,
    Item,
    item,
    items_sha256,
    messages,
    prompt_sha256,
    token_budget,
)
from traffic.errors import UsageError

DATA = Path(os.environ.get("SLO_BENCH_DATA", Path(__file__).parents[3] / "shared" / "data"))
ITEMS = (Item(0, "How many?", Fraction(3)), Item(1, "How much?", Fraction(5)))


@pytest.mark.parametrize(
    ("solution", "gold"),
    [("16 - 7 = 9\n#### 9", "9"), ("#### 1,450,000", "1450000"), ("#### -3", "-3"), ("2.5", "5/2"), ("18", "18")],
)
def test_the_gold_is_the_number_behind_the_last_marker(solution: str, gold: str) -> None:
    assert item(4, "How many?", solution) == Item(4, "How many?", Fraction(gold))


@pytest.mark.parametrize("solution", ["", "####", "16 - 7 = 9\n#### nine", "so it is 9"])
def test_a_solution_without_a_marked_number_is_no_item(solution: str) -> None:
    with pytest.raises(ValueError, match="which is no number"):
        item(0, "How many?", solution)


def test_every_row_of_the_published_set_is_an_item_and_none_is_among_our_examples() -> None:
    path = DATA / "gsm8k_test.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent; SLO_BENCH_DATA names the folder")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    items = [item(index, row["question"], row["answer"]) for index, row in enumerate(rows)]
    assert len(items) == 1319
    assert sum(each.gold for each in items if each.gold < 0) == -13
    assert not {each.question for each in items} & {question for question, _ in EXAMPLES}
    assert items_sha256(items) == "7369dd96eac7dd5d7aa72f9374b3efa8c19d444a942aacd02175ea580bdb9558"


def test_the_checksum_depends_on_questions_golds_and_order() -> None:
    others = [
        ITEMS[::-1],
        ITEMS[:1],
        (ITEMS[0], Item(1, "How much?", Fraction(6))),
        (ITEMS[0], Item(1, "How much??", Fraction(5))),
    ]
    sums = {items_sha256(each) for each in (ITEMS, *others)}
    assert len(sums) == 5
    assert items_sha256(list(ITEMS)) in sums


def test_a_prompt_is_a_chat_whose_earlier_turns_show_the_form_of_an_answer() -> None:
    turns = messages("How many eggs are left?")
    assert [each.role for each in turns] == [*["user", "assistant"] * len(EXAMPLES), "user"]
    assert turns[-1].text.endswith("How many eggs are left?")
    for each in turns[1::2]:
        assert read_answer(each.text).found_by is FoundBy.HASHES


def test_the_checksum_of_the_prompt_is_that_of_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    before = prompt_sha256()
    assert prompt_sha256() == before
    monkeypatch.setattr("gates.gsm8k.INSTRUCTION", "Think twice.")
    assert prompt_sha256() != before


@pytest.mark.parametrize(
    ("max_model_len", "budget"), [(None, TOKEN_BUDGET), (16_384, TOKEN_BUDGET), (2048, 1348), (956, LEAST_TOKEN_BUDGET)]
)
def test_an_answer_has_the_room_that_the_longest_prompt_leaves(max_model_len: int | None, budget: int) -> None:
    assert token_budget(max_model_len, 700) == budget


@pytest.mark.parametrize(("max_model_len", "wanted"), [(955, TOKEN_BUDGET), (512, TOKEN_BUDGET), (None, 100)])
def test_too_little_room_for_a_solution_is_refused(max_model_len: int | None, wanted: int) -> None:
    with pytest.raises(UsageError, match="at least 256 tokens"):
        token_budget(max_model_len, 700, wanted)
