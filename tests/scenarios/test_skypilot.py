"""The task file for SkyPilot, as far as it runs without a cloud: its fields, its setup and its four runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from reports.run_directory import RunDocument, read_document
from slo_bench.bare_run.machine_file import MachineFile
from slo_bench.bare_run.names import KNOWN
from slo_bench.bare_run.translation import Meant, Tuning, meant
from slo_bench.config import SweepOptions
from slo_bench.renting.options import VLLM_VERSION

ROOT = Path(__file__).resolve().parents[2]
BASH, SHELLCHECK = shutil.which("bash") or "bash", shutil.which("shellcheck")
FIELDS = {"name", "resources", "workdir", "envs", "setup", "run"}
RESOURCES = {"accelerators", "cpus", "memory", "disk_size", "use_spot", "autostop"}
AUTOSTOP = {"idle_minutes", "down"}
"""What SkyPilot's reference of the file says of these sections, as far as the example uses them."""

OF_THE_SCRIPTS = {"VLLM_VERSION", "SESSION_MINUTES"}
OF_ANY_SHELL = {"PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_", "CALLS", "CODE"}
LABELS = ["moe-default", "moe-tuning", "moe-tuned", "moe-default-2"]
MACHINE = MachineFile(engine="simulated")
UV = """#!/bin/bash
echo "uv $*" >> "$CALLS"
[ "$1" = venv ] || exit 0
place="${!#}"
mkdir -p "$place/bin"
printf '#!/bin/sh\\nexec %s "$@"\\n' '{python}' > "$place/bin/python"
printf '#!/bin/sh\\nexec %s -m slo_bench "$@"\\n' '{python}' > "$place/bin/slo-bench"
chmod +x "$place/bin/python" "$place/bin/slo-bench"
"""
RECORDER = """#!/bin/bash
[ "$1" = run ] || { echo "slo-bench $*" >> "$CALLS"; exit 0; }
env -0 > "$CALLS.$LABEL"
echo "$LABEL" >> "$CALLS"
[ "$LABEL" != moe-default ] || exit "${CODE:-0}"
"""


def task() -> dict[str, Any]:
    made = yaml.safe_load((ROOT / "examples" / "skypilot.yaml").read_text())
    assert isinstance(made, dict)
    return made


