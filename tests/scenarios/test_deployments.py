"""The examples of containers, clusters and trackers, as far as they run without one."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import types
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from slo_bench.cli import COMMANDS, main
from slo_bench.options import load

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SUMMARY = ROOT / "tests" / "samples" / "v1" / "summary.json"
BASH, SHELLCHECK = shutil.which("bash") or "bash", shutil.which("shellcheck")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def accepted(words: list[str]) -> Any:
    """The options of a command line of ours; UsageError where the program would refuse it."""
    model, _ = COMMANDS[words[0]].find()
    return load(model, words[1:], prog="slo-bench", description="", command=words[0])


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", dockerfile.read_text())
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word.isupper()]


def test_the_image_holds_every_package_and_starts_a_program_that_exists() -> None:
    found = instructions(EXAMPLES / "Dockerfile")
    copied = {source for word, rest in found if word == "COPY" for source in rest.split()[:-1]}
    for source in copied:
        assert (ROOT / source).exists(), source
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied
    assert PROJECT["project"]["readme"] in copied
    last = dict(found)
    assert json.loads(last["ENTRYPOINT"]) == list(PROJECT["project"]["scripts"])
    assert json.loads(last["CMD"]) == ["--help"]
    name, _, _ = last["ENV"].partition("=")
    assert name.removeprefix("SLO_BENCH_").lower() in COMMANDS["sweep"].find()[0].model_fields
    assert re.search(r"python:(3\.\d+)", last["FROM"])[1] >= "3.11"  # type: ignore[index]


def job() -> dict[str, Any]:
    made = yaml.safe_load((EXAMPLES / "kubernetes-job.yaml").read_text())
    assert isinstance(made, dict)
    return made


def containers() -> list[dict[str, Any]]:
    pod = job()["spec"]["template"]["spec"]
    return [*pod["initContainers"], *pod["containers"]]


def test_the_job_sweeps_and_then_writes_the_note_of_the_same_run() -> None:
    assert (job()["apiVersion"], job()["kind"]) == ("batch/v1", "Job")
    sweep, note = (accepted(each["args"]) for each in containers())
    assert sweep.engine_kind() == "attached"
    assert note.run_dir == [sweep.runs_dir / sweep.label]
    assert note.form == "html"
    assert sweep.yes
    assert job()["spec"]["activeDeadlineSeconds"] > 60 * sweep.max_minutes


def test_what_the_job_mounts_is_there_and_its_client_has_cores_of_its_own() -> None:
    volumes = {each["name"] for each in job()["spec"]["template"]["spec"]["volumes"]}
    for each in containers():
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
        assert each["resources"]["requests"] == each["resources"]["limits"]


def test_the_jobs_sweep_is_one_that_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*containers()[0]["args"], f"--runs-dir={tmp_path}", "--dry-run"]
    assert main(words) == 0
    assert "nightly: chat-mix" in capsys.readouterr().err


def test_the_slurm_script_is_bash_and_its_commands_are_accepted() -> None:
    path = EXAMPLES / "slurm.sh"
    subprocess.run([BASH, "-n", str(path)], check=True)
    text = path.read_text()
    assert "#SBATCH --signal=B:TERM@" in text
    for line in re.findall(r"^\s*slo-bench (.*?)(?: &)?$", text, re.MULTILINE):
        words = line.replace('"${resume[@]}"', "--resume").replace('"', "").replace("$", "").split()
        assert accepted(words).run_dir if words[0] == "report" else accepted(words).resume


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_the_slurm_script_has_no_fault_that_shellcheck_knows() -> None:
    assert SHELLCHECK is not None
    subprocess.run([SHELLCHECK, str(EXAMPLES / "slurm.sh")], check=True)


STAND_IN = """#!/bin/bash
echo "${0##*/} $*" >> "$CALLS"
[[ $1 != sweep || -z ${LONG:-} ]] && exit "${CODE:-0}"
trap 'exit 143' TERM
while true; do sleep 0.01; done
"""


@contextmanager
def slurm(tmp_path: Path, **env: str) -> Any:
    """The script with programs that write down how they are called."""
    for name in ("slo-bench", "scontrol"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(STAND_IN)
        program.chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    known = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls), "RUNS": str(tmp_path / "runs")}
    process = subprocess.Popen([BASH, str(EXAMPLES / "slurm.sh")], env={**known, "SLURM_JOB_ID": "7", **env})
    try:
        yield process, calls
    finally:
        process.kill()
        process.wait()


@pytest.mark.process
def test_a_job_that_ends_in_time_writes_its_note(tmp_path: Path) -> None:
    with slurm(tmp_path, LABEL="one") as (process, calls):
        assert process.wait(timeout=20) == 0
    sweep, note = calls.read_text().splitlines()
    runs = tmp_path / "runs"
    assert sweep == f"slo-bench sweep --model Qwen/Qwen3-30B-A3B-FP8 --label one --runs-dir {runs}"
    assert note == f"slo-bench report {runs}/one --output {runs}/one/note.md"


@pytest.mark.process
def test_a_job_at_its_time_limit_stops_the_sweep_and_goes_back_into_the_queue_to_resume(tmp_path: Path) -> None:
    with slurm(tmp_path, LABEL="one", LONG="1") as (process, calls):
        deadline_s = time.monotonic() + 20
        while not calls.read_text() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 143
    assert calls.read_text().splitlines()[1:] == ["scontrol requeue 7"]
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "run.json").touch()
    with slurm(tmp_path, LABEL="one", CODE="1") as (process, calls):
        assert process.wait(timeout=20) == 1
    assert calls.read_text().splitlines()[2:] == [
        f"slo-bench sweep --model Qwen/Qwen3-30B-A3B-FP8 --label one --runs-dir {tmp_path / 'runs'} --resume"
    ]


class Tracker(types.ModuleType):
    """The five functions of MLflow that the example calls, with MLflow's own rules for their values."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.runs: dict[str, dict[str, Any]] = {}
        self.name = ""

    @contextmanager
    def start_run(self, run_name: str) -> Any:
        self.name = run_name
        self.runs[run_name] = {}
        yield

    def log_metrics(self, metrics: dict[str, float]) -> None:
        assert all(type(value) in (int, float) for value in metrics.values())
        self.runs[self.name] |= metrics

    def log_params(self, params: dict[str, Any]) -> None:
        self.runs[self.name] |= params

    def set_tags(self, tags: dict[str, Any]) -> None:
        self.runs[self.name] |= tags

    def log_artifact(self, local_path: str) -> None:
        assert Path(local_path).is_file()


