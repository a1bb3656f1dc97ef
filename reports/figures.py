"""The figures of a sweep and of effects: latency against rate with limits and brackets, effects beside drift."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from gates.effect import CONFIDENCE, Effect
from gates.slo import Metric, Objective
from reports import numbers
from reports.arms import Arm, mark_of
from reports.figure_style import BAND_COLOUR, COLOURS, KEY_COLOUR, LIMIT_COLOUR, MARKERS, plain, sign, style, write_mark
from reports.run_directory import ProbeRow

_FOOT = 0.03
_STRIP = 0.03
"""Where the strips of the brackets lie, as shares of a panel's height: the lowest, and the next above it."""

_LOG_SPAN = 4.0
"""From this ratio of the largest to the smallest value on, an axis is logarithmic."""


def rates_figure(arms: Sequence[Arm]) -> Figure:
    """Each window's TTFT and TPOT, at the percentile that is judged, against its rate; a point per window.

    Filled: passed. Open: failed. A small x: invalid, no result. A marker on the upper edge: the percentile falls on a
    failed request, so it has no value. Limits are dashed lines; a shaded band is an arm's bracket, from its capacity to
    its first failed rate. Windows of different arms at one rate stand side by side.
    """
    with style():
        figure = Figure(figsize=(9.6, 4.6), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True)
        for axes, metric in zip(panels, (Metric.TTFT, Metric.TPOT), strict=True):
            _rate_panel(axes, metric, arms)
        figure.legend(handles=_rate_legend(arms), loc="outside lower center", ncols=4, fontsize=8, columnspacing=1.6)
        write_mark(figure, mark_of(arms))
        return figure


def _rate_panel(axes: Axes, metric: Metric, arms: Sequence[Arm]) -> None:
    values: list[float] = []
    limits = {(each.limit_s, each.percentile) for arm in arms for each in arm.objectives if each.metric is metric}
    for index, arm in enumerate(arms):
        _bracket(axes, arm, index)
        values.extend(_arm_points(axes, metric, arm, index, len(arms)))
    for limit_s, _ in sorted(limits):
        axes.axhline(limit_s * 1000, color=LIMIT_COLOUR, linestyle=(0, (5, 3)), linewidth=1.2, zorder=2, gid="limit")
        label = f"limit {numbers.limit_ms(limit_s)}"
        axes.annotate(
            label,
            (0.0, limit_s * 1000),
            xycoords=axes.get_yaxis_transform(),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=8,
        )
        values.append(limit_s * 1000)
    percentiles = " and ".join(f"p{percentile}" for percentile in sorted({each for _, each in limits})) or "p99"
    axes.set_title(f"{percentiles} {metric.upper()} (ms)", loc="left", fontsize=10)
    axes.set_xlabel("request rate (req/s)" + ("; arms are drawn side by side" if len(arms) > 1 else ""))
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    rates = [row.rate_rps for arm in arms for row in arm.sweep.probes if row.rate_rps is not None]
    if rates:
        margin = 0.06 * (max(rates) - min(rates)) or 0.05 * max(rates)
        axes.set_xlim(min(rates) - margin, max(rates) + margin)
    _value_axis(axes, values, foot_share=_FOOT + _STRIP * len(arms))


def _value_axis(axes: Axes, values: Sequence[float], foot_share: float) -> None:
    """Logarithmic where values span much, with plain numbers in any case. The foot is left to the brackets."""
    above_zero = [value for value in values if value > 0]
    if not above_zero:
        return
    is_log = max(above_zero) / min(above_zero) >= _LOG_SPAN
    scale, back = (math.log, math.exp) if is_log else (float, float)
    low, high = scale(min(above_zero)), scale(max(above_zero))
    span = high - low or abs(high) or 1.0
    foot, head = (foot_share + 0.05) * span, 0.18 * span
    if is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(back(low - foot), back(high + head))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _arm_points(axes: Axes, metric: Metric, arm: Arm, index: int, arms: int) -> list[float]:
    """Draw an arm's windows; returns the values drawn, in ms."""
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    figure = axes.get_figure(root=True)
    assert figure is not None  # noqa: S101 - axes of a figure that we made
    step = min(5.0, 15.0 / max(1, arms - 1)) / 72
    aside = ScaledTranslation((index - (arms - 1) / 2) * step, 0, figure.dpi_scale_trans)
    drawn = []
    for row in arm.sweep.probes:
        if row.rate_rps is None:
            continue
        value_s = _judged_value(row, metric, arm.objectives)
        at_edge = value_s is None
        place = axes.transData if value_s is not None else blended_transform_factory(axes.transData, axes.transAxes)
        passed = row.outcome is not None and row.outcome.passed
        axes.plot(
            [row.rate_rps],
            [1.0 if value_s is None else value_s * 1000],
            linestyle="none",
            marker=marker if row.is_valid else "x",
            color=colour if row.is_valid else BAND_COLOUR,
            markerfacecolor=colour if passed else "white",
            markeredgewidth=1.3,
            transform=place + aside,
            clip_on=not at_edge,
            zorder=4 if row.is_valid else 3,
            gid="window",
        )
        if value_s is not None:
            drawn.append(value_s * 1000)
    return drawn


