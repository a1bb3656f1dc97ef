"""A run that a signal stopped says how it goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slo_bench.stopped import Stopped, resumable


def test_a_cancelled_run_tells_the_command_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["slo-bench", "sweep", "--model", "a b", "--resume"])
    with pytest.raises(Stopped) as stopped, resumable(tmp_path, ["--label", "sweep-3"]):
        raise asyncio.CancelledError
    assert stopped.value.command == "slo-bench sweep --model 'a b' --label sweep-3 --resume"


def test_before_anything_was_written_nothing_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(asyncio.CancelledError), resumable(tmp_path / "run.json"):
        raise asyncio.CancelledError
