"""How all figures look: readable in grey and by the colour-blind; the same input gives the same bytes.

Objects only, no pyplot: no global state, no display, safe in a thread. A figure that leaves the page still says
SIMULATED or smoke, because the mark stands over each panel.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, darker ones first; its yellow is too pale for lines on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "*")
"""The arm's second sign, for readers in grey."""

MARK_COLOUR = "#8A3B00"
LIMIT_COLOUR = "#000000"
BAND_COLOUR = "#999999"
KEY_COLOUR = "#444444"

_STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 100,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 9,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.markersize": 5.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "slo-bench",
}


@contextmanager
def style() -> Iterator[None]:
    """Our settings over matplotlib's defaults, whatever the user's own file says; undone afterwards."""
    with mpl.style.context("default"), mpl.rc_context(_STYLE):
        yield


def figure_bytes(figure: Figure, form: Literal["svg", "png"]) -> bytes:
    """A figure as a file's content, without date or version, so that equal figures are equal files."""
    metadata = {"Date": None, "Creator": "slo-bench"} if form == "svg" else {"Software": None}
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=form, dpi=150, metadata=metadata)
    return buffer.getvalue()


def sign(label: str, marker: str, colour: str, *, face: str | None = None) -> Line2D:
    """A marker in the legend."""
    return Line2D([], [], linestyle="none", marker=marker, color=colour, markerfacecolor=face or colour, label=label)


def write_mark(figure: Figure, mark: str) -> None:
    """Write the mark over every panel, where a crop cannot lose it and no point is covered."""
    for axes in figure.axes if mark else ():
        axes.set_title(mark, loc="right", fontsize=9, fontweight="bold", color=MARK_COLOUR)


def plain(label: str) -> str:
    """A label as text: a dollar sign starts no formula, a leading underscore hides nothing."""
    text = "".join(char if char.isprintable() else " " for char in label).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
