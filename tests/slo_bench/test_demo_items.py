"""The demo's questions can be graded, and its engine has two of them wrong."""

from __future__ import annotations

from gates.answers import read_answer
from gates.gsm8k import messages
from slo_bench.demo_items import demo_answers, demo_items
from traffic.records import Request


def test_the_engine_knows_every_question_and_answers_all_but_two_right() -> None:
    known, items = demo_answers(), demo_items().items
    said = [
        known.answer(Request(0, 0.0, "item", 1, 1, messages=messages(each.question)), in_flight=200) or ""
        for each in items
    ]
    right = [read_answer(text).number == each.gold for text, each in zip(said, items, strict=True)]
    assert (len(items), len({each.question for each in items}), right.count(False)) == (24, 24, 2)
    assert "" not in said
