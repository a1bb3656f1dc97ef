"""gates.json: what the accuracy gate asked, what was answered, and what follows."""

from __future__ import annotations

from fractions import Fraction
from typing import Self

from pydantic import Field, model_validator

from gates.accuracy import AccuracyOutcome, AccuracyRun, AccuracyVerdict, Comparison, ItemResult
from gates.answers import FoundBy, Grade
from reports.run_directory import SCHEMA_VERSION, Document, EngineKind

GATES_NAME = "gates.json"


class ItemRow(Document):
    """One item. grade is null where its request failed to the last attempt; `error` says why.

    answer: the number that was read, as a whole number or a fraction; null where there was none. tail: the end of the
    completion.
    """

    index: int
    grade: Grade | None
    answer: str | None
    found_by: FoundBy | None
    is_cut_off: bool
    finish_reason: str | None
    output_tokens: int
    attempts: int
    error: str
    tail: str


class ComparisonRow(Document):
    """Against the first arm, item by item: indices that only it, or only this arm, answered right.

    p_worse: McNemar's exact test, one-sided.
    """

    first_label: str
    lost: list[int]
    gained: list[int]
    p_worse: float


class AskedRow(Document):
    """What the items were asked under. Arms with equal checksums and budget can be compared item by item."""

    items_source: str
    items_sha256: str
    prompt_sha256: str
    token_budget: int
    concurrency: int


class GatesDocument(Document):
    """The accuracy gate of one arm.

    outcome, reasons: the verdict and its sentences. n: all items; right + wrong + no_answer + errors = n, and cut_off
    are some of no_answer. retries: requests that were sent again. accuracy_share: right / n, null without items and
    where too many answers were cut; accuracy_interval: its 95 % interval (Wilson). accuracy_floor: null where none was
    given. smallest_visible_drop_share: what n items show in 80 % of all runs. asked: null where the gate did not apply.
    """

    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    label: str
    engine: EngineKind
    outcome: AccuracyOutcome
    reasons: list[str]
    n: int
    right: int
    wrong: int
    no_answer: int
    cut_off: int
    errors: int
    retries: int
    accuracy_share: float | None
    accuracy_interval: tuple[float, float] | None
    accuracy_floor: float | None
    smallest_visible_drop_share: float | None
    comparison: ComparisonRow | None
    asked: AskedRow | None
    items: list[ItemRow]

    @model_validator(mode="after")
    def _counts_are_of_the_items(self) -> Self:
        if not self.n == len(self.items) == self.right + self.wrong + self.no_answer + self.errors:
            raise ValueError("the counts are not those of the items")
        return self

    def run(self) -> AccuracyRun | None:
        """The results again, for an arm that is compared with this one; None where the gate did not apply."""
        if self.asked is None:
            return None
        return AccuracyRun(
            label=self.label,
            items_source=self.asked.items_source,
            items_sha256=self.asked.items_sha256,
            prompt_sha256=self.asked.prompt_sha256,
            token_budget=self.asked.token_budget,
            concurrency=self.asked.concurrency,
            results=tuple(_result(row) for row in self.items),
        )


def gates_document(
    *, label: str, engine: EngineKind, verdict: AccuracyVerdict, run: AccuracyRun | None, floor: float | None
) -> GatesDocument:
    """The document of a verdict; run: None where the gate did not apply."""
    score = verdict.score
    return GatesDocument(
        schema_version=SCHEMA_VERSION,
        label=label,
        engine=engine,
        outcome=verdict.outcome,
        reasons=list(verdict.reasons),
        n=score.n if score else 0,
        right=score.right if score else 0,
        wrong=score.wrong if score else 0,
        no_answer=score.no_answer if score else 0,
        cut_off=score.cut_off if score else 0,
        errors=score.errors if score else 0,
        retries=score.retries if score else 0,
        accuracy_share=score.share if score else None,
        accuracy_interval=score.interval if score else None,
        accuracy_floor=floor,
        smallest_visible_drop_share=verdict.smallest_visible_drop_share,
        comparison=_comparison(verdict.comparison),
        asked=_asked(run),
        items=[_row(result) for result in run.results] if run else [],
    )


def _comparison(comparison: Comparison | None) -> ComparisonRow | None:
    if comparison is None:
        return None
    return ComparisonRow(
        first_label=comparison.first_label,
        lost=list(comparison.lost),
        gained=list(comparison.gained),
        p_worse=comparison.p_worse,
    )


def _asked(run: AccuracyRun | None) -> AskedRow | None:
    if run is None:
        return None
    return AskedRow(
        items_source=run.items_source,
        items_sha256=run.items_sha256,
        prompt_sha256=run.prompt_sha256,
        token_budget=run.token_budget,
        concurrency=run.concurrency,
    )


def _row(result: ItemResult) -> ItemRow:
    return ItemRow(
        index=result.index,
        grade=result.grade,
        answer=None if result.number is None else str(result.number),
        found_by=result.found_by,
        is_cut_off=result.is_cut_off,
        finish_reason=result.finish_reason,
        output_tokens=result.output_tokens,
        attempts=result.attempts,
        error=result.error,
        tail=result.tail,
    )


def _result(row: ItemRow) -> ItemResult:
    return ItemResult(
        index=row.index,
        grade=row.grade,
        number=None if row.answer is None else Fraction(row.answer),
        found_by=row.found_by,
        is_cut_off=row.is_cut_off,
        finish_reason=row.finish_reason,
        output_tokens=row.output_tokens,
        attempts=row.attempts,
        error=row.error,
        tail=row.tail,
    )
