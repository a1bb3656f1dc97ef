"""A few kills at real moments; `python benchmarks/resume.py` does fifty, over HTTP too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "resume.py"


@pytest.mark.process
@pytest.mark.parametrize("command", ["sweep", "compare"])
def test_killed_runs_that_are_resumed_come_to_the_same_bytes(command: str) -> None:
    argv = ["--commands", command, "--engines", "simulated", "--kills", "3", "--at-once", "2"]
    done = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = [cell.strip() for cell in done.stdout.splitlines()[-1].strip("|").split("|")]
    assert last[:4] == [f"{command}, simulated", "3", "4", "3 of 3"]
