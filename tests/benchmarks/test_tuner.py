"""The benchmark of the search for MoE configurations still runs; its figures are for people to read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "tuner.py"


@pytest.mark.process
def test_a_search_finds_nearly_every_best_in_a_tenth_of_the_time() -> None:
    argv = [sys.executable, str(SCRIPT), "--seeds", "2"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=True).stdout
    good = re.search(r"(\d+) of 18 choices", said)
    assert good is not None
    assert int(good[1]) >= 17
    ratio = re.search(r"(\d+) times as much", said)
    assert ratio is not None
    assert int(ratio[1]) >= 10
