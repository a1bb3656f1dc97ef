"""gates.json: what is written is the verdict, and a later arm can be compared with what is read."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from pydantic import ValidationError

from gates.accuracy import AccuracyOutcome, AccuracyRun, ItemResult, judge_accuracy, not_applicable
from gates.answers import FoundBy, Grade
from reports.gates_document import GatesDocument, gates_document
from reports.run_directory import read_document, to_json

RESULTS = (
    ItemResult(0, Grade.RIGHT, Fraction(-3), FoundBy.HASHES, finish_reason="stop", output_tokens=90, tail="#### -3"),
    ItemResult(1, Grade.WRONG, Fraction(7, 2), FoundBy.LAST_NUMBER, finish_reason="stop", output_tokens=80, tail="3½"),
    ItemResult(2, Grade.NO_ANSWER, is_cut_off=True, finish_reason="length", output_tokens=512, tail="<think>so"),
    ItemResult(3, None, attempts=3, error="HTTP 500: out of memory"),
    *(
        ItemResult(index, Grade.RIGHT, Fraction(index), FoundBy.BOXED, finish_reason="stop", output_tokens=70)
        for index in range(4, 50)
    ),
)
RUN = AccuracyRun("moe-tuned", "openai/gsm8k main/test", "a1", "b2", 512, 16, RESULTS)
WHOLE = replace(RUN, results=tuple(replace(each, grade=Grade.RIGHT, error="") for each in RESULTS))


def document(run: AccuracyRun = RUN, *, floor: float | None = 0.5, first: AccuracyRun | None = None) -> GatesDocument:
    verdict = judge_accuracy(run, floor=floor, first=first)
    return gates_document(label=run.label, engine="vllm", verdict=verdict, run=run, floor=floor)


def test_what_is_read_is_what_was_written_and_gives_the_run_back(tmp_path: Path) -> None:
    path = tmp_path / "gates.json"
    path.write_text(to_json(document()), encoding="utf-8")
    read = read_document(path, GatesDocument)
    assert read == document()
    assert read.run() == RUN


def test_the_counts_and_each_item_are_written() -> None:
    written = json.loads(to_json(document()))
    assert (written["schema_version"], written["label"], written["engine"]) == (1, "moe-tuned", "vllm")
    assert (written["outcome"], written["accuracy_floor"]) == ("inconclusive", 0.5)
    counts = [written[name] for name in ("n", "right", "wrong", "no_answer", "cut_off", "errors", "retries")]
    assert counts == [50, 47, 1, 1, 1, 1, 2]
    assert written["accuracy_share"] == 0.94
    assert written["accuracy_interval"] == [pytest.approx(0.838, abs=0.001), pytest.approx(0.979, abs=0.001)]
    assert written["asked"] == {
        "items_source": "openai/gsm8k main/test",
        "items_sha256": "a1",
        "prompt_sha256": "b2",
        "token_budget": 512,
        "concurrency": 16,
    }
    assert [each["grade"] for each in written["items"][:4]] == ["right", "wrong", "no answer", None]
    assert [each["answer"] for each in written["items"][:4]] == ["-3", "7/2", None, None]
    assert written["items"][3]["error"] == "HTTP 500: out of memory"


def test_a_comparison_is_written_item_by_item() -> None:
    worse = replace(
        WHOLE, results=tuple(replace(each, grade=Grade.WRONG) if each.index < 5 else each for each in WHOLE.results)
    )
    made = document(worse, floor=None, first=replace(WHOLE, label="moe-default"))
    assert made.outcome is AccuracyOutcome.FAIL
    assert made.comparison is not None
    assert made.comparison.model_dump() == {
        "first_label": "moe-default",
        "lost": [0, 1, 2, 3, 4],
        "gained": [],
        "p_worse": 1 / 32,
    }
    (reason,) = made.reasons
    assert reason == "worse than the first arm: of the items, 5 lost and 0 gained against moe-default, p = 0.031"


def test_a_gate_that_did_not_apply_has_no_items_and_no_numbers() -> None:
    made = gates_document(label="tiny", engine="vllm", verdict=not_applicable(), run=None, floor=0.5)
    assert (made.outcome, made.reasons) == (AccuracyOutcome.NOT_APPLICABLE, ["not applicable: random weights"])
    assert (made.n, made.accuracy_share, made.accuracy_interval, made.asked, made.items) == (0, None, None, None, [])
    assert made.run() is None


def test_counts_that_are_not_those_of_the_items_are_refused() -> None:
    fields = document().model_dump()
    for change in ({"errors": 0}, {"n": 49}, {"items": fields["items"][1:]}):
        with pytest.raises(ValidationError, match="the counts are not those of the items"):
            GatesDocument(**{**fields, **change})
