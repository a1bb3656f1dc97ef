"""The figures of kernels and of power: change of kernel time by batch size, power and clock over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from reports import numbers
from reports.arms import Arm, mark_of
from reports.figure_style import BAND_COLOUR, COLOURS, LIMIT_COLOUR, MARKERS, plain, style, write_mark
from reports.kernels import KernelsDocument
from reports.power import PowerSample
from reports.power_document import SAMPLES_NAME, read_samples

_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""A line's second sign, for readers in grey."""

_Field = Literal["power_w", "sm_clock_mhz"]
_TITLES: dict[_Field, str] = {"power_w": "power of all GPUs (W)", "sm_clock_mhz": "SM clock (MHz)"}
_SECONDS_PER_MINUTE = 60
_LABEL_ROOM = 0.28
"""Of the height, above the highest value, where the rates stand."""

_LABEL_ROOM_SHARE = 0.02
"""A window narrower than this share of the axis has no room for its rate."""


def kernels_figure(timed: Mapping[str, KernelsDocument], *, mark: str) -> Figure:
    """The change of the kernel's time in percent against tokens in a step, a line per arm and routing."""
    with style():
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color=LIMIT_COLOUR, linewidth=1, zorder=1)
        lines = [(label, kernels, routing) for label, kernels in timed.items() for routing in kernels.routings]
        for index, (label, kernels, routing) in enumerate(lines):
            changes = kernels.changes(routing)
            name = plain(routing) if len(timed) == 1 else f"{plain(label)}, {plain(routing)}"
            axes.plot(
                list(changes),
                [change * 100 for change in changes.values()],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                linestyle=_DASHES[index % len(_DASHES)],
                label=name,
                gid="routing",
            )
        sizes = sorted({row.tokens for kernels in timed.values() for row in kernels.rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [numbers.count(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("tokens in a step")
        axes.set_title("change of the kernel's time (%), below 0 is faster", loc="left", fontsize=10)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.3g}" if value else "0"))
        axes.margins(y=0.15)
        if lines:
            axes.legend(loc="best", fontsize=8)
        write_mark(figure, mark)
        return figure


def power_figure(arms: Sequence[Arm]) -> Figure:
    """Power of all GPUs together, and the slowest one's clock, over time; a row of panels per arm with samples.

    Windows are shaded, with their rate where there is room. Times are minutes since the first sample.
    """
    measured = [(arm, read_samples(arm.directory / SAMPLES_NAME)) for arm in arms if _has_samples(arm)]
    with style():
        figure = Figure(figsize=(9.6, 0.7 + 2.5 * max(1, len(measured))), layout="constrained")
        panels = figure.subplots(max(1, len(measured)), 2, squeeze=False)
        for index, (arm, samples) in enumerate(measured):
            colour = COLOURS[index % len(COLOURS)]
            _over_time(panels[index][0], arm, samples, "power_w", colour)
            _over_time(panels[index][1], arm, samples, "sm_clock_mhz", colour)
        for axes in panels[-1]:
            axes.set_xlabel("minutes; shaded: windows, their rate in req/s")
        write_mark(figure, mark_of(arms))
        return figure


def _has_samples(arm: Arm) -> bool:
    return (arm.directory / SAMPLES_NAME).exists()


def _over_time(axes: Axes, arm: Arm, samples: Sequence[PowerSample], field: _Field, colour: str) -> None:
    begin_s = min((each.utc_s for each in samples if each.utc_s is not None), default=0.0)
    minutes, values = _together(samples, field, begin_s)
    axes.plot(minutes, values, color=colour, linewidth=0.9, zorder=3, gid="samples")
    axes.set_title(f"{plain(arm.label)}: {_TITLES[field]}", loc="left", fontsize=10)
    if len(values):
        low, high = (0.0, float(np.max(values))) if field == "power_w" else (0.9 * np.min(values), np.max(values))
        axes.set_ylim(low, high + _LABEL_ROOM * (high - low or high))
        axes.set_xlim(0, max(float(minutes[-1]), 1e-3))
        _shade(axes, arm, begin_s)


def _together(
    samples: Sequence[PowerSample], field: _Field, begin_s: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Minutes and values: the sum of power over the GPUs, the lowest of their clocks, in steps of all of them."""
    each: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        value = getattr(sample, field)
        if value is not None and sample.utc_s is not None:
            each.setdefault(sample.uuid, []).append((sample.utc_s, float(value)))
    if not each:
        return np.empty(0), np.empty(0)
    times_s = np.array([moment for moment, _ in min(each.values(), key=len)])
    columns = [np.array(sorted(readings)) for readings in each.values()]
    rows = [np.interp(times_s, column[:, 0], column[:, 1]) for column in columns]
    values = np.sum(rows, axis=0) if field == "power_w" else np.min(rows, axis=0)
    return (times_s - begin_s) / _SECONDS_PER_MINUTE, values


def _shade(axes: Axes, arm: Arm, begin_s: float) -> None:
    """The windows of the arm, invalid ones too."""
    span = axes.get_xlim()[1]
    for row in arm.power.windows if arm.power is not None else ():
        start = (datetime.fromisoformat(row.started_utc).timestamp() - begin_s) / _SECONDS_PER_MINUTE
        end = start + row.seconds_s / _SECONDS_PER_MINUTE
        axes.axvspan(start, end, color=BAND_COLOUR, alpha=0.25, linewidth=0, zorder=0, gid="window")
        if row.rate_rps is not None and end - start > _LABEL_ROOM_SHARE * span:
            axes.annotate(
                numbers.rate(row.rate_rps, unit=False),
                ((start + end) / 2, 1.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(0, -2),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=7,
                rotation=90,
            )
