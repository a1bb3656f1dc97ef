from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from note_scenarios import kernels
from PIL import Image

from reports.arms import Experiment, read_experiment
from reports.figure_style import COLOURS, figure_bytes
from reports.figures_spent import kernels_figure, power_figure


@pytest.fixture
def real(scenario: Callable[[str], Path]) -> Experiment:
    return read_experiment(scenario("real_effect"))


def inked_shares(figure: Figure, colours: Sequence[str]) -> list[float]:
    """The share of pixels close to each colour."""
    image = np.asarray(Image.open(io.BytesIO(figure_bytes(figure, "png"))).convert("RGB")).astype(np.int16)
    wanted = ([int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in colours)
    return [float(np.mean(np.abs(image - np.array(each)).max(axis=2) < 30)) for each in wanted]


@pytest.mark.process
def test_each_routing_is_a_line_of_its_own_with_a_second_sign() -> None:
    figure = kernels_figure({"moe-tuned": kernels()}, mark="SIMULATED")
    lines = [line for line in figure.axes[0].lines if line.get_gid() == "routing"]
    assert [line.get_label() for line in lines] == ["uniform", "concentrated"]
    assert len({(line.get_marker(), str(line.get_linestyle())) for line in lines}) == 2
    assert [round(float(value), 1) for value in np.asarray(lines[1].get_ydata())] == [-5.0, 4.0, 10.0, -1.0]
    assert min(inked_shares(figure, COLOURS[:2])) > 0.001
    assert figure.axes[0].get_title(loc="right") == "SIMULATED"


@pytest.mark.process
def test_power_and_clock_of_each_arm_are_drawn_over_its_windows(real: Experiment) -> None:
    arms = real.arms[:1]
    figure = power_figure(arms)
    assert len(figure.axes) == 2 * len(arms)
    for axes, arm in zip(figure.axes[::2], arms, strict=True):
        (line,) = (each for each in axes.lines if each.get_gid() == "samples")
        assert float(np.max(np.asarray(line.get_ydata()))) > 600
        assert sum(patch.get_gid() == "window" for patch in axes.patches) == len(arm.sweep.probes)
        assert axes.get_title(loc="right") == "SIMULATED"
    assert min(inked_shares(figure, COLOURS[:1])) > 0.001


def test_an_arm_without_samples_has_no_panel(real: Experiment) -> None:
    (real.arms[0].directory / "power.parquet").unlink()
    assert len(power_figure(real.arms[:2]).axes) == 2