@dataclass
class Rented:
    """A machine's home, and a file in which programs that stand in for others write how they are called."""

    home: Path
    calls: Path

    def does(self, section: str, **more: str) -> subprocess.CompletedProcess[str]:
        """What the section's script did in the top of the checkout, with the variables of the file."""
        known = {"PATH": os.environ["PATH"], "HOME": str(self.home), "CALLS": str(self.calls)}
        env = {**known, **task()["envs"], **more}
        words = [BASH, "-c", task()[section]]
        return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)

    def program(self, path: str, text: str) -> None:
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def lines(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def given(self, label: str) -> dict[str, str]:
        """The environment in which `slo-bench run` of this label began, without what every shell has."""
        pairs = self.calls.with_name(f"{self.calls.name}.{label}").read_text().split("\0")
        found = dict(pair.split("=", 1) for pair in pairs if pair)
        return {name: value for name, value in found.items() if name not in OF_ANY_SHELL | OF_THE_SCRIPTS}


@pytest.fixture
def rented(tmp_path: Path) -> Rented:
    home = tmp_path / "home"
    home.mkdir()
    return Rented(home, tmp_path / "calls")


@pytest.fixture
def recorded(rented: Rented) -> Rented:
    """A machine whose slo-bench only writes down its environment."""
    rented.program("slo-bench/bench/bin/slo-bench", RECORDER)
    return rented


def test_it_is_a_task_of_the_documented_fields_that_ends_its_own_machine() -> None:
    made = task()
    assert made.keys() == FIELDS
    assert made["resources"].keys() <= RESOURCES
    assert made["resources"]["accelerators"] == "H100:1"
    assert made["resources"]["autostop"].keys() == AUTOSTOP
    assert made["resources"]["autostop"]["down"] is True
    assert type(made["resources"]["autostop"]["idle_minutes"]) is int
    assert made["workdir"] == "."
    assert all(isinstance(value, str) for value in made["envs"].values())
    assert made["envs"]["VLLM_VERSION"] == VLLM_VERSION


@pytest.mark.parametrize("section", ["setup", "run"])
@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_its_scripts_have_no_fault_that_shellcheck_knows(section: str) -> None:
    assert SHELLCHECK is not None
    subprocess.run([SHELLCHECK, "--shell=bash", "-"], input=task()[section], text=True, check=True)


def test_it_gives_each_run_known_names_alone_in_the_published_order(recorded: Rented) -> None:
    done = recorded.does("run")
    assert done.returncode == 0, done.stderr
    assert recorded.lines() == LABELS
    found = {label: meant(recorded.given(label), MACHINE) for label in LABELS}
    for label, each in found.items():
        kind = "tune" if isinstance(each.options, Tuning) else "sweep"
        assert recorded.given(label).keys() <= KNOWN[kind] | {"TUNE_MOE"}, label
    tuning = found["moe-tuning"].options
    assert isinstance(tuning, Tuning)
    assert found["moe-tuned"].tuned_dir == tuning.target == recorded.home / "moe-tuned"
    assert tuning.options.minutes == 150
    assert {label for label in LABELS if isinstance(found[label].options, SweepOptions)} == {*LABELS} - {"moe-tuning"}
    assert settings(found["moe-default"]) == settings(found["moe-default-2"])
    assert settings(found["moe-default"])["sweep_start"] == 8.0


def settings(found: Meant) -> dict[str, Any]:
    assert isinstance(found.options, SweepOptions)
    return found.options.model_dump(exclude={"label"})


def test_a_run_that_fails_does_not_stop_the_next_one_and_its_code_is_the_end(recorded: Rented) -> None:
    assert recorded.does("run", CODE="4").returncode == 4
    assert recorded.lines() == LABELS


def test_when_its_minutes_are_over_no_run_begins_and_it_says_which(recorded: Rented) -> None:
    done = recorded.does("run", SESSION_MINUTES="0")
    assert done.returncode == 124
    assert recorded.lines() == []
    assert [line.rpartition("LABEL=")[2] for line in done.stderr.splitlines()] == LABELS


def test_its_setup_makes_two_environments_and_pins_vllm_in_its_own(rented: Rented) -> None:
    rented.program(".local/bin/uv", UV.replace("{python}", sys.executable))
    for _ in range(2):  # every launch on the same cluster does it again
        done = rented.does("setup")
        assert done.returncode == 0, done.stderr
    assert "slo-bench" in done.stdout
    calls = rented.lines()
    assert len([line for line in calls if line.startswith("uv venv")]) == 2
    bench, vllm = (rented.home / "slo-bench" / name / "bin" / "python" for name in ("bench", "vllm"))
    assert f"uv pip install --quiet --python {bench} ." in calls
    (pinned,) = {line for line in calls if f"--python {vllm}" in line}
    assert pinned.endswith(f" vllm=={VLLM_VERSION}")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert needed == ">=3.11"
    assert all("--python 3.12" in line for line in calls if line.startswith("uv venv"))


@pytest.mark.process
def test_its_four_runs_end_in_one_note_on_a_machine_that_simulates(rented: Rented) -> None:
    rented.program(".local/bin/uv", UV.replace("{python}", sys.executable))
    assert rented.does("setup").returncode == 0
    own = rented.home / ".config" / "slo-bench"
    own.mkdir(parents=True)
    (own / "machine.toml").write_text('engine = "simulated"\ntune = { batch_size = ["64"] }\n')
    done = rented.does("run")
    assert done.returncode == 0, done.stderr
    runs = rented.home / "slo-bench" / "runs"
    found = {label: read_document(runs / label / "run.json", RunDocument) for label in LABELS}
    assert {label: (each.kind, each.status) for label, each in found.items()} == {
        label: ("tune" if label == "moe-tuning" else "sweep", "done") for label in LABELS
    }
    note = (runs / "note.md").read_text()
    assert note.startswith("# SIMULATED")
    assert all(label in note for label in LABELS)
