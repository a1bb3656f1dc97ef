"""Time over token count under both estimates, a panel per routing, with the flips of the branch."""

from __future__ import annotations

from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from reports import numbers
from reports.figure_style import COLOURS, KEY_COLOUR, MARKERS, plain, style, write_mark
from slo_bench.moe.grouped.document import GroupedDocument
from slo_bench.moe.grouped.estimates import CORRECTED, SHIPPED
from slo_bench.moe.grouped.slowest import changes

_SOURCES = (SHIPPED, CORRECTED)
_SHOWN = 24


def figure(document: GroupedDocument) -> Figure:
    """Both matrix stages of the slowest rank, median of the samples, against the tokens of the call; log by log.

    A dashed line in an estimate's colour: from there on it no longer takes swapAB.
    """
    with style():
        made = Figure(figsize=(9.6, 4.4), layout="constrained")
        panels = made.subplots(1, len(document.routings), sharex=True, sharey=True, squeeze=False)[0]
        for axes, routing in zip(panels, document.routings, strict=True):
            _panel(axes, document, routing)
        panels[0].set_ylabel("both matrix stages, slowest rank (µs)")
        handles, labels = panels[0].get_legend_handles_labels()
        made.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
        write_mark(made, "SIMULATED" if document.is_simulated else "")
        return made


def _panel(axes: Axes, document: GroupedDocument, routing: str) -> None:
    rows = changes(document, routing)
    sizes = [row.tokens for row in rows]
    for index, source in enumerate(_SOURCES):
        times_us = [median(getattr(row, source).total_s) * 1e6 for row in rows]
        axes.plot(sizes, times_us, marker=MARKERS[index], color=COLOURS[index], label=f"{source} estimate", zorder=3)
        flip = document.setting.flips_at[source]
        if sizes[0] <= flip <= sizes[-1]:
            axes.axvline(
                flip,
                color=COLOURS[index],
                linestyle=(0, (5, 3)),
                linewidth=1.1,
                label=f"{source} leaves swapAB ({numbers.count(flip)} tokens)",
                gid=f"flip-{source}",
            )
    axes.set_title(plain(routing), loc="left", fontsize=9, color=KEY_COLOUR)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [2.0**power for power in range(_SHOWN) if sizes[0] <= 2**power <= sizes[-1]]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.count(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.count(value)))
    axes.set_xlabel("tokens of the call")
