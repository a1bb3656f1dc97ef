from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.figure import Figure
from PIL import Image

from gates.effect import Effect, EffectMetric
from reports.arms import Arm, read_experiment
from reports.figure_style import COLOURS, figure_bytes
from reports.figures import effects_figure, rates_figure

TPOT = EffectMetric.TPOT_MEAN
DRIFT = Effect(TPOT, 0.006, (0.002, 0.010), 3, 0)


@pytest.fixture
def arms(small: Path) -> tuple[Arm, ...]:
    return read_experiment(small).arms


def pixels(figure: Figure) -> npt.NDArray[np.int16]:
    return np.asarray(Image.open(io.BytesIO(figure_bytes(figure, "png"))).convert("RGB")).astype(np.int16)


def share_of(image: npt.NDArray[np.int16], colour: str) -> float:
    """The share of pixels close to a colour."""
    wanted = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)])
    return float(np.mean(np.abs(image - wanted).max(axis=2) < 30))


def texts(figure: Figure) -> list[str]:
    titles = [axes.get_title(loc=side) for axes in figure.axes for side in ("left", "right")]
    return titles + [text.get_text() for axes in figure.axes for text in axes.texts]


def drawn(figure: Figure, gid: str) -> int:
    return sum(line.get_gid() == gid for axes in figure.axes for line in (*axes.lines, *axes.artists, *axes.patches))


def test_every_window_is_a_point_and_the_limits_and_brackets_are_there(arms: tuple[Arm, ...]) -> None:
    figure = rates_figure(arms)
    assert drawn(figure, "window") == 2 * sum(len(arm.sweep.probes) for arm in arms)
    assert drawn(figure, "limit") == 2
    assert drawn(figure, "bracket") == 2 * len(arms)
    assert {"limit 2,000 ms", "limit 50 ms", "p99 TTFT (ms)", "p99 TPOT (ms)"} <= set(texts(figure))


def test_the_picture_is_not_empty(arms: tuple[Arm, ...]) -> None:
    figure = rates_figure(arms)
    image = pixels(figure)
    assert 0.03 < float(np.mean(image.min(axis=2) < 245)) < 0.6
    for colour in COLOURS[: len(arms)]:
        assert share_of(image, colour) > 0.0003
    for axes, limit_ms in zip(figure.axes, (2000, 50), strict=True):
        height = axes.transData.transform((0, limit_ms))[1] / figure.dpi * 150
        near = image[len(image) - round(height) - 3 : len(image) - round(height) + 3]
        dark = (near.max(axis=2) < 60).mean(axis=1)
        assert dark.max() > 0.2, "no dashed limit line across the panel"


def test_open_points_failed_and_filled_ones_passed(arms: tuple[Arm, ...]) -> None:
    lines = [line for line in rates_figure(arms[:1]).axes[1].lines if line.get_gid() == "window"]
    faces = {(row.outcome, line.get_markerfacecolor()) for row, line in zip(arms[0].sweep.probes, lines, strict=True)}
    assert faces == {("pass", COLOURS[0]), ("fail", "white")}


def test_a_percentile_on_a_failure_is_drawn_at_the_upper_edge(arms: tuple[Arm, ...]) -> None:
    sweep = arms[0].sweep
    row = sweep.probes[2]
    lost = row.model_copy(update={"objectives": [each.model_copy(update={"value_s": None}) for each in row.objectives]})
    arm = Arm(
        arms[0].label, arms[0].directory, arms[0].run, sweep.model_copy(update={"probes": [lost]}), arms[0].engine
    )
    (line,) = (line for line in rates_figure([arm]).axes[0].lines if line.get_gid() == "window")
    assert line.get_ydata() == [1.0]
    assert not line.get_clip_on()


@pytest.mark.process
def test_the_same_input_gives_the_same_bytes_whatever_the_users_style(arms: tuple[Arm, ...]) -> None:
    first = figure_bytes(rates_figure(arms[:1]), "svg")
    picture = figure_bytes(effects_figure({"x": DRIFT}, None, mark=""), "png")
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": "other", "lines.linewidth": 9}):
        assert figure_bytes(rates_figure(arms[:1]), "svg") == first
        assert figure_bytes(effects_figure({"x": DRIFT}, None, mark=""), "png") == picture
    assert b"<dc:date>" not in first


def test_simulated_and_smoke_stand_over_every_panel(arms: tuple[Arm, ...]) -> None:
    smoke = [
        Arm(each.label, each.directory, each.run, each.sweep.model_copy(update={"is_smoke": True}), each.engine)
        for each in arms[:1]
    ]
    assert texts(rates_figure(arms[:1])).count("SIMULATED") == 2
    assert texts(rates_figure(smoke)).count("SIMULATED, smoke: not a measurement") == 2
    assert "SIMULATED" in texts(effects_figure({"x": DRIFT}, DRIFT, mark="SIMULATED"))


def test_the_effects_stand_beside_the_drift_in_both_directions() -> None:
    effects = {
        "moe-tuned": Effect(TPOT, -0.031, (-0.036, -0.027), 3, 0),
        "single": Effect(TPOT, 0.012, None, 1, 2),
        "none": Effect(TPOT, None, None, 0, 3),
    }
    figure = effects_figure(effects, DRIFT, mark="")
    (axes,) = figure.axes
    (band,) = (patch for patch in axes.patches if patch.get_gid() == "drift")
    ends = band.get_extents().transformed(axes.transData.inverted())
    assert (ends.x0, ends.x1) == pytest.approx((-1.0, 1.0))
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "drift: two equal arms", "none", "single", "moe-tuned",
    ]  # fmt: skip
    assert {"-3.1 %, 3 pairs", "+1.2 %, 1 pair", "not measured, 0 pairs"} <= set(texts(figure))
    assert float(np.mean(pixels(figure).min(axis=2) < 245)) > 0.02


def test_a_label_cannot_become_a_formula() -> None:
    figure = effects_figure({"$broken": DRIFT, "_a$b$": DRIFT}, None, mark="")
    assert figure_bytes(figure, "png")
