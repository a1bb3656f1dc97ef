"""The passport of a run: what is not there is null, and secrets are not there."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from slo_bench.environment import command_line, environment, gpus


def test_the_passport_is_json_and_names_host_python_and_packages() -> None:
    passport = json.loads(json.dumps(environment(), allow_nan=False))
    assert passport["python"].startswith("3.")
    assert passport["packages"]["numpy"]
    assert passport["cpus"] >= len(passport["cpus_usable"]) >= 1


def test_without_nvidia_smi_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() is None


def test_gpus_are_read_from_nvidia_smi_and_its_failure_is_null(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, GPU-1, 580.1, 143771 MiB, 700.00 W'\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpus() == [
        {
            "name": "NVIDIA H200",
            "uuid": "GPU-1",
            "driver_version": "580.1",
            "memory.total": "143771 MiB",
            "power.limit": "700.00 W",
        }
    ]
    program.write_text("#!/bin/sh\nexit 9\n")
    assert gpus() is None


@pytest.mark.parametrize("argv", [["--api-key", "secret"], ["--api-key=secret"]])
def test_the_recorded_command_holds_no_key(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["slo-bench", "sweep", *argv, "--yes"])
    words = command_line()
    assert "secret" not in " ".join(words)
    assert words[:2] == ["slo-bench", "sweep"]
    assert words[-1] == "--yes"


def test_a_header_value_is_no_less_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["slo-bench", "sweep", "--header", "Authorization: Bearer secret", "--header=X: secret"]
    )
    assert "secret" not in " ".join(command_line())
