"""The accuracy gate in lines."""

from __future__ import annotations

from dataclasses import replace

from gates.accuracy import AccuracyRun, ItemResult, judge_accuracy, not_applicable
from gates.answers import Grade
from reports.gates_document import GatesDocument, gates_document
from reports.gates_words import gate_lines

ITEMS = tuple(ItemResult(index, Grade.RIGHT) for index in range(45)) + tuple(
    ItemResult(45 + index, Grade.WRONG if index < 4 else Grade.NO_ANSWER, is_cut_off=index == 4) for index in range(5)
)
RUN = AccuracyRun("arm", "gsm8k", "a", "b", 4096, 57, ITEMS)
ALL_RIGHT = replace(RUN, label="first", results=tuple(ItemResult(index, Grade.RIGHT) for index in range(50)))


def held(run: AccuracyRun, *, floor: float | None = None, first: AccuracyRun | None = None) -> GatesDocument:
    verdict = judge_accuracy(run, floor=floor, first=first)
    return gates_document(label=run.label, engine="vllm", verdict=verdict, run=run, floor=floor)


def test_a_score_stands_with_its_interval_its_items_and_the_drop_that_they_could_show() -> None:
    score, drop, verdict = gate_lines(held(RUN, floor=0.85))
    assert score == (
        "accuracy: 45 of 50 right, 90.0 % (95 % interval 78.6 % to 95.7 %); 4 wrong, 1 without an answer, "
        "1 of them cut, 0 errors, 0 requests sent again; 57 in flight"
    )
    assert drop == "smallest drop that 50 items show in 80 % of all runs: 15.8 points"
    assert verdict == (
        "accuracy gate: pass: 45/50 right (79% to 96%) is not below the floor of 0.85; the floor lies inside the "
        "interval, so another run may fall below it"
    )


def test_the_items_that_were_lost_are_named() -> None:
    lines = gate_lines(held(RUN, first=ALL_RIGHT))
    assert lines[-2].startswith("accuracy gate: fail: worse than the first arm: of the items, 5 lost")
    assert lines[-1] == "items lost: 45, 46, 47, 48, 49; gained: none"
    worse = replace(RUN, results=tuple(ItemResult(index, Grade.WRONG) for index in range(50)))
    assert gate_lines(held(worse, first=ALL_RIGHT))[-1].startswith(
        "items lost: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 40 more;"
    )


def test_what_is_no_accuracy_is_called_so() -> None:
    cut = replace(RUN, results=tuple(ItemResult(index, Grade.NO_ANSWER, is_cut_off=True) for index in range(4)))
    lines = gate_lines(held(cut, floor=0.5))
    assert lines[0].startswith("accuracy: 0 of 4 right, which is no accuracy; ")
    assert lines[1].startswith("accuracy gate: inconclusive: token budget too small: 4 of 4 answers were cut")


def test_a_gate_that_cannot_apply_is_one_line() -> None:
    document = gates_document(label="arm", engine="vllm", verdict=not_applicable(), run=None, floor=None)
    assert gate_lines(document) == ["accuracy gate: not applicable: random weights"]
