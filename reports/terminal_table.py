"""Tables without a frame, as a terminal shows them."""

from __future__ import annotations

from rich.table import Table

from reports import numbers

DASH = "-"


def table(*columns: str) -> Table:
    """The first column is text, the others are figures."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        made.add_column(name, justify="left" if number == 0 else "right", header_style="dim", overflow="fold")
    return made


def or_dash(text: str) -> str:
    """A dash for what is not there."""
    return DASH if text in {numbers.NOT_MEASURED, numbers.NOT_KNOWN} else text
