"""The accuracy gate on real vLLM: a checkpoint that knows its items by heart passes, with a damaged expert it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_moe.made import GOOD, NOISE, PROBLEMS, SLIGHT, Made, damaged

from gates.capacity import CapacityVerdict
from gates.text import ROUNDING_LARGEST, ROUNDING_MEAN, ROUNDING_TOP_SHARE, TextOutcome
from reports.gates_document import GATES_NAME, GatesDocument
from reports.run_directory import ExperimentDocument, SweepDocument, read_document
from reports.text_document import text_verdict

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "slo_bench"]
SERVE = ["--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager", "--no-enable-prefix-caching"]
PASSED, FAILED = 0, 1
LIMIT_S = 900

PLAN = """
label = "expert"
title = "One expert with noise in its weights"

[all]
vllm_python = {vllm_python}
mode = "smoke"
workload = "fixed"
input_tokens = 64
output_tokens = 32
duration = 8
ramp = 1
sweep_start = 4
max_request_rate = 4
repeats = 0
gate = "gsm8k"
gsm8k_file = {items}
items = "all"
accuracy_floor = 0.9
vllm_arg = {serve}

[[arm]]
label = "good"
model = {good}

[[arm]]
label = "damaged"
model = {damaged}
"""


def pinned(core: int, command: list[str]) -> list[str]:
    """The command on one core, where there is more than one."""
    return ["taskset", "-c", str(core), *command] if len(os.sched_getaffinity(0)) > 1 else command


def environment(core: int) -> dict[str, str]:
    """What vLLM needs to serve from one core, without a network."""
    core = core if len(os.sched_getaffinity(0)) > 1 else 0
    return os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture(scope="session")
def checkpoints(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint, its damaged copies and its problems."""
    folder = tmp_path_factory.mktemp("tiny-moe")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")]),
        "HF_HUB_OFFLINE": "1",
    }
    began_s = time.monotonic()
    made = subprocess.run(
        [vllm_python, "-m", "tiny_moe", folder], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert made.returncode == 0, made.stderr
    print(f"made in {time.monotonic() - began_s:.0f} s: {made.stdout}")
    return folder


@pytest.fixture(scope="session")
def experiment(
    checkpoints: Path, vllm_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, list[Path]]:
    """The exit code of an experiment with a good and a damaged arm, and its arms' directories."""
    folder = tmp_path_factory.mktemp("experiment")
    # A client must not share the server's core, or it is late.
    python = folder / "python-on-one-core"
    python.write_text(f'#!/bin/sh\nexec {" ".join(pinned(0, [str(vllm_python)]))} "$@"\n')
    python.chmod(0o755)
    values = {
        "vllm_python": python,
        "items": checkpoints / PROBLEMS,
        "good": checkpoints / GOOD,
        "damaged": damaged(checkpoints),
    }
    written = {name: json.dumps(str(path)) for name, path in values.items()}
    plan = folder / "plan.toml"
    plan.write_text(PLAN.format(serve=json.dumps(SERVE), **written))
    began_s = time.monotonic()
    run = subprocess.run(
        pinned(1, [*PROGRAM, "experiment", str(plan)]), cwd=folder, env=environment(0), capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    print(f"experiment took {time.monotonic() - began_s:.0f} s\n{run.stderr}")
    directory = folder / "runs" / "expert"
    found = read_document(directory / "experiment.json", ExperimentDocument)
    assert (found.arms, found.failed) == (["good", "damaged", "good-2"], {})
    return run.returncode, [directory / "arms" / label for label in found.arms]


@pytest.mark.vllm
def test_the_damage_is_where_every_answer_passes_and_not_a_lucky_draw(checkpoints: Path) -> None:
    made = Made.read(checkpoints)
    assert made.share_known == 1
    assert made.token_share > 2 / 8  # more than an even router would send to two experts of eight
    assert made.least_share > 0
    assert made.share_known_after[SLIGHT] == [1, 1, 1]
    assert max(made.share_known_after[NOISE]) < 0.1


@pytest.mark.vllm
def test_an_arm_with_a_damaged_expert_has_no_capacity_and_another_text(experiment: tuple[int, list[Path]]) -> None:
    code, (good, broken, again) = experiment
    assert code == FAILED
    for arm in (good, again):
        gate = read_document(arm / GATES_NAME, GatesDocument)
        assert (gate.outcome, gate.n, gate.right) == ("pass", 48, 48)
        assert read_document(arm / "sweep.json", SweepDocument).capacity_rps == 4

    assert read_document(broken / GATES_NAME, GatesDocument).outcome == "fail"
    sweep = read_document(broken / "sweep.json", SweepDocument)
    assert (sweep.verdict, sweep.capacity_rps) == (CapacityVerdict.GATE_FAILED, None)
    assert sweep.withheld_capacity_rps == 4  # it is fast, and that counts for nothing

    text = text_verdict(good, broken, again)
    assert text is not None
    assert text.outcome is TextOutcome.CHANGED
    assert text.repeat is not None
    assert text.repeat.mean_logprob < ROUNDING_MEAN
    assert text.repeat.largest_logprob < ROUNDING_LARGEST
    assert text.repeat.changed_top_share < ROUNDING_TOP_SHARE


@pytest.mark.vllm
def test_the_gate_alone_passes_by_its_floor_and_fails_by_the_items_that_the_first_arm_had_right(
    checkpoints: Path, experiment: tuple[int, list[Path]], vllm_python: Path, tmp_path: Path
) -> None:
    _, (first, *_) = experiment
    asked = {
        "good": [str(checkpoints / GOOD), "--accuracy-floor", "0.9"],
        "damaged": [str(damaged(checkpoints)), "--against", str(first)],
    }
    began_s = time.monotonic()
    runs = {}
    # Both at once, on a core each: nothing is timed here, and most of it is two servers that start.
    for core, (label, more) in enumerate(asked.items()):
        argv = [
            "gate", "--vllm-python", str(vllm_python), "--label", label, "--gsm8k-file", str(checkpoints / PROBLEMS),
            "--items", "all", "--model", *more, "--", *SERVE,
        ]  # fmt: skip
        runs[label] = subprocess.Popen(pinned(core, [*PROGRAM, *argv]), cwd=tmp_path, env=environment(core))
    try:
        codes = {label: run.wait(timeout=LIMIT_S) for label, run in runs.items()}
    finally:
        for run in runs.values():
            run.terminate()
            run.wait(timeout=120)
    print(f"two gates took {time.monotonic() - began_s:.0f} s")
    assert codes == {"good": PASSED, "damaged": FAILED}

    good, broken = (read_document(tmp_path / "runs" / label / GATES_NAME, GatesDocument) for label in asked)
    assert (good.outcome, good.n, good.right) == ("pass", 48, 48)
    assert broken.comparison is not None
    assert len(broken.comparison.lost) >= 16  # of 48; how many depends a little on the machine that trained
    assert broken.comparison.gained == []
    assert broken.comparison.p_worse < 1e-4
