"""Title, headline and the result in four bullets; then what a reader must know before believing the rest."""

from __future__ import annotations

from collections.abc import Iterator

from reports.compare_words import sentence
from reports.markdown import bullets, code, escape, heading, link, struck
from reports.page import Page


def head(page: Page) -> Iterator[str]:
    """The note's first screen."""
    experiment, story = page.experiment, page.story
    mark = f"{experiment.mark}: " if experiment.mark else ""
    yield heading(f"{mark}{escape(experiment.document.title)}", 1)
    yield story.headline
    yield heading(page.marked("Result"), 2)
    yield bullets(story.bullets)
    if experiment.comparisons:
        yield "Compared by blocks in turn:"
        yield bullets(_comparison_lines(page))
    cautions = [*(f"{struck(code(label))} is no result: {escape(why)}." for label, why in story.struck.items())]
    cautions += story.cautions
    if cautions:
        yield "To know before believing the rest:"
        yield bullets(cautions)
    yield page.figure(
        page.rates, "TTFT and TPOT at the percentile that the SLO judges, a point per window, against the request rate"
    )
    yield "A window that ended early shows the percentile of the requests that were resolved by then."
    if page.effects is not None:
        yield page.figure(page.effects, "effect of each arm on mean TPOT beside the drift between two equal arms")


def _comparison_lines(page: Page) -> Iterator[str]:
    """What each comparison by interleaved blocks found, with the note that has its pairs."""
    for each in page.experiment.comparisons:
        between = f"{each.document.b.label} against {each.document.a.label}"
        note = page.to(each.directory / "effect.md")
        yield f"{link(escape(between), note)}: {escape(sentence(each.document))}"
