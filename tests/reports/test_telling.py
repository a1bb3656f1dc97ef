from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gates.decision import Decision, Ground
from reports.arms import read_experiment
from reports.story import Kind, Story
from reports.telling import tell


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def story(directory: Path) -> Story:
    return tell(read_experiment(directory))


@pytest.mark.parametrize(
    ("name", "kind", "decision", "ground"),
    [
        ("gate_failed", Kind.GATE_FAILED, Decision.IGNORE, Ground.ACCURACY_LOST),
        ("within_drift", Kind.WITHIN_DRIFT, Decision.IGNORE, Ground.TOO_SMALL),
        ("real_effect", Kind.REAL, Decision.ADOPT, Ground.REAL),
    ],
)
def test_headline_and_decision_follow_from_the_evidence(
    scenario: Callable[[str], Path], name: str, kind: Kind, decision: Decision, ground: Ground
) -> None:
    told = story(scenario(name))
    assert told.kind is kind
    assert told.headline.startswith(f"**SIMULATED. {kind.capitalize()}: ")
    assert told.decided is not None
    assert (told.decided.decision, told.decided.ground, told.decided.arm) == (decision, ground, "moe-tuned")
    assert len(told.bullets) == 4


def test_between_single_starts_nothing_is_called_real_and_more_is_measured(small: Path) -> None:
    told = story(small)
    assert told.kind is Kind.BETWEEN_INSTANCES
    assert told.decided is not None
    assert told.decided.decision is Decision.MEASURE_LONGER
    assert "the largest fall of mean TPOT that agrees with interval and drift is 3.9 %" in told.decided.reason


def test_a_decision_names_all_that_it_is_limited_to(scenario: Callable[[str], Path]) -> None:
    directory = scenario("real_effect")
    path = directory / "arms/moe-tuned/run.json"
    gpus = [{"name": "NVIDIA H200", "uuid": "GPU-a"}]
    change(path, config={"workload": "chat-mix", "tensor_parallel_size": 2}, environment={"gpus": gpus})
    decided = story(directory).decided
    assert decided is not None
    for part in ("model simulated-30b-a3b", "GPU NVIDIA H200", "SIMULATED engine", "parallelism 2", "chat-mix"):
        assert part in decided.limits
    assert "The tuning took 159 minutes" in decided.reason
    assert "55 hours of load give it back" in decided.reason


def test_an_arm_that_is_no_result_is_told_with_the_reason_and_keeps_its_column(
    scenario: Callable[[str], Path],
) -> None:
    told = story(scenario("gate_failed"))
    assert told.struck == {"moe-tuned": "accuracy gate fail"}
    assert told.table is not None
    assert [column.arm for column in told.table.columns if column.struck] == ["moe-tuned", "moe-tuned"]


def test_an_arm_without_the_gate_that_others_have_is_no_result(scenario: Callable[[str], Path]) -> None:
    directory = scenario("real_effect")
    (directory / "arms/moe-tuned/gates.json").unlink()
    told = story(directory)
    assert told.struck == {"moe-tuned": "no accuracy gate ran, as one did for other arms"}
    assert told.decided is not None
    assert told.decided.ground is Ground.ACCURACY_OPEN


def test_a_baseline_without_a_passed_gate_leaves_nothing_to_compare(scenario: Callable[[str], Path]) -> None:
    directory = scenario("gate_failed")
    for name, outcome in (("moe-default", "inconclusive"), ("moe-tuned", "pass")):
        change(directory / f"arms/{name}/gates.json", outcome=outcome)
    told = story(directory)
    assert told.kind is Kind.GATE_FAILED
    assert told.decided is not None
    assert told.decided.ground is Ground.NOT_COMPARABLE


def test_arms_that_did_other_work_are_not_comparable(small: Path) -> None:
    path = small / "arms/moe-tuned/sweep.json"
    document = json.loads(path.read_text())
    change(path, probes=[{**row, "output_tokens_mean": 250.0} for row in document["probes"]])
    told = story(small)
    assert told.kind is Kind.NOT_COMPARABLE
    assert "**SIMULATED. Not comparable: `moe-tuned`: its mean output differs by +3.3 %" in told.headline
    assert "~~-2.9 % (-3.1 % to -2.7 %, 3 pairs)~~, no result" in told.headline


def test_a_run_that_did_not_end_well_is_no_result(small: Path) -> None:
    change(small / "arms/moe-tuned/run.json", status="interrupted", reason="SIGINT")
    told = story(small)
    assert told.struck == {"moe-tuned": "its run is interrupted: SIGINT"}
    assert "Not comparable: `moe-tuned`: its run is interrupted" in told.headline


def test_values_of_the_table_are_not_rounded(small: Path) -> None:
    table = story(small).table
    assert table is not None
    row = next(each for each in table.rows if each.name == "TPOT mean (ms)")
    assert row.cells[0].text.startswith("37.22 (")
    assert row.cells[0].value == pytest.approx(0.0372 * (1 + 0.0005))
    rows = {each.name: each for each in table.rows}
    per_second = rows["output tokens/s (set by the arrival rate)"]
    assert [cell.text for cell, column in zip(per_second.cells, table.columns, strict=True) if column.is_effect] == [
        "set by the arrival rate"
    ] * 2


def test_a_smoke_run_decides_nothing(small: Path) -> None:
    change(small / "arms/moe-tuned/sweep.json", is_smoke=True)
    assert story(small).decided is None


def test_one_arm_alone_has_nothing_to_decide(small: Path) -> None:
    (small / "truth.json").unlink()
    change(small / "experiment.json", arms=["moe-default"], drift_arm=None)
    told = story(small)
    assert (told.kind, told.arm, told.decided) == (Kind.ONE_ARM, None, None)
    assert "`moe-default` was measured alone, so nothing is compared. Capacity: `moe-default` " in told.headline
    assert told.bullets[2].endswith("compared with nothing: no other configuration was measured.")
