"""The machine's own file holds whatever a run's environment says; a fault in it is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_bench.bare_run.machine_file import MachineFile, read_machine_file
from traffic.errors import UsageError

WHOLE = """\
engine = "simulated"
simulated = ["step_time_factor=1.1"]
tune = { batch_size = ["1", "64"] }
python = "/opt/venv/bin/python"
"""


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / ".config" / "slo-bench" / "machine.toml"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    return path


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def test_without_the_file_it_is_vllm() -> None:
    found = read_machine_file()
    assert found == MachineFile()
    assert (found.engine, found.is_simulated, found.python) == ("vllm", False, None)


def test_it_is_read_from_the_home_of_whoever_runs(tmp_path: Path) -> None:
    written(tmp_path, WHOLE)
    found = read_machine_file()
    assert found.is_simulated
    assert found.simulated == ["step_time_factor=1.1"]
    assert found.tune == {"batch_size": ["1", "64"]}
    assert found.python == "/opt/venv/bin/python"


def test_every_key_may_be_left_out(tmp_path: Path) -> None:
    written(tmp_path, "")
    assert read_machine_file() == MachineFile()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('speed = "high"\n', "speed: unknown key; keys are engine, simulated, tune, python"),
        ('engine = "magic"\n', "engine: input should be 'vllm' or 'simulated'"),
        ('simulated = "a=1"\n', "simulated: input should be a valid list"),
        ("engine = \n", "is not TOML: "),
    ],
)
def test_a_fault_is_one_line_that_names_the_file_and_the_key(tmp_path: Path, content: str, said: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UsageError) as refused:
        read_machine_file()
    assert str(refused.value).startswith(str(path))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_cannot_be_read_is_refused_and_not_taken_for_none(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read: it is not UTF-8 text"):
        read_machine_file()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_machine_file(tmp_path)
