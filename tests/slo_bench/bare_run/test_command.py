"""`slo-bench run` from the outside: what the environment asks for is done, and a mistake is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_of_two import PLAN

from reports.run_directory import RunDocument, read_document
from reports.tuning_document import TUNING_NAME, read_tuning
from slo_bench.bare_run.names import KNOWN
from slo_bench.cli import main

MODEL = "Qwen/Qwen3-30B-A3B-FP8"
FILE = "E=128,N=768,device_name=SIMULATED_GPU,dtype=fp8_w8a8,block_shape=[128,128].json"
MACHINE = 'engine = "simulated"\ntune = { batch_size = ["64"] }\n'


class Shell:
    """A machine's home and an environment; `run` is the command there: its exit code and its lines."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._patch, self._capsys = patch, capsys
        patch.setenv("HOME", str(home))
        patch.chdir(home)
        self.simulates()

    @property
    def machine_file(self) -> Path:
        return self.home / ".config" / "slo-bench" / "machine.toml"

    def simulates(self, content: str = MACHINE) -> None:
        self.machine_file.parent.mkdir(parents=True, exist_ok=True)
        self.machine_file.write_text(content)

    def run(self, **names: str) -> tuple[int, list[str]]:
        for name in frozenset().union(*KNOWN.values()):
            self._patch.delenv(name, raising=False)
        for name, value in names.items():
            self._patch.setenv(name, value)
        self._capsys.readouterr()
        code = main(["run"])
        said = self._capsys.readouterr()
        return code, [*said.out.splitlines(), *said.err.splitlines()]

    def kind(self, label: str) -> tuple[str, str]:
        document = read_document(self.home / "runs" / label / "run.json", RunDocument)
        return document.kind, document.status


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


def test_a_sweep_of_the_published_names_leaves_a_run_directory_that_says_simulated(shell: Shell) -> None:
    code, said = shell.run(MODEL=MODEL, MODE="smoke", LABEL="moe-default", SWEEP_START="8", MIN_DRIVER="580")
    assert code == 0
    assert shell.kind("moe-default") == ("sweep", "done")
    assert all(line.startswith("[SIMULATED] ") for line in said)
    config = read_document(shell.home / "runs" / "moe-default" / "run.json", RunDocument).config
    assert config["sweep_start"] == 8.0
    assert config["command"][:2] == ["slo-bench", "sweep"]


def test_a_run_whose_tuned_folder_lacks_the_file_is_skipped_in_one_line(shell: Shell) -> None:
    code, said = shell.run(MODEL=MODEL, MODE="smoke", LABEL="moe-tuned", TUNED_MOE_DIR="~/moe-tuned")
    assert code == 6
    folder = shell.home / "moe-tuned"
    assert said[1:] == [f"skipped: TUNED_MOE_DIR {folder} holds no tuned file: tune it first: TUNE_MOE=1"]
    assert not (shell.home / "runs").exists()


def test_a_search_places_its_file_for_the_sweep_that_follows_and_both_leave_run_directories(shell: Shell) -> None:
    code, said = shell.run(MODEL=MODEL, TUNE_MOE="1", TUNE_MINUTES="2", LABEL="moe-tuning")
    assert code == 0
    assert all(line.startswith("[SIMULATED] ") for line in said)
    assert (shell.home / "moe-tuned" / FILE).is_file()
    assert shell.kind("moe-tuning") == ("tune", "done")
    directory = shell.home / "runs" / "moe-tuning"
    document = read_tuning(directory).document
    assert (document.label, document.is_simulated) == ("moe-tuning", True)
    assert document.minutes is not None
    assert 0 < document.minutes <= 2.5
    assert document.placed_in == str(shell.home / "moe-tuned")
    assert (directory / document.file).read_text() == (shell.home / "moe-tuned" / FILE).read_text()
    assert all((directory / name).is_file() for name in (document.journal, *document.checksums))

    code, _ = shell.run(MODEL=MODEL, MODE="smoke", LABEL="moe-tuned", TUNED_MOE_DIR="~/moe-tuned")
    assert code == 0
    assert shell.kind("moe-tuned") == ("sweep", "done")
    kept = shell.home / "runs" / "moe-tuned" / "kernels.json"
    assert kept.read_text() == (directory / "kernels.json").read_text()

    code, said = shell.run(MODEL=MODEL, TUNE_MOE="1", LABEL="moe-tuning")
    assert code == 2
    assert "moe-tuning" in said[-1]

    (directory / TUNING_NAME).unlink()
    (shell.home / "moe-tuned" / FILE).unlink()
    code, _ = shell.run(MODEL=MODEL, TUNE_MOE="1", TUNE_MINUTES="2", LABEL="moe-tuning", RESUME="1")
    assert code == 0
    assert (directory / TUNING_NAME).is_file()
    assert (shell.home / "moe-tuned" / FILE).is_file()