def test_the_tracker_gets_a_run_per_arm_with_its_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tracker()
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    monkeypatch.setattr(sys, "argv", ["log_to_mlflow.py", str(SUMMARY)])
    runpy.run_path(str(EXAMPLES / "log_to_mlflow.py"))
    arms = json.loads(SUMMARY.read_text())["arms"]
    assert {name: run["capacity_rps"] for name, run in tracker.runs.items()} == {
        arm["label"]: arm["capacity_rps"] for arm in arms
    }
    faster = tracker.runs["faster"]
    assert faster["anchor_tpot_mean_s"] == arms[1]["anchor"]["tpot_mean_s"]
    assert (faster["workload"], faster["simulated"]) == ("chat-mix", True)


@pytest.mark.process
def test_the_tracker_itself_takes_what_the_example_logs(tmp_path: Path) -> None:
    python = os.environ.get("MLFLOW_PYTHON")
    if python is None:
        pytest.skip("MLFLOW_PYTHON names no interpreter with mlflow")
    env = {"MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true", "HOME": str(tmp_path)}
    subprocess.run([python, str(EXAMPLES / "log_to_mlflow.py"), str(SUMMARY)], env=env, check=True, timeout=120)
    kept = {path.read_text().split()[1] for path in (tmp_path / "mlruns").rglob("metrics/capacity_rps")}
    assert {float(each) for each in kept} == {arm["capacity_rps"] for arm in json.loads(SUMMARY.read_text())["arms"]}
