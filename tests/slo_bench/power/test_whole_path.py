"""From the driver's readings to the rows of a run, with a driver that is a script and a server that is simulated."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from reports.power_document import PowerDocument, read_samples
from reports.run_directory import EngineDocument, SweepDocument, read_document

SMI = """#!/bin/sh
held=4; watts=80
if [ -f "{pid}" ] && kill -0 $(cat "{pid}") 2>/dev/null; then held=40000; watts=600; fi
case "$*" in
  *--query-compute-apps*) ;;
  *index,uuid*) echo "0, GPU-aa11, NVIDIA H200, 580.95, 4"; echo "1, GPU-bb22, NVIDIA H200, 580.95, 4" ;;
  *name,uuid*) echo "NVIDIA H200, GPU-aa11, 580.95, 143771 MiB, 700.00 W" ;;
  *) echo "GPU-aa11, 80.00 W, 80.00 W, 345 MHz, 2619 MHz, 30, 0x0000000000000001, 0 %, 4 MiB"
     echo "GPU-bb22, $watts W, $watts W, 1755 MHz, 2619 MHz, 61, 0x0000000000000004, 97 %, $held MiB" ;;
esac
"""


@pytest.mark.process
def test_a_sweep_on_a_server_of_ours_has_watts_of_the_gpu_that_it_took(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI.format(pid=pid))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "pynvml.py").write_text("raise ImportError")
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    env["PYTHONPATH"] = f"{tmp_path / 'site'}:{Path(__file__).parents[3]}"
    server = f"sh -c 'echo $$ > {pid}; exec {sys.executable} -m slo_bench simulate --port {{port}}'"
    words = ["sweep", "--server-command", server, "--label", "x", "--mode", "smoke", "--max-request-rate", "8"]
    words += [
        "--sweep-start",
        "8",
        "--duration",
        "4",
        "--ramp",
        "1",
        "--repeats",
        "0",
        "--usd-per-hour",
        "3.6",
        "--length-scale",
        "0.1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "slo_bench", *words],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "runs" / "x"
    power = read_document(directory / "power.json", PowerDocument)
    assert (power.source, [gpu.uuid for gpu in power.gpus], power.not_measured) == ("nvidia-smi", ["GPU-bb22"], None)
    assert power.idle is not None
    assert power.idle.mean_w == pytest.approx(80.0)
    rows = read_document(directory / "sweep.json", SweepDocument).probes
    assert len(rows) == len(power.windows)
    for row, window in zip(rows, power.windows, strict=True):
        assert row.power_mean_w == pytest.approx(600.0)
        assert row.energy_j == pytest.approx(600.0 * window.seconds_s, rel=0.01)
        assert row.output_tokens_per_s is not None
        assert row.joules_per_output_token == pytest.approx(600.0 / row.output_tokens_per_s)
        assert row.throttle_reasons == ["software power cap"]
    assert {each.uuid for each in read_samples(directory / "power.parquet")} == {"GPU-aa11", "GPU-bb22"}
    passport = read_document(directory / "engine.json", EngineDocument).details["passport"]
    assert json.loads(json.dumps(passport))["gpus"] == {"names": ["NVIDIA H200"], "uuids": ["GPU-bb22"]}
    assert "power at 8.00 req/s: 600 W" in done.stderr
    assert "1 GPU, idle 80.0 W" in done.stderr
    assert "1 GPU, $" in done.stderr
