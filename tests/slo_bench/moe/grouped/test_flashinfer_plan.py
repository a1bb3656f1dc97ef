"""The example plan of two FlashInfer builds differs in the build alone, and its rehearsal runs to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.effect_document import EffectDocument
from reports.run_directory import read_document
from slo_bench.experiment.command import ExperimentOptions, experiment
from slo_bench.experiment.plan import read_plan
from traffic.virtual_time import run_virtual

PLAN = Path(__file__).parents[4] / "examples" / "flashinfer_builds.toml"


def test_both_arms_have_the_same_model_and_levers_and_another_interpreter() -> None:
    shipped, patched, again = (arm.options.model_dump() for arm in read_plan(PLAN).arms)
    differing = {name for name in shipped if shipped[name] != patched[name]}
    assert differing == {"vllm_python", "simulated", "label"}
    assert {name for name in shipped if shipped[name] != again[name]} == {"label"}
    assert shipped["moe_backend"] == "flashinfer_cutlass"
    assert shipped["enable_expert_parallel"]


@pytest.mark.process
def test_a_rehearsal_finds_what_was_hidden_and_claims_nothing_of_texts(tmp_path: Path) -> None:
    options = ExperimentOptions(plan=PLAN, rehearse=True, mode="smoke", runs_dir=tmp_path)
    assert run_virtual(experiment(options)) == 0
    folder = tmp_path / "flashinfer-builds"
    compared = folder / "compare" / "fi-shipped--fi-patched"
    assert read_document(compared / "effect.json", EffectDocument).outcome == "concluded"
    assert "lower than that of fi-shipped" in (compared / "effect.md").read_text().replace("`", "")
    note = (folder / "note.md").read_text()
    assert note.startswith("# SIMULATED")
    assert "the same text" not in note
    assert not list(folder.glob("arms/*/text_gate.json"))
