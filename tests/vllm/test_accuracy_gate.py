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
ENV = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
PASSED, FAILED = 0, 1


@pytest.fixture(scope="session")
def checkpoints(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint, its damaged copies and its problems: about a minute of one core."""
    folder = tmp_path_factory.mktemp("tiny-moe")
    env = ENV | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])}
    began_s = time.monotonic()
    made = subprocess.run(
        [vllm_python, "-m", "tiny_moe", folder], env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert made.returncode == 0, made.stderr
    print(f"made in {time.monotonic() - began_s:.0f} s: {made.stdout}")
    return folder


@pytest.mark.vllm
def test_the_damage_is_where_every_answer_passes_and_not_a_lucky_draw(checkpoints: Path) -> None:
    made = Made.read(checkpoints)
    assert made.share_known == 1
    assert made.token_share > 2 / 8  # more than an even router would send to two experts of eight
    assert made.least_share > 0
    assert made.share_known_after[SLIGHT] == [1, 1, 1]
    assert max(made.share_known_after[NOISE]) < 0.1


@pytest.mark.vllm
def test_the_gate_passes_what_it_should_and_fails_a_damaged_expert(
    checkpoints: Path, vllm_python: Path, tmp_path: Path
) -> None:
    def gate(label: str, model: Path, *more: str) -> tuple[int, GatesDocument]:
        argv = [
            "gate", "--model", str(model), "--vllm-python", str(vllm_python), "--label", label, "--items", "all",
            "--gsm8k-file", str(checkpoints / PROBLEMS), *more, "--", *SERVE,
        ]  # fmt: skip
        run = _slo_bench(argv, tmp_path)
        return run.returncode, read_document(tmp_path / "runs" / label / GATES_NAME, GatesDocument)

    code, good = gate("good", checkpoints / GOOD, "--accuracy-floor", "0.9")
    assert (code, good.outcome) == (PASSED, "pass")
    assert (good.n, good.right) == (48, 48)

    code, broken = gate("damaged", damaged(checkpoints), "--against", str(tmp_path / "runs" / "good"))
    assert (code, broken.outcome) == (FAILED, "fail")
    assert broken.comparison is not None
    assert (len(broken.comparison.lost) > 40, len(broken.comparison.gained)) == (True, 0)
    assert broken.comparison.p_worse < 1e-9


PLAN = """
label = "expert"
title = "One expert with noise in its weights"

[all]
vllm_python = {vllm_python}
mode = "smoke"
workload = "fixed"
input_tokens = 64
output_tokens = 8
duration = 10
ramp = 1
sweep_start = 2
max_request_rate = 3
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


@pytest.mark.vllm
def test_an_arm_with_a_damaged_expert_has_no_capacity_and_another_text(
    checkpoints: Path, vllm_python: Path, tmp_path: Path
) -> None:
    values = {
        "vllm_python": vllm_python,
        "items": checkpoints / PROBLEMS,
        "good": checkpoints / GOOD,
        "damaged": damaged(checkpoints),
    }
    written = {name: json.dumps(str(path)) for name, path in values.items()}
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(serve=json.dumps(SERVE), **written))

    run = _slo_bench(["experiment", str(plan)], tmp_path)
    assert run.returncode == FAILED
    directory = tmp_path / "runs" / "expert"
    found = read_document(directory / "experiment.json", ExperimentDocument)
    assert (found.arms, found.failed) == (["good", "damaged", "good-2"], {})
    good, broken, again = (directory / "arms" / label for label in found.arms)

    for arm in (good, again):
        assert read_document(arm / GATES_NAME, GatesDocument).right == 48
        assert read_document(arm / "sweep.json", SweepDocument).capacity_rps is not None
    gate = read_document(broken / GATES_NAME, GatesDocument)
    assert gate.outcome == "fail"
    assert gate.comparison is not None
    sweep = read_document(broken / "sweep.json", SweepDocument)
    assert (sweep.verdict, sweep.capacity_rps) == (CapacityVerdict.GATE_FAILED, None)
    assert sweep.withheld_capacity_rps is not None

    verdict = text_verdict(good, broken, again)
    assert verdict is not None
    assert verdict.outcome is TextOutcome.CHANGED
    assert verdict.repeat is not None
    assert verdict.repeat.mean_logprob < ROUNDING_MEAN
    assert verdict.repeat.largest_logprob < ROUNDING_LARGEST
    assert verdict.repeat.changed_top_share < ROUNDING_TOP_SHARE


def _slo_bench(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """One command, and what it said and took."""
    began_s = time.monotonic()
    run = subprocess.run([*PROGRAM, *argv], cwd=cwd, env=ENV, capture_output=True, text=True, timeout=900, check=False)
    print(f"{argv[0]} took {time.monotonic() - began_s:.0f} s\n{run.stderr}")
    return run
