"""The main job on real vLLM: start, sweep in smoke mode, a capacity, and no process left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gates.verdict import judge_probe
from reports.requests import read_requests
from reports.rows import probe_row
from reports.run_directory import RunDocument, SweepDocument, read_document
from slo_bench.config import SweepOptions
from slo_bench.hosts.vllm_process import members

PROGRAM = [sys.executable, "-m", "slo_bench"]
SERVER_CORE, CLIENT_CORE = "0", "1"
SERVE = [
    "--load-format", "dummy", "--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager",
    "--no-enable-prefix-caching",
]  # fmt: skip


def pinned(core: str, command: list[str]) -> list[str]:
    """The command on one core, where there is more than one."""
    return ["taskset", "-c", core, *command] if len(os.sched_getaffinity(0)) > 1 else command


@pytest.fixture
def server_python(vllm_python: Path, tmp_path: Path) -> Path:
    """vLLM's interpreter on a core of its own: the client must not share it."""
    wrapper = tmp_path / "python-on-one-core"
    command = " ".join(pinned(SERVER_CORE, [str(vllm_python)]))
    wrapper.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


@pytest.mark.vllm
def test_a_smoke_sweep_of_real_vllm_ends_with_a_capacity_and_leaves_no_process(
    server_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    env = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": SERVER_CORE,
        "HF_HUB_OFFLINE": "1",
    }
    argv = [
        "sweep", "--model", str(tiny_model), "--vllm-python", str(server_python), "--label", "tiny", "--mode", "smoke",
        "--length-scale", "0.4", "--sweep-start", "4", "--max-request-rate", "60", "--", *SERVE,
    ]  # fmt: skip
    began_s = time.monotonic()
    run = subprocess.run(
        pinned(CLIENT_CORE, [*PROGRAM, *argv]), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    print(run.stderr)
    assert run.returncode == 0, run.stderr
    directory = tmp_path / "runs" / "tiny"
    document = read_document(directory / "sweep.json", SweepDocument)
    assert document.capacity_rps is not None
    assert document.is_smoke
    assert all(row.n >= 20 for row in document.probes if row.is_whole)
    assert "[smoke: not a measurement] capacity:" in run.stderr
    engine = json.loads((directory / "engine.json").read_text())
    assert engine["kind"] == "vllm"
    assert read_document(directory / "run.json", RunDocument).status == "done"
    assert time.monotonic() - began_s - engine["details"]["ready_s"] < 300
    assert "init engine" in (directory / "engine.log").read_text()
    assert [member for member in members(_server_pid(directory)) if member.state != "Z"] == []
    _recomputed(directory, document)


def _server_pid(directory: Path) -> int:
    """The server's process group, as the host recorded it."""
    return int(json.loads((directory / "engine.json").read_text())["details"]["pid"])


def _recomputed(directory: Path, document: SweepDocument) -> None:
    """Each row follows from its Parquet file alone, but for the cached share: this server tells it by its counters."""
    options = SweepOptions(mode="smoke")
    mode = options.the_mode()
    slo = mode.slo(options.objectives())
    for row in document.probes:
        assert row.requests_file is not None
        facts = read_requests(directory / row.requests_file)
        again = probe_row(judge_probe(facts, slo, mode.bounds), purpose=row.purpose, requests_file=row.requests_file)
        assert row.cached_share == 0
        assert again == row.model_copy(update={"cached_share": None})
