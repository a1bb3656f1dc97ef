"""Every plan in examples/ runs from its first line to its note, on the simulated engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reports.effect_document import EffectDocument
from reports.run_directory import ExperimentDocument, RunDocument, read_document
from slo_bench.cli import main
from slo_bench.experiment.command import ExperimentOptions, experiment
from slo_bench.experiment.plan import read_plan
from slo_bench.hosts.moe_proof import USUAL_SIZES
from traffic.virtual_time import run_virtual

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = [*sorted(FOLDER.glob("*.toml")), FOLDER / "h200" / "sweeps.toml"]


def rehearsed(plan: Path, runs: Path, **more: object) -> int:
    options = ExperimentOptions(plan=plan, rehearse=True, mode="smoke", runs_dir=runs, **more)
    return run_virtual(experiment(options))


@pytest.mark.process
@pytest.mark.parametrize("plan", EXAMPLES, ids=lambda plan: plan.stem)
def test_it_runs_to_its_note_and_says_simulated(plan: Path, tmp_path: Path) -> None:
    assert rehearsed(plan, tmp_path) == 0
    planned = read_plan(plan)
    directory = tmp_path / planned.label
    document = read_document(directory / "experiment.json", ExperimentDocument)
    assert document.arms == [arm.label for arm in planned.arms]
    assert document.drift_arm == planned.drift_arm
    note = (directory / "note.md").read_text()
    assert note.startswith("# SIMULATED")
    for each in planned.comparisons:
        folder = f"compare/{each.base}--{each.other}"
        compared = read_document(directory / folder / "effect.json", EffectDocument)
        assert compared.outcome == "concluded"
        assert f"({folder}/effect.md)" in note


def test_one_of_them_compares_its_arms_block_by_block() -> None:
    assert any(read_plan(plan).comparisons for plan in EXAMPLES)


def test_there_is_a_plan_for_each_question_that_is_asked_most() -> None:
    assert {plan.stem for plan in EXAMPLES} >= {
        "vllm_upgrade",
        "moe_tuning",
        "kv_cache_precision",
        "admission_limit",
        "batching_and_prefill",
    }


def test_the_comparison_on_an_h200_says_what_it_would_do_once_its_tuned_file_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FOLDER / "h200" / "compare.toml").read_text().replace("/tmp/tuned", str(tmp_path))  # noqa: S108 - read, not used
    name = re.findall(r"E=128.*\.json", text)[-1]
    (tmp_path / "compare.toml").write_text(text)
    argv = ["compare", "--config", str(tmp_path / "compare.toml"), "--dry-run", "--", "--load-format", "dummy"]
    assert main(argv) == 2
    assert name in capsys.readouterr().err
    of_every_size = {str(size): {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
                                 "num_warps": 4, "num_stages": 3} for size in USUAL_SIZES}  # fmt: skip
    (tmp_path / name).write_text(json.dumps(of_every_size))
    assert main(argv) == 0
    said = capsys.readouterr().err
    print(said)
    assert "moe-default" in said
    assert "a second one of arm A" in said


def test_a_lever_that_the_simulated_engine_has_is_pulled_in_a_rehearsal(tmp_path: Path) -> None:
    plan = next(plan for plan in EXAMPLES if plan.stem == "admission_limit")
    arms = ExperimentOptions(plan=plan, rehearse=True, runs_dir=tmp_path).the_plan().arms
    assert [arm.options.simulated for arm in arms] == [
        ["max_num_seqs=256"],
        ["max_num_seqs=128"],
        ["max_num_seqs=64"],
        ["max_num_seqs=256"],
    ]


@pytest.mark.process
def test_a_plan_that_was_interrupted_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    plan = next(plan for plan in EXAMPLES if plan.stem == "vllm_upgrade")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert rehearsed(plan, whole) == 0
    assert rehearsed(plan, broken) == 0
    label = read_plan(plan).label
    (broken / label / "note.md").unlink()
    (broken / label / "arms" / "vllm-0.32" / "sweep.json").unlink()
    assert rehearsed(plan, broken, resume=True) == 0
    for path in (whole / label).rglob("*.json"):
        if path.name == "run.json":  # it names the folder that the user chose
            one, other = (read_document(each, RunDocument) for each in (path, broken / path.relative_to(whole)))
            assert one.model_copy(update={"config": {}}) == other.model_copy(update={"config": {}})
        else:
            assert path.read_bytes() == (broken / path.relative_to(whole)).read_bytes(), path.name
