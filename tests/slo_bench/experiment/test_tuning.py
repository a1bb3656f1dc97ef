"""An arm that is tuned before it is measured."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from reports.kernels import read_kernels
from reports.run_directory import SweepDocument, read_document
from slo_bench.cli import main
from slo_bench.experiment.command import ExperimentOptions
from slo_bench.experiment.plan import read_plan
from slo_bench.experiment.tuning import tune_before
from traffic.errors import EngineError, UsageError

LAYER = 'shape = "E=128,N=768,K=2048,top-k=8", dtype = "fp8_w8a8", block-shape = "128,128"'
SIZES = 'batch_size = ["1", "128"], minutes = 5'
PLAN = """
[all]
{shared}
gate = "none"
mode = "smoke"

[[arm]]
label = "default"

[[arm]]
label = "tuned"
tune = {tune}
"""


def written(tmp_path: Path, *, shared: str = 'engine = "simulated"', tune: str = f"{{ {LAYER}, {SIZES} }}") -> Path:
    path = tmp_path / "two.toml"
    path.write_text(PLAN.format(shared=shared, tune=tune))
    return path


@pytest.mark.process
def test_the_search_comes_first_and_its_times_lie_with_the_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written(tmp_path)
    assert main(["experiment", str(plan), "--runs-dir", str(tmp_path / "runs")]) == 0
    directory = tmp_path / "runs" / "two"
    kernels = read_kernels(directory / "arms" / "tuned")
    assert kernels is not None
    assert kernels.is_simulated
    assert kernels.tuning_s is not None
    assert {row.tokens for row in kernels.rows} == {1, 128}
    assert read_kernels(directory / "arms" / "default") is None
    assert list((directory / "tuned").iterdir()) == [directory / "tuned" / "tuned"]
    assert "1248 configurations x 2 batch sizes" in capsys.readouterr().err
    assert read_document(directory / "arms" / "tuned" / "sweep.json", SweepDocument).capacity_rps
    assert "Kernel times" in (directory / "note.md").read_text()
    before = {path: path.read_bytes() for path in directory.rglob("*.json*") if path.name != "run.json"}
    assert main(["experiment", str(plan), "--runs-dir", str(tmp_path / "runs"), "--resume"]) == 0
    after = {path: path.read_bytes() for path in directory.rglob("*.json*") if path.name != "run.json"}
    assert before == after


def test_a_real_arms_server_reads_the_folder_and_its_repeat_the_same(tmp_path: Path) -> None:
    plan = tmp_path / "one.toml"
    plan.write_text(f'[all]\nmodel = "m"\n[[arm]]\nlabel = "tuned"\ntune = {{ {LAYER}, {SIZES} }}\n')
    arms = ExperimentOptions(plan=plan, runs_dir=tmp_path).the_plan().arms
    folder = tmp_path / "one" / "tuned" / "tuned"
    assert [arm.label for arm in arms] == ["tuned", "tuned-2"]
    for arm in arms:
        assert arm.options.tuned_moe_dir == folder
        assert arm.tune is not None
        assert (arm.tune.output, arm.tune.simulated, arm.tune.minutes) == (folder, False, 5.0)
    rehearsed = ExperimentOptions(plan=plan, runs_dir=tmp_path, rehearse=True).the_plan().arms[0]
    assert rehearsed.tune is not None
    assert rehearsed.tune.simulated
    assert rehearsed.options.tuned_moe_dir is None


def test_without_a_gpu_the_arm_fails_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    plan = written(tmp_path, shared='model = "m"')
    arm = ExperimentOptions(plan=plan, runs_dir=tmp_path).the_plan().arms[1]
    assert arm.tune is not None
    with pytest.raises(EngineError, match="kernels are timed on a GPU"):
        asyncio.run(tune_before(arm.tune, tmp_path / "arm", lambda _: None))


@pytest.mark.parametrize(
    ("shared", "tune", "reason"),
    [
        ('engine = "simulated"', "8", "tune: give a table of options of slo-bench tune"),
        ('engine = "simulated"', f"{{ {LAYER}, minutess = 8 }}", "tune: there is no option 'minutess'"),
        ('engine = "simulated"', f'{{ {LAYER}, output = "x" }}', "tune: there is no option 'output'"),
        ('engine = "simulated"', f"{{ {LAYER}, minutes = 0 }}", "tune: minutes: "),
        ('engine = "simulated"', f'{{ {LAYER}, routing = ["rank-1"] }}', "tune: routing: "),
        ('model = "m"\ntuned_moe_dir = "x"', f"{{ {LAYER} }}", "tune: the arm has a tuned_moe_dir already"),
        ('base_url = "http://127.0.0.1:1"', f"{{ {LAYER} }}", "tune: the arm's server runs elsewhere"),
        ('model = "Org/Name"', "{ minutes = 8 }", "tune: Org/Name: no such file"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused_with_the_plan(
    shared: str, tune: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"two\.toml: .*") as refused:
        read_plan(written(tmp_path, shared=shared, tune=tune))
    assert reason in str(refused.value)
