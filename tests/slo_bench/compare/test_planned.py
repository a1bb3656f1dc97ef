"""The comparisons of an experiment's plan: checked before it starts, at the anchor rate, into its directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from comparisons import document, pairs
from two_arms import Seen

from reports.effect_document import EffectDocument
from reports.run_directory import EngineDocument, read_document, to_json
from slo_bench.compare.planned import ArmComparison, check_same_comparison, compare_arms, planned_comparisons
from slo_bench.earlier import LATER_STARTS
from slo_bench.experiment.command import ExperimentOptions, experiment
from slo_bench.experiment.plan import read_plan
from slo_bench.store import write_text
from traffic.errors import UsageError
from traffic.virtual_time import run_virtual

PLAN = """
drift = false

[all]
engine = "simulated"
mode = "smoke"
workload = "fixed"
input_tokens = 20
output_tokens = 8
sweep_start = 8
max_request_rate = 10
repeats = 0

[[arm]]
label = "old"

[[arm]]
label = "new"
simulated = ["step_time_factor=0.5"]
"""
COMPARE = '[[compare]]\narms = ["old", "new"]\n'
ATTACHED = """
[all]
text_salt = 100

[[arm]]
label = "old"
base_url = "http://127.0.0.1:1"

[[arm]]
label = "new"
base_url = "http://127.0.0.1:2"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def comparisons(tmp_path: Path, text: str) -> list[ArmComparison]:
    return planned_comparisons(read_plan(written(tmp_path, text)))


def run(tmp_path: Path, text: str, **more: object) -> int:
    options = ExperimentOptions(plan=written(tmp_path, text), runs_dir=tmp_path, **more)
    return run_virtual(experiment(options))


@pytest.mark.process
def test_it_is_measured_at_the_anchor_rate_into_the_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, PLAN + COMPARE + "blocks = 3\n") == 0
    said = capsys.readouterr().err
    assert "then new against old at the anchor rate: 6 blocks, 2 server starts" in said
    folder = tmp_path / "plan" / "compare" / "old--new"
    document = read_document(folder / "effect.json", EffectDocument)
    assert (document.a.label, document.b.label, document.rate_rps) == ("old", "new", 10.0)
    assert document.primary.share is not None
    assert document.primary.share < -0.3
    assert "blocks of 20 s are shorter than the method's 60 s" in document.faults
    assert (folder / "effect.md").read_text().startswith("# SIMULATED: new against old at 10.00 req/s")
    note = (tmp_path / "plan" / "note.md").read_text()
    assert "compare/old--new/effect.md" in note


@pytest.mark.process
def test_a_comparison_that_stays_open_is_exit_code_5(tmp_path: Path) -> None:
    assert run(tmp_path, PLAN + COMPARE + "blocks = 3\nmax_minutes = 2\n") == 5


@pytest.mark.process
def test_one_that_fails_is_told_and_the_experiment_has_its_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = PLAN.replace(
        'label = "new"\nsimulated = ["step_time_factor=0.5"]',
        'label = "new"\nsimulated = ["kv_cache_tokens=90", "max_model_len=90"]',
    )
    assert run(tmp_path, tight + COMPARE + "request_rate = 9\nblocks = 3\n") == 3
    assert "compare/old--new: " in capsys.readouterr().err
    assert (tmp_path / "plan" / "note.md").exists()


@pytest.mark.process
def test_without_an_anchor_rate_nothing_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hopeless = PLAN.replace('mode = "smoke"', 'mode = "smoke"\nslo = ["tpot:p90:0.001"]')
    assert run(tmp_path, hopeless + COMPARE) == 1
    assert "not compared, there is no anchor rate" in capsys.readouterr().err
    assert not (tmp_path / "plan" / "compare").exists()


def test_a_dry_run_tells_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, PLAN + COMPARE + "concurrency = 4\n", dry_run=True) == 0
    assert "then new against old at 4 in flight: 12 blocks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("blocks = 2\n", "--blocks 2: 3 pairs are the fewest"),
        ('placement = "attached"\n', "--placement attached goes with --base-url"),
        ("request_rate = 3\nconcurrency = 4\n", "give either --request-rate"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_starts(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        comparisons(tmp_path, PLAN + COMPARE + more)
    assert str(refused.value).startswith(f"{tmp_path / 'plan.toml'}: [[compare]] 1: ")


def test_arms_of_different_models_are_compared_only_when_that_is_meant(tmp_path: Path) -> None:
    text = ATTACHED.replace('label = "new"', 'label = "new"\nmodel = "m"') + COMPARE
    with pytest.raises(UsageError, match="different models"):
        comparisons(tmp_path, text)
    assert comparisons(tmp_path, text + "allow_different_models = true\n")[0].plan.allow_different_models


def test_running_servers_are_sent_no_text_that_the_arms_had(tmp_path: Path) -> None:
    again = COMPARE.replace('"new"', '"old-2"')
    first, second = comparisons(tmp_path, ATTACHED + COMPARE + again)
    assert (first.first_start, second.first_start) == (3, 5)
    assert [arm.text_salt for arm in first.arms] == [100, 100]
    assert [arm.text_salt for arm in second.arms] == [100, 101]  # one server: the same text never twice


def test_a_comparison_of_another_design_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (planned,) = comparisons(tmp_path, PLAN + COMPARE)
    check_same_comparison(planned, tmp_path)
    made = document(pairs([0.01, 0.02, 0.01]), rate_rps=8.0, design=planned.at(8.0).design())
    write_text(tmp_path / "compare/old--new/effect.json", to_json(made))
    check_same_comparison(planned, tmp_path)
    (longer,) = comparisons(tmp_path, PLAN + COMPARE + "blocks = 7\n")
    with pytest.raises(UsageError, match="compare/old--new cannot be resumed: blocks was 6, is 7"):
        check_same_comparison(longer, tmp_path)
    (patient,) = comparisons(tmp_path, PLAN + COMPARE + "max_minutes = 60\n")
    check_same_comparison(patient, tmp_path)


@pytest.mark.process
def test_a_comparison_of_an_experiment_goes_on_where_it_stood(tmp_path: Path) -> None:
    (planned,) = comparisons(tmp_path, PLAN + COMPARE + "request_rate = 9\nblocks = 4\n")

    class Stopped(Exception):  # noqa: N818 - a kill is no error
        """Nothing is written after it."""

    class Stopping(Seen):
        def progress(self, *_: object) -> None:
            if self.bracket.startswith("pair 3"):
                raise Stopped

    with pytest.raises(Stopped):
        run_virtual(compare_arms(planned, None, tmp_path, Stopping()))
    path = tmp_path / planned.folder / "effect.json"
    kept = read_document(path, EffectDocument)
    assert len(kept.pairs) == 2
    made = run_virtual(compare_arms(planned, None, tmp_path, Seen(), goes_on=True))
    assert made.pairs[:2] == kept.pairs
    assert (len(made.pairs), made.outcome, made.starts_per_arm) == (4, "concluded", 2)
    told = Seen()
    assert run_virtual(compare_arms(planned, None, tmp_path, told, goes_on=True)) == made
    assert not any("goes on" in line for line in told.lines)
    text_starts = [
        read_document(path.parent / "starts" / name / "engine.json", EngineDocument).start for name in ("A-1", "A-2")
    ]
    assert text_starts == [planned.first_start, planned.first_start + LATER_STARTS + 2]
