"""text_gate.json: how likely an arm found each token of some fixed texts; the verdict comes once a repeat has run."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from gates.text import TextResult, TextRun, TextVerdict, difference, judge_text
from reports.run_directory import SCHEMA_VERSION, Document, EngineKind, read_document

TEXT_NAME = "text_gate.json"


class TextRow(Document):
    """One text. logprobs, top: per token but the first. continuation: shown, and decides nothing."""

    logprobs: list[float]
    top: list[str]
    continuation: list[str]

    @model_validator(mode="after")
    def _tell_of_the_same_tokens(self) -> Self:
        if len(self.logprobs) != len(self.top):
            raise ValueError("logprobs and top are not of the same tokens")
        return self


class TextDocument(Document):
    """What one arm said of the texts. not_measured: why it said nothing; null where it did.

    texts_sha256: arms with another one read other texts.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    label: str
    engine: EngineKind
    not_measured: str | None
    texts_sha256: str
    texts: list[TextRow]

    def run(self) -> TextRun | None:
        """For a comparison; None where nothing was measured."""
        if self.not_measured is not None:
            return None
        results = (TextResult(tuple(row.logprobs), tuple(row.top), tuple(row.continuation)) for row in self.texts)
        return TextRun(self.label, self.texts_sha256, tuple(results))


def text_document(
    *, label: str, engine: EngineKind, texts_sha256: str, results: tuple[TextResult, ...], not_measured: str | None
) -> TextDocument:
    """The document of one arm."""
    rows = [
        TextRow(logprobs=list(each.logprobs), top=list(each.top), continuation=list(each.continuation))
        for each in results
    ]
    return TextDocument(
        schema_version=SCHEMA_VERSION,
        label=label,
        engine=engine,
        not_measured=not_measured,
        texts_sha256=texts_sha256,
        texts=rows,
    )


def read_text(directory: Path) -> TextDocument | None:
    """What an arm's directory has of the text gate; None where it has nothing. Raises UsageError for a broken file."""
    path = directory / TEXT_NAME
    return read_document(path, TextDocument) if path.exists() else None


def text_verdict(first: Path, arm: Path, repeat: Path | None) -> TextVerdict | None:
    """The text gate of an arm, from the directories of the first arm, of this one and of the first one's repeat.

    None where the arm or the first one was not measured. Raises UsageError for a broken file.
    """
    runs = [None if each is None else _run(each) for each in (first, arm, repeat)]
    base, other, again = runs
    if base is None or other is None:
        return None
    return judge_text(difference(base, other), None if again is None else difference(base, again))


def _run(directory: Path) -> TextRun | None:
    document = read_text(directory)
    return None if document is None else document.run()