def _judged_value(row: ProbeRow, metric: Metric, objectives: Sequence[Objective]) -> float | None:
    """The percentile that the objective judges, in seconds; the 99th where no objective is on this metric."""
    for each in row.objectives:
        if each.metric == metric:
            return each.value_s
    if any(each.metric is metric for each in objectives):
        return None
    return row.ttft_p99_s if metric is Metric.TTFT else row.tpot_p99_s


def _bracket(axes: Axes, arm: Arm, index: int) -> None:
    """Shade the bracket: pale over the panel, strong in a strip at the foot that begins with the arm's marker."""
    low, high = arm.sweep.capacity_rps, arm.sweep.first_failed_rps
    if low is None or high is None:
        return
    colour, foot = COLOURS[index % len(COLOURS)], _FOOT + _STRIP * index
    axes.axvspan(low, high, color=colour, alpha=0.06, linewidth=0, zorder=0)
    strip = Line2D(
        [low, high],
        [foot, foot],
        linewidth=2.4,
        color=colour,
        solid_capstyle="butt",
        marker=MARKERS[index % len(MARKERS)],
        markersize=4.5,
        markevery=[0],
        transform=axes.get_xaxis_transform(),
        gid="bracket",
    )
    axes.add_artist(strip)


def _rate_legend(arms: Sequence[Arm]) -> list[Line2D | Patch]:
    names: list[Line2D | Patch] = [
        sign(plain(arm.label), MARKERS[index % len(MARKERS)], COLOURS[index % len(COLOURS)])
        for index, arm in enumerate(arms)
    ]
    names += [
        sign("filled: passed", "o", KEY_COLOUR),
        sign("open: failed", "o", KEY_COLOUR, face="white"),
    ]
    rows = [row for arm in arms for row in arm.sweep.probes]
    if any(not row.is_valid for row in rows):
        names.append(sign("invalid: no result", "x", BAND_COLOUR))
    if any(each.value_s is None for row in rows for each in row.objectives):
        names.append(sign("on the upper edge: falls on a failure", "", KEY_COLOUR))
    names.append(Patch(color=BAND_COLOUR, alpha=0.35, linewidth=0, label="bar and shade: capacity to first fail"))
    return names


def effects_figure(effects: Mapping[str, Effect], drift: Effect | None, *, mark: str) -> Figure:
    """The effect of each arm with its 95 % interval, beside what two equal arms differ by.

    The band reaches as far to both sides as the drift's interval does at most, as `gates.effect.conclude` reads it. An
    arm without an interval is drawn as its open point alone. mark: "SIMULATED" and the like, "" for a measurement.
    """
    with style():
        rows = [*effects.items(), *([] if drift is None else [("drift: two equal arms", drift)])]
        figure = Figure(figsize=(7.2, 1.5 + 0.42 * max(1, len(rows))), layout="constrained")
        axes = figure.subplots()
        reach = None if drift is None else drift.reach_share
        if reach is not None:
            axes.axvspan(-reach * 100, reach * 100, color=BAND_COLOUR, alpha=0.25, linewidth=0, zorder=0, gid="drift")
        axes.axvline(0, color=LIMIT_COLOUR, linewidth=1, zorder=1)
        for height, (_, effect) in enumerate(reversed(rows)):
            is_drift = drift is not None and height == 0
            _effect_row(axes, height, effect, KEY_COLOUR if is_drift else COLOURS[0], "D" if is_drift else "o")
            axes.annotate(
                _effect_label(effect),
                (1.0, height),
                xycoords=axes.get_yaxis_transform(),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                annotation_clip=False,
            )
        axes.set_yticks(range(len(rows)), [plain(label) for label, _ in reversed(rows)])
        axes.set_ylim(-0.6, max(1, len(rows)) - 0.4)
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")
        metric = rows[0][1].metric if rows else "measure"
        band = "" if reach is None else "; band: as far as two equal arms differ"
        axes.set_xlabel(f"change of {metric} (%), {numbers.confidence(CONFIDENCE)} interval{band}")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.3g}" if value else "0"))
        write_mark(figure, mark)
        return figure


def _effect_row(axes: Axes, height: int, effect: Effect, colour: str, marker: str) -> None:
    if effect.share is None:
        return
    if effect.interval is not None:
        low, high = effect.interval
        axes.plot([low * 100, high * 100], [height, height], color=colour, linewidth=2, solid_capstyle="butt", zorder=3)
        axes.plot([low * 100, high * 100], [height, height], linestyle="none", marker="|", color=colour, zorder=3)
    face = colour if effect.interval is not None else "white"
    point = Line2D([effect.share * 100], [height], linestyle="none", marker=marker, color=colour, markerfacecolor=face)
    point.set_zorder(4)
    axes.add_line(point)


def _effect_label(effect: Effect) -> str:
    return f"{numbers.signed_share(effect.share)}, {numbers.plural(effect.n_pairs, 'pair')}"
