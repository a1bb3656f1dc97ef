"""End to end at the anchor rate, effects beside drift, and in a demonstration the truth beside the finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gates.effect import EffectMetric
from reports import numbers, tables
from reports.findings import effect_text
from reports.markdown import Align, bullets, code, escape, heading, struck, table
from reports.page import Page
from reports.story import Cell, Column, Table


def anchor(page: Page) -> Iterator[str]:
    """The tables at the rate at which all arms are compared; nothing without one."""
    experiment, shown = page.experiment, page.story.table
    if shown is None:
        return
    at = numbers.rate(experiment.document.anchor_rps)
    yield heading(page.marked(f"End to end at {at}"), 2)
    yield (
        f"{page.marked('Table')}: the mean over an arm's whole windows, lowest and highest in brackets. "
        "Where one window has no value, no mean is shown: leaving out the worst would flatter."
    )
    yield _markdown(shown)
    if experiment.compared:
        base = code(experiment.baseline.label)
        yield f"{page.marked('Table')}: effects against {base} at {at}, the drift of the same measure beside each."
        yield tables.effects(experiment)


def _markdown(shown: Table) -> str:
    def cell(column: Column, of: Cell) -> str:
        return of.text if column.struck is None or "~~" in of.text else struck(of.text)

    def title(column: Column) -> str:
        name = column.title if column.is_effect else code(column.title)
        return name if column.struck is None else struck(name)

    rows = [
        [row.name, *(cell(column, each) for column, each in zip(shown.columns, row.cells, strict=True))]
        for row in shown.rows
    ]
    align: list[Align] = ["left", *_right(shown.columns)]
    return table(["measure", *map(title, shown.columns)], rows, align)


def _right(columns: Sequence[Column]) -> list[Align]:
    return ["right" for _ in columns]


def truth(page: Page) -> Iterator[str]:
    """What a demonstration hid, and what was found without knowing it."""
    experiment, hidden = page.experiment, page.experiment.truth
    if hidden is None:
        return
    yield heading(page.marked("Truth beside finding"), 2)
    yield (
        f"{page.marked('Table')}: what was hidden in each arm before the measurement, what the tool concluded without "
        "knowing it, and what a plain comparison claims: one cold run each, one after the other, means."
    )
    yield tables.truth_beside_finding(experiment)
    drift, found = numbers.signed_share(hidden.drift_share), effect_text(experiment.drift(EffectMetric.TPOT_MEAN))
    yield bullets(
        [
            f"Drift in mean TPOT between the equal arms, hidden: {drift}; found: {found}.",
            f"Cold start: {escape(hidden.cold_start)}",
        ]
    )
