"""The bare names become the options of one command; a mistake is one line with the name that was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_of_two import PLAN

from slo_bench.bare_run.machine_file import MachineFile
from slo_bench.bare_run.names import DETAILS, EXPERIMENT, KNOWN, SWEEP, TUNE
from slo_bench.bare_run.translation import Meant, Tuning, meant
from slo_bench.config import SweepOptions
from slo_bench.experiment.command import ExperimentOptions
from traffic.errors import UsageError

MODEL = "Qwen/Qwen3-30B-A3B-FP8"
REAL = MachineFile()
SIMULATED = MachineFile(engine="simulated")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def sweep(**names: str) -> tuple[SweepOptions, Meant]:
    found = meant({"MODEL": MODEL, **names}, REAL)
    assert isinstance(found.options, SweepOptions)
    return found.options, found


def tuning(machine: MachineFile = SIMULATED, **names: str) -> tuple[Tuning, Meant]:
    found = meant({"MODEL": MODEL, "TUNE_MOE": "1", **names}, machine)
    assert isinstance(found.options, Tuning)
    return found.options, found


def refusal(machine: MachineFile = REAL, **names: str) -> str:
    with pytest.raises(UsageError) as refused:
        meant(names, machine)
    said = str(refused.value)
    assert "\n" not in said
    return said


SWEEP_CASES: list[tuple[str, str, Any]] = [
    ("MODE", "smoke", "smoke"),
    ("LABEL", "moe-default", "moe-default"),
    ("RUNS_DIR", "elsewhere", Path("elsewhere")),
    ("SWEEP_START", "8", 8.0),
    ("SWEEP_GROWTH", "1.5", 1.5),
    ("MAX_REQUEST_RATE", "40", 40.0),
    ("MAX_MINUTES", "30", 30.0),
    ("SEED", "7", 7),
    ("WORKLOAD", "multi-turn", "multi-turn"),
    ("LENGTH_SCALE", "1.2", 1.2),
    ("TTFT_P99_MS", "1500", 1500.0),
    ("TPOT_P99_MS", "40", 40.0),
    ("GATE", "none", "none"),
    ("GSM8K_FILE", "items.jsonl", Path("items.jsonl")),
    ("USD_PER_HOUR", "3.29", 3.29),
    ("MIN_DRIVER", "580.95.05", "580.95.05"),
    ("TUNED_MOE_DIR", "tuned", Path("tuned")),
    ("VLLM_PYTHON", "/opt/vllm/bin/python", Path("/opt/vllm/bin/python")),
]


@pytest.mark.parametrize(("name", "given", "value"), SWEEP_CASES, ids=[name for name, *_ in SWEEP_CASES])
def test_each_name_of_a_sweep_is_the_option_of_that_name(name: str, given: str, value: Any) -> None:
    options, found = sweep(**{name: given})
    assert getattr(options, SWEEP[name]) == value
    assert options.model == found.model == MODEL
    assert f"--{SWEEP[name].replace('_', '-')}={given}" in found.words


def test_the_cases_are_all_names_of_a_sweep_and_the_help_tells_every_name() -> None:
    assert {name for name, *_ in SWEEP_CASES} | {"MODEL"} == set(SWEEP)
    for name in frozenset().union(*KNOWN.values()):
        assert name in DETAILS


def test_words_for_the_server_are_split_as_a_shell_would() -> None:
    options, _ = sweep(VLLM_ARGS="""--max-num-seqs 64 --override '{"a": 1}'""")
    assert options.vllm_arg == ["--max-num-seqs", "64", "--override", '{"a": 1}']


def test_an_empty_value_is_none_and_blanks_around_one_are_nothing() -> None:
    options, _ = sweep(LABEL="", SWEEP_START=" ", MODE=" smoke ", TUNE_MOE="0")
    assert (options.label, options.sweep_start, options.mode) == (None, 8.0, "smoke")


def test_a_home_is_meant_wherever_a_path_begins_with_a_tilde(tmp_path: Path) -> None:
    options, found = sweep(TUNED_MOE_DIR="~/moe-tuned", GSM8K_FILE="~/items.jsonl", VLLM_PYTHON="~/v/bin/python")
    assert options.tuned_moe_dir == found.tuned_dir == tmp_path / "moe-tuned"
    assert options.gsm8k_file == tmp_path / "items.jsonl"
    assert options.vllm_python == tmp_path / "v" / "bin" / "python"


def test_a_sweep_goes_on_only_where_one_has_begun(tmp_path: Path) -> None:
    assert not sweep(LABEL="a", RESUME="1")[0].resume
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").touch()
    assert sweep(LABEL="a", RESUME="1")[0].resume
    assert not sweep(LABEL="a", RESUME="0")[0].resume


def test_a_machine_that_simulates_takes_what_is_for_a_server_and_says_so() -> None:
    machine = MachineFile(engine="simulated", simulated=["step_time_factor=1.1"])
    names = {"MODEL": MODEL, "MIN_DRIVER": "580", "VLLM_ARGS": "--enforce-eager", "MODE": "smoke"}
    found = meant(names, machine)
    assert isinstance(found.options, SweepOptions)
    assert found.options.engine_kind() == "simulated"
    assert found.options.simulated == ["step_time_factor=1.1"]
    (note,) = found.notes
    assert note.startswith("[SIMULATED] ")
    assert "MODEL, MIN_DRIVER, VLLM_ARGS" in note


TUNE_CASES: list[tuple[str, str, Any]] = [("TUNE_MINUTES", "150", 150.0), ("SEED", "3", 3)]


@pytest.mark.parametrize(("name", "given", "value"), TUNE_CASES)
def test_each_name_of_a_search_is_the_option_of_that_name(name: str, given: str, value: Any) -> None:
    assert getattr(tuning(**{name: given})[0].options, TUNE[name]) == value


def test_a_search_works_in_its_run_directory_and_its_file_goes_where_servers_look(tmp_path: Path) -> None:
    made, found = tuning(LABEL="moe-tuning")
    assert made.directory == Path("runs/moe-tuning")
    assert made.options.output == Path("runs/moe-tuning/tuned")
    assert made.target == tmp_path / "moe-tuned"
    assert made.options.simulated
    assert found.words[0] == "tune"
    assert tuning(TUNED_MOE_DIR="there")[0].target == Path("there")
    assert tuning(RUNS_DIR="r")[0].directory == Path("r/tune-1")


def test_a_search_on_a_real_machine_reads_the_models_own_layer_and_keeps_the_driver(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    made, _ = tuning(REAL, MODEL="~/model", MIN_DRIVER="580", VLLM_PYTHON="/v/bin/python")
    assert made.options.model == str(tmp_path / "model" / "config.json")
    assert (made.min_driver, made.options.vllm_python) == ("580", Path("/v/bin/python"))
    assert not made.options.simulated


def test_options_that_the_machine_has_for_every_search_hold() -> None:
    machine = MachineFile(engine="simulated", tune={"batch-size": ["1", "64"]})
    assert tuning(machine)[0].options.batch_size == ["1", "64"]
    for key in ("speed", "output"):
        said = refusal(MachineFile(engine="simulated", tune={key: "1"}), MODEL=MODEL, TUNE_MOE="1")
        assert said == f"machine.toml: tune: there is no option '{key}' of slo-bench tune there"


def test_a_plan_is_an_experiment_and_a_machine_that_simulates_rehearses_it(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    names = {"PLAN": "~/plan.toml", "MODE": "quick", "GATE": "none", "GSM8K_FILE": "items", "RUNS_DIR": "r"}
    for machine, is_rehearsed in ((REAL, False), (SIMULATED, True)):
        found = meant(names, machine)
        options = found.options
        assert isinstance(options, ExperimentOptions)
        assert options.plan == tmp_path / "plan.toml"
        assert (options.mode, options.gate, options.gsm8k_file) == ("quick", "none", Path("items"))
        assert options.runs_dir == Path("r")
        assert options.rehearse is is_rehearsed
        assert any("rehearsed" in note for note in found.notes) is is_rehearsed
        assert set(EXPERIMENT) == set(names)


def test_a_plan_goes_on_only_where_it_has_begun(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    names = {"PLAN": "plan.toml", "RESUME": "1"}
    assert "--resume" not in meant(names, SIMULATED).words
    (tmp_path / "runs" / "two-arms" / "arms").mkdir(parents=True)
    found = meant(names, SIMULATED)
    assert isinstance(found.options, ExperimentOptions)
    assert found.options.resume
    assert found.words[-1] == "--resume"


@pytest.mark.parametrize("machine", [REAL, SIMULATED], ids=["real", "simulated"])
@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"TUNE_MOE": "yes"}, "TUNE_MOE: give 1 or 0 (given: yes)"),
        ({"LABEL": "a b"}, "LABEL: a label is one name of letters"),
        ({"LABEL": "../a"}, "LABEL: a label is one name of letters"),
        ({"LABEL": "a b", "TUNE_MOE": "1"}, "LABEL: a label is one name of letters"),
        ({"SWEEP_START": "x"}, "SWEEP_START: "),
        ({"MODE": "fast"}, "MODE: "),
        ({"SEED": "-1"}, "SEED: "),
        ({"MAX_MINUTES": "0"}, "MAX_MINUTES: "),
        ({"WORKLOAD": "poems"}, "WORKLOAD: "),
        ({"GATE": "maybe"}, "GATE: "),
        ({"MIN_DRIVER": "abc"}, "MIN_DRIVER: give a version like 580"),
        ({"MIN_DRIVER": "abc", "TUNE_MOE": "1"}, "MIN_DRIVER: give a version like 580"),
        ({"TUNE_MINUTES": "5"}, "TUNE_MINUTES would change nothing: it belongs to TUNE_MOE=1"),
        ({"TUNE_MINUTES": "5", "TUNE_MOE": "0"}, "TUNE_MINUTES would change nothing: it belongs to TUNE_MOE=1"),
        ({"SWEEP_START": "8", "MODE": "quick", "TUNE_MOE": "1"}, "MODE, SWEEP_START would change nothing"),
        ({"PLAN": "p.toml"}, "MODEL would change nothing: PLAN names a file that says it"),
        ({"PLAN": "p.toml", "TUNE_MOE": "1"}, "TUNE_MOE=1 and PLAN: one of them"),
        ({"RESUME": "maybe"}, "RESUME: give 1 or 0 (given: maybe)"),
    ],
)
def test_a_mistake_is_one_line_that_begins_with_the_bare_name(
    machine: MachineFile, names: dict[str, str], said: str
) -> None:
    assert refusal(machine, MODEL=MODEL, **names).startswith(said)


def test_a_budget_that_is_no_time_is_told_under_its_bare_name() -> None:
    for minutes in ("0", "soon", "nan"):
        assert refusal(SIMULATED, MODEL=MODEL, TUNE_MOE="1", TUNE_MINUTES=minutes).startswith("TUNE_MINUTES: ")


def test_without_a_model_nothing_is_served_or_tuned() -> None:
    assert refusal().startswith("MODEL: name the model that vLLM serves")
    assert refusal(SIMULATED, TUNE_MOE="1").startswith("MODEL: name the model whose MoE kernels are tuned")


def test_words_for_the_server_that_no_shell_could_split_are_refused() -> None:
    assert refusal(MODEL=MODEL, VLLM_ARGS="--a 'b").startswith("VLLM_ARGS: no closing quotation")


def test_a_model_that_is_not_to_be_had_is_told_before_a_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slo_bench.bare_run.translation.config_of", lambda *_, **__: None)
    assert refusal(MODEL=str(tmp_path / "none"), TUNE_MOE="1").startswith("MODEL: the config.json of ")
