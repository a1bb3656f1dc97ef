"""text_gate.json: round trip, and the verdict from three directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from gates.text import TextOutcome, TextResult
from reports.run_directory import to_json
from reports.text_document import TEXT_NAME, TextDocument, read_text, text_document, text_verdict
from traffic.errors import UsageError


def kept(directory: Path, *logprobs: float, not_measured: str | None = None) -> Path:
    """A directory in which an arm's document lies."""
    results = () if not_measured else (TextResult(logprobs, ("1",) * len(logprobs), ("so",)),)
    document = text_document(
        label=directory.name, engine="vllm", texts_sha256="a", results=results, not_measured=not_measured
    )
    directory.mkdir()
    (directory / TEXT_NAME).write_text(to_json(document), encoding="utf-8")
    return directory


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    directory = kept(tmp_path / "arm", -1.5, -0.25)
    document = read_text(directory)
    assert document is not None
    run = document.run()
    assert run is not None
    assert (run.label, run.results) == ("arm", (TextResult((-1.5, -0.25), ("1", "1"), ("so",)),))


def test_an_arm_is_judged_against_the_first_one_and_its_repeat(tmp_path: Path) -> None:
    first, repeat = kept(tmp_path / "first", -1.0, -2.0), kept(tmp_path / "first-2", -1.0, -2.001)
    same, other = kept(tmp_path / "same", -1.0, -2.002), kept(tmp_path / "other", -1.0, -4.0)
    outcomes = [text_verdict(first, arm, repeat) for arm in (same, other)]
    assert [each.outcome for each in outcomes if each] == [TextOutcome.SAME, TextOutcome.CHANGED]


def test_without_a_repeat_there_is_no_judgement_but_the_difference_is_shown(tmp_path: Path) -> None:
    verdict = text_verdict(kept(tmp_path / "first", -1.0), kept(tmp_path / "arm", -3.0), None)
    assert verdict is not None
    assert verdict.outcome is TextOutcome.UNJUDGED
    assert verdict.found is not None
    assert verdict.found.largest_logprob == 2.0


def test_what_was_not_measured_or_not_asked_has_no_verdict(tmp_path: Path) -> None:
    first, silent = kept(tmp_path / "first", -1.0), kept(tmp_path / "silent", not_measured="no prompt_logprobs")
    assert text_verdict(first, silent, first) is None
    assert text_verdict(first, tmp_path / "none", first) is None
    assert text_verdict(silent, first, first) is None


def test_rows_of_different_length_are_refused(tmp_path: Path) -> None:
    directory = kept(tmp_path / "arm", -1.0)
    path = directory / TEXT_NAME
    path.write_text(path.read_text(encoding="utf-8").replace('"1"', '"1", "2"'), encoding="utf-8")
    with pytest.raises(UsageError, match="not of the same tokens"):
        read_text(directory)
    assert TextDocument.model_fields["schema_version"].default == 1
