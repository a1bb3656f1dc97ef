"""The text gate in lines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from gates.text import TextDifference, TextResult
from reports.arms import Experiment
from reports.run_directory import to_json
from reports.text_document import TEXT_NAME, text_document
from reports.text_words import difference_text, text_lines


def arm(parent: Path, label: str, *logprobs: float, not_measured: str | None = None) -> SimpleNamespace:
    """An arm as far as the text gate reads it; without logprobs and a reason it has no file."""
    directory = parent / label
    directory.mkdir()
    if logprobs or not_measured:
        results = (TextResult(logprobs, ("1",) * len(logprobs), ("so",)),) if logprobs else ()
        document = text_document(
            label=label, engine="vllm", texts_sha256="a", results=results, not_measured=not_measured
        )
        (directory / TEXT_NAME).write_text(to_json(document), encoding="utf-8")
    return SimpleNamespace(label=label, directory=directory)


def lines(tmp_path: Path, *compared: SimpleNamespace, has_repeat: bool = True) -> list[str]:
    base = arm(tmp_path, "base", -1.0, -2.0)
    repeat = arm(tmp_path, "base-2", -1.0, -2.0) if has_repeat else None
    return text_lines(cast(Experiment, SimpleNamespace(baseline=base, drift_arm=repeat, compared=compared)))


def test_each_arm_that_was_asked_has_its_verdict_and_its_measures(tmp_path: Path) -> None:
    said = lines(
        tmp_path,
        arm(tmp_path, "same", -1.0, -2.0),
        arm(tmp_path, "other", -1.0, -5.0),
        arm(tmp_path, "silent", not_measured="the server gives no prompt_logprobs"),
        arm(tmp_path, "unasked"),
    )
    assert said[0] == (
        "text gate: same: the same text, no more than the first arm's repeat differs; 2 tokens, mean |Δ logprob| 0, "
        "largest 0, top token changed at 0.0 %, all 1 continuations equal"
    )
    assert said[1].startswith("text gate: other: another text, beyond the repeat and rounding: mean |Δ logprob| 1.5")
    assert said[2:] == ["text gate: silent: not measured: the server gives no prompt_logprobs"]


def test_without_a_repeat_it_is_shown_and_not_judged(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, arm(tmp_path, "other", -1.0, -5.0), has_repeat=False)
    assert line.startswith(
        "text gate: other: not judged, a repeat of the first arm and the first arm cannot be compared"
    )
    assert "largest 3, " in line


def test_where_continuations_part_is_told() -> None:
    text = difference_text(TextDifference(1453, 0.01, 0.4, 0.012, (None, 7, 3)))
    assert text.endswith("top token changed at 1.2 %, 2 of 3 continuations part, the first one at token 4")
