"""What a person sees: plain lines elsewhere, a panel on a terminal, marks on every line."""

from __future__ import annotations

import io

from rich.console import Console

from gates.capacity import CapacityVerdict, Observation, conclude
from gates.slo import DEFAULT_SLO
from slo_bench.search import Measure
from slo_bench.view import SweepView
from traffic.probe import Progress
from traffic.schedule import Window

WINDOW = Window(11.18, 1, 20.0, 140.0, 192.0, 1342, 600)


def shown(*, terminal: bool, moments_s: tuple[float, ...] = (10.0, 70.0, 150.0)) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, height=20, color_system=None)
    with SweepView(DEFAULT_SLO, marks=["SIMULATED"], console=console) as view:
        seen = [Observation(10.0, 0, passed=True), Observation(12.5, 0, passed=False)]
        view.started(Measure(11.18, 1), conclude(seen, CapacityVerdict.UNFINISHED))
        for moment_s in moments_s:
            view._drawn = 0.0
            view.progress(Progress(moment_s, 87, 400, 300, WINDOW), [0, 4])
        view.say("a line that stays [bold]whatever it holds[/bold]")
    return stream.getvalue()


def test_elsewhere_there_are_only_plain_lines_with_the_mark() -> None:
    assert shown(terminal=False) == "[SIMULATED] a line that stays [bold]whatever it holds[/bold]\n"


def test_on_a_terminal_bracket_clock_in_flight_and_misses_are_live() -> None:
    text = shown(terminal=True)
    assert "passed 10.00 · failed 12.50 req/s" in text
    assert "11.18 req/s, repeat 1" in text
    assert "ramp 10 of 20 s" in text
    assert "50 of 120 s" in text
    assert "draining, at most 42 s" in text
    assert "in flight 87" in text
    assert "over tpot:p99:50: 4 of 13 allowed" in text


def test_a_panel_is_drawn_at_most_ten_times_a_second() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, height=20, color_system=None)
    with SweepView(DEFAULT_SLO, console=console) as view:
        for _ in range(1000):
            view.progress(Progress(50.0, 87, 400, 300, WINDOW), [0, 4])
    assert stream.getvalue().count("in flight 87") <= 3
