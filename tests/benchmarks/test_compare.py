"""The benchmark of comparisons still runs, and what it runs is the step model; its figures are for people to read."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "compare"


def run(*argv: str) -> str:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=240, check=True).stdout


@pytest.mark.process
def test_its_constants_are_what_they_claim_to_be() -> None:
    said = run(str(FOLDER), "--calibrate", "--runs", "60")
    noise = {float(wander): float(sd) for wander, sd in re.findall(r"wander (\S+): .* by (\S+)%", said)}
    assert noise[0.00673] == pytest.approx(1.4, abs=0.4)
    slopes = [float(slope) for slope in re.findall(r"on logarithms (\S+)", said)]
    assert slopes == pytest.approx([1.75] * 3, abs=0.1)


@pytest.mark.process
def test_the_compiled_loop_gives_every_time_of_the_step_model() -> None:
    if importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed: the benchmark runs the step model itself")
    words = f"import sys; sys.path.insert(0, {str(FOLDER)!r})"
    check = "from cells import CELLS; from stepped import same_as_step_model as same"
    assert run("-c", f"{words}; {check}; print(all(same(cell.arms.b, 3, 3, 17.0) for cell in CELLS))").strip() == "True"
