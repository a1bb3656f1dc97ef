"""What it means: one decision, why, and for what it holds."""

from __future__ import annotations

from collections.abc import Iterator

from reports.markdown import bullets, code, heading
from reports.page import Page


def meaning(page: Page) -> Iterator[str]:
    """The decision by the rule in docs/method.md; nothing where there is nothing to decide."""
    decided = page.story.decided
    if decided is None:
        return
    yield heading(page.marked("What this means"), 2)
    yield f"**{page.marked('Decision')} on {code(decided.arm)}: {decided.decision}.**"
    yield bullets([f"Why: {decided.reason}", decided.limits, *_REST])


_REST = ('The rule stands in the documentation: method, "The decision".',)