def test_a_sweep_that_was_begun_goes_on_with_resume_and_is_refused_without(shell: Shell) -> None:
    names = {"MODEL": MODEL, "MODE": "smoke", "LABEL": "a"}
    code, whole = shell.run(**names, RESUME="1")
    assert (code, shell.kind("a")) == (0, ("sweep", "done"))
    assert shell.run(**names)[0] == 2
    directory = shell.home / "runs" / "a"
    before = (directory / "sweep.json").read_text()
    code, again = shell.run(**names, RESUME="1")
    assert code == 0
    assert len(again) < len(whole)
    assert (directory / "sweep.json").read_text() == before


def test_a_plan_is_rehearsed_and_leaves_its_note(shell: Shell) -> None:
    (shell.home / "plan.toml").write_text(PLAN)
    code, said = shell.run(PLAN="~/plan.toml")
    assert code == 0
    assert said[0].endswith("the plan is rehearsed")
    assert "SIMULATED" in (shell.home / "runs" / "two-arms" / "note.md").read_text()
    assert shell.run(PLAN="~/plan.toml")[0] == 2
    assert shell.run(PLAN="~/plan.toml", RESUME="1")[0] == 0


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"TUNE_MOE": "yes"}, "TUNE_MOE: "),
        ({"LABEL": "a b"}, "LABEL: "),
        ({"SWEEP_START": "x"}, "SWEEP_START: "),
        ({"MIN_DRIVER": "abc"}, "MIN_DRIVER: "),
        ({"MIN_DRIVER": "abc", "TUNE_MOE": "1"}, "MIN_DRIVER: "),
        ({"TUNE_MINUTES": "5"}, "TUNE_MINUTES would change nothing"),
        ({"PLAN": "none.toml", "MODEL": ""}, "none.toml"),
    ],
)
def test_a_mistake_is_exit_2_and_one_line_with_the_bare_name(shell: Shell, names: dict[str, str], said: str) -> None:
    code, lines = shell.run(**{"MODEL": MODEL, "MODE": "", **names})
    assert code == 2
    (line,) = lines
    assert line.startswith("slo-bench: ")
    assert said in line
    assert sorted(path.name for path in shell.home.iterdir()) == [".config"]


def test_an_unknown_key_in_the_machines_own_file_is_exit_2_and_one_line(shell: Shell) -> None:
    shell.simulates('engine = "simulated"\nspeed = 3\n')
    code, lines = shell.run(MODEL=MODEL, MODE="smoke")
    assert code == 2
    assert lines == [
        f"slo-bench: {shell.machine_file}: speed: unknown key; keys are engine, simulated, tune, python",
    ]


def test_without_a_model_and_without_a_file_of_the_machine_it_is_exit_2(shell: Shell) -> None:
    shell.machine_file.unlink()
    code, lines = shell.run()
    assert code == 2
    assert lines == ["slo-bench: MODEL: name the model that vLLM serves, like MODEL=Qwen/Qwen3-30B-A3B-FP8"]


def test_the_help_tells_the_names_and_the_program_takes_no_other_words(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--help"])
    assert caught.value.code == 0
    assert "TUNED_MOE_DIR" in capsys.readouterr().out
    assert main(["run", "--model", MODEL]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (shell.home / "runs").exists()
