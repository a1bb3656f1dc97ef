"""A resumed sweep says that it stands on several server starts: in the note, on the terminal and in the summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from note_tracer import untraced
from rich.console import Console

from reports.arms import read_experiment
from reports.note import note
from reports.starts import offset_line, server_starts, starts_lines
from reports.summary import summary_of
from reports.terminal import terminal

SAID = "`moe-tuned` went on after a stop: its 13 windows stand on 2 server starts (8, 5)."


@pytest.fixture
def resumed(small: Path) -> Path:
    """The small experiment, whose tuned arm was stopped after eight windows and went on with a cold server."""
    folder = small / "arms" / "moe-tuned"
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "resumed_utc": ["2000-01-01T00:30:00+00:00"]}))
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep["earlier_warm_ups"] = [{**sweep["warm_up"], "is_warm": False}]
    sweep["probes"] = [{**row, "server_start": int(place >= 8)} for place, row in enumerate(sweep["probes"])]
    (folder / "sweep.json").write_text(json.dumps(sweep))
    return small


def test_the_note_says_it_before_its_results_in_the_environment_and_among_what_cannot_be_told(resumed: Path) -> None:
    text = note(resumed)
    assert SAID in text.partition("## Method")[0]
    assert "Its accuracy, idle power, power over time, dollars of measuring and passport are those of the last" in text
    assert "Earlier server starts of `moe-tuned` that were not warm: 1." in text
    assert "`moe-tuned` is not one server start but 2: what these differ by is among its windows" in text
    assert "model simulated-30b-a3b, context 16,384 tokens, start 0, the last of 2" in text.partition("## Env")[2]
    assert untraced(text, resumed) == set()


def test_terminal_and_summary_say_it_too(resumed: Path) -> None:
    summary = summary_of(read_experiment(resumed))
    assert [arm.server_starts for arm in summary.arms] == [1, 2, 1]
    console = Console(width=400, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(terminal(summary))
    assert f"note: {SAID.replace('`', '')}" in captured.get()


def test_a_run_that_was_never_stopped_says_nothing(small: Path) -> None:
    for arm in read_experiment(small).arms:
        assert (server_starts(arm), list(starts_lines(arm)), offset_line(arm)) == (1, [], None)


def test_a_run_that_was_stopped_before_its_first_window_stands_on_one_start(resumed: Path) -> None:
    arm = read_experiment(resumed).arm("moe-tuned")
    rows = [row.model_copy(update={"server_start": 1}) for row in arm.sweep.probes]
    arm.sweep.probes[:] = rows
    assert next(starts_lines(arm)).startswith(
        "`moe-tuned` went on after a stop: its 13 windows stand on 1 server start."
    )
    assert offset_line(arm) is None
