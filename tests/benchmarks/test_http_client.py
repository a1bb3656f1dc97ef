"""The benchmark of the HTTP client still runs; its figures are for people to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "http_client.py"


@pytest.mark.process
def test_it_ends_with_a_table_in_which_each_client_read_every_answer() -> None:
    argv = ["--clients", "ours", "raw", "--rates", "20", "--runs", "1", "--seconds", "2"]
    done = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True, timeout=120, check=True)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("| ")
    ]
    head, ours, raw = rows
    assert head[:4] == ["client", "req/s", "runs", "finished"]
    assert (ours[:4], raw[:4]) == (["ours", "20", "1", "1.000"], ["raw", "20", "1", "1.000"])
    assert len(head) == len(ours) == len(raw)
