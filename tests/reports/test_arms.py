from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gates.effect import EffectMetric
from reports.arms import Arm, mark_of, paired_values, read_experiment
from reports.run_directory import ProbeRow, SweepDocument
from traffic.errors import UsageError
from traffic.probe import Stop

TPOT = EffectMetric.TPOT_MEAN


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_rows(arm: Arm, rows: list[ProbeRow]) -> Arm:
    sweep: SweepDocument = arm.sweep.model_copy(update={"probes": rows})
    return Arm(arm.label, arm.directory, arm.run, sweep, arm.engine)


def test_arms_come_in_the_order_in_which_they_ran(small: Path) -> None:
    experiment = read_experiment(small)
    assert [arm.label for arm in experiment.arms] == ["moe-default", "moe-tuned", "moe-default-2"]
    assert experiment.baseline.label == "moe-default"
    assert experiment.drift_arm is experiment.arms[2]
    assert experiment.compared == (experiment.arms[1],)
    assert experiment.mark == "SIMULATED"


def test_the_effect_pairs_equal_repeats_at_the_anchor_rate(small: Path) -> None:
    experiment = read_experiment(small)
    found = experiment.effect(experiment.arms[1], TPOT)
    assert found.share == pytest.approx(-0.029, abs=5e-4)
    assert (found.n_pairs, found.missing_pairs) == (3, 0)
    drift = experiment.drift(TPOT)
    assert drift is not None
    assert drift.share == pytest.approx(0.0065, abs=1e-4)


def test_a_window_that_ended_early_or_is_invalid_has_no_partner(small: Path) -> None:
    base, other, _ = read_experiment(small).arms
    anchor = [row for row in other.sweep.probes if row.rate_rps == 11.18]
    early = anchor[0].model_copy(update={"stop": Stop.LOST})
    bad = anchor[1].model_copy(update={"is_valid": False, "outcome": None, "invalid_reasons": ["lag"]})
    arm = with_rows(other, [early, bad, anchor[2]])
    windows = arm.at(11.18)
    assert [len(each) for each in (windows.whole, windows.cut, windows.invalid)] == [1, 1, 1]
    assert (windows.passed, windows.valid) == (2, 2)
    _, values = paired_values(base, arm, 11.18, TPOT)
    assert values == {early.repeat: None, bad.repeat: None, anchor[2].repeat: anchor[2].tpot_mean_s}


def test_of_two_windows_with_one_repeat_the_whole_one_counts(small: Path) -> None:
    base = read_experiment(small).arms[0]
    whole = next(row for row in base.sweep.probes if row.rate_rps == 11.18 and row.repeat == 0)
    early = whole.model_copy(update={"stop": Stop.LOST, "tpot_mean_s": 1.0})
    for rows in ([early, whole], [whole, early]):
        windows = with_rows(base, rows).at(11.18)
        assert windows.whole == (whole,)
        assert not windows.cut


def test_windows_of_different_length_are_no_partners(small: Path) -> None:
    base, other, _ = read_experiment(small).arms
    rows = [
        row.model_copy(update={"window_s": 60.0 if row.repeat == 1 else row.window_s}) for row in other.sweep.probes
    ]
    first, second = paired_values(base, with_rows(other, rows), 11.18, TPOT)
    assert [repeat for repeat in sorted(first) if first[repeat] is None] == [1]
    assert [repeat for repeat in sorted(second) if second[repeat] is None] == [1]


def test_there_is_no_anchor_window_without_an_anchor_rate(small: Path) -> None:
    windows = read_experiment(small).arms[0].at(None)
    assert (windows.whole, windows.cut, windows.invalid) == ((), (), ())


def test_a_smoke_run_is_marked(small: Path) -> None:
    path = small / "arms/moe-tuned/sweep.json"
    change(path, is_smoke=True)
    assert read_experiment(small).mark == "SIMULATED, smoke: not a measurement"
    assert mark_of(()) == ""


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: change(d / "arms/moe-tuned/sweep.json", seed=8), r"is of seed 8, but the experiment wants 7 there"),
        (lambda d: change(d / "arms/moe-tuned/run.json", label="x"), r"is of label 'x', but the experiment wants"),
        (lambda d: change(d / "arms/moe-tuned/run.json", engine="vllm"), r"is of engine 'vllm', but the experiment"),
        (
            lambda d: change(d / "experiment.json", arms=["moe-default", "gone"], drift_arm=None),
            r"gone.*does not exist",
        ),
        (lambda d: change(d / "experiment.json", arms=["../x"], baseline="../x"), r"'\.\./x' is no name of a folder"),
        (lambda d: change(d / "experiment.json", label="a/b"), r"'a/b' is no name of a folder"),
        (lambda d: change(d / "experiment.json", baseline="gone"), r"the baseline 'gone' is not among the arms"),
        (
            lambda d: change(d / "experiment.json", drift_arm="moe-default"),
            r"the drift arm 'moe-default' is not another",
        ),
        (lambda d: change(d / "experiment.json", anchor_rps=0), r"anchor_rps: Input should be greater than 0"),
        (lambda d: (d / "truth.json").write_text("{"), r"truth\.json cannot be read"),
        (
            lambda d: change(d / "experiment.json", arms=["moe-default", "moe-default-2"]),
            r"truth\.json tells of an arm 'moe-tuned' that the experiment does not have",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused_in_one_line(
    small: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(small)
    with pytest.raises(UsageError, match=message) as error:
        read_experiment(small)
    assert "\n" not in str(error.value)


def test_an_experiment_without_a_truth_has_none(small: Path) -> None:
    (small / "truth.json").unlink()
    experiment = read_experiment(small)
    assert experiment.truth is None
    assert experiment.truth_of(experiment.baseline) is None


def test_documents_survive_their_own_files(small: Path, write: Callable[[Mapping[str, Any]], Path]) -> None:
    experiment = read_experiment(small)
    again = read_experiment(write({"experiment.json": experiment.document}))
    assert again.document == experiment.document
