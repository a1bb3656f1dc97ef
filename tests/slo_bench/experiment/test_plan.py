"""A plan is checked as a whole before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_bench.experiment.plan import Plan, read_plan, shown_plan
from traffic.errors import UsageError

ARMS = """
[all]
engine = "simulated"
sweep-start = 6

[[arm]]
label = "old"

[[arm]]
label = "new"
simulated = ["step_time_factor=0.97"]
"""

COMPARE = '[[compare]]\narms = ["old", "new"]\n'


def plan(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "upgrade.toml"
    path.write_text(text)
    return read_plan(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(UsageError) as refused:
        plan(tmp_path, text)
    said = str(refused.value)
    assert "\n" not in said
    assert said.startswith(str(tmp_path / "upgrade.toml"))
    return said


def test_arms_take_what_all_share_and_what_is_their_own(tmp_path: Path) -> None:
    made = plan(tmp_path, ARMS)
    assert [arm.label for arm in made.arms] == ["old", "new", "old-2"]
    assert {arm.options.sweep_start for arm in made.arms} == {6.0}
    assert [arm.options.simulated for arm in made.arms] == [[], ["step_time_factor=0.97"], []]
    assert [arm.options.label for arm in made.arms] == ["old", "new", "old-2"]


def test_the_first_arm_is_repeated_last_unless_the_plan_says_no(tmp_path: Path) -> None:
    assert plan(tmp_path, ARMS).drift_arm == "old-2"
    made = plan(tmp_path, f"drift = false\n{ARMS}")
    assert made.drift_arm is None
    assert [arm.label for arm in made.arms] == ["old", "new"]


def test_its_name_is_the_files_unless_it_says_another(tmp_path: Path) -> None:
    assert (plan(tmp_path, ARMS).label, plan(tmp_path, ARMS).title) == ("upgrade", "upgrade")
    made = plan(tmp_path, f'label = "v"\ntitle = "Two versions"\n{ARMS}')
    assert (made.label, made.title) == ("v", "Two versions")


def test_comparisons_name_arms_and_have_a_design(tmp_path: Path) -> None:
    made = plan(tmp_path, ARMS + '[[compare]]\narms = ["old", "new"]\nrequest-rate = 9\n')
    assert [(each.base, each.other, each.design.request_rate) for each in made.comparisons] == [("old", "new", 9.0)]
    with_repeat = plan(tmp_path, ARMS + '[[compare]]\narms = ["old", "old-2"]\n')
    assert with_repeat.comparisons[0].other == "old-2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no [[arm]]"),
        ("[[arm]\n", "is not TOML"),
        ("speed = 3\n" + ARMS, "speed: unknown key; a plan has label, title, drift, all, arm, compare"),
        (ARMS + "[[arm]]\nsimulated = []\n", "[[arm]] 3: give it a label"),
        (ARMS + '[[arm]]\nlabel = "new"\n', "two arms are called 'new'"),
        (ARMS + '[[arm]]\nlabel = "old-2"\n', "two arms are called 'old-2'"),
        (ARMS + '[[arm]]\nlabel = "x"\nspeed = 1\n', "[[arm]] 3: there is no option 'speed'"),
        (ARMS + '[[arm]]\nlabel = "x"\nseed = 1\n', "seed is the same for all arms"),
        (ARMS + '[[arm]]\nlabel = "x"\nmodel = "m"\n', "[[arm]] 3: --engine simulated takes neither"),
        (ARMS + '[[arm]]\nlabel = "a/b"\n', "[[arm]] 3: label: a label is one name"),
        (ARMS.replace("sweep-start = 6", "sweep-begin = 6"), "[all]: slo-bench sweep has no option 'sweep_begin'"),
        (ARMS.replace("sweep-start = 6", 'sweep-start = "fast"'), "[[arm]] 1: sweep_start: "),
        (ARMS.replace("sweep-start = 6", 'label = "x"'), "label and resume are not for all arms"),
        ('[[arm]]\nlabel = "x"\n', "[[arm]] 1: no engine"),
        ('[[arm]]\nlabel = "x"\nengine = "simulated"\n[[arm]]\nlabel = "y"\nmodel = "m"\n', "simulated and real arms"),
        (ARMS + '[[compare]]\narms = ["old"]\n', "[[compare]] 1: name two arms"),
        (ARMS + '[[compare]]\narms = ["old", "newer"]\n', "there is no arm 'newer'; arms are old, new, old-2"),
        (ARMS + '[[compare]]\narms = ["old", "old"]\n', "an arm is not compared with itself"),
        (ARMS + COMPARE + "rate = 9\n", "[[compare]] 1: slo-bench compare has no option 'rate' of its design"),
        (ARMS + COMPARE + "seed = 9\n", "[[compare]] 1: seed belongs to the arms: put it under [all] or [[arm]]"),
        (ARMS + COMPARE + "model = 9\n", "[[compare]] 1: model belongs to the arms"),
        (ARMS + COMPARE + "blocks = 0\n", "[[compare]] 1: blocks: input should be greater than or equal to 1"),
        (ARMS + COMPARE + "allow_different_models = 1\n", "[[compare]] 1: allow_different_models: give true or false"),
        (ARMS + COMPARE + COMPARE, "[[compare]] 1: new is compared with old more than once"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: No such file"):
        read_plan(tmp_path / "none.toml")


def test_a_plan_is_kept_as_it_was_written_without_the_values_of_secrets(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('label = "x"\n[all]\nbase_url = "http://gpu:8000"\napi_key = "sk-1"\nheader = ["A: b"]\nseed = 3\n')
    shown = shown_plan(path)
    assert "sk-1" not in shown
    assert "A: b" not in shown
    assert shown.splitlines()[:3] == path.read_text().splitlines()[:3]
    assert shown.splitlines()[-1] == "seed = 3"
