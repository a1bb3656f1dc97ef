"""Every command of the tutorial and the command reference is one that the program accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slo_bench.cli import COMMANDS, main
from slo_bench.options import load

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
LINES = [line.partition("#")[0].strip() for line in re.findall(r"^ {4}(slo-bench .*)$", TUTORIAL, re.MULTILINE)]


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_tutorial_is_accepted(line: str) -> None:
    name, *words = shlex.split(line)[1:]
    load(COMMANDS[name].find()[0], words, prog="slo-bench", description="", command=name)


def test_its_dry_run_says_what_will_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = next(line for line in LINES if "--dry-run" in line)
    assert main(shlex.split(line)[1:]) == 0
    assert "windows of 120 s" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["tutorial.md", "commands.md"])
def test_what_it_links_to_exists(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)", (ROOT / "docs" / page).read_text()):
        assert (ROOT / "docs" / target).exists(), target


def test_the_plans_that_it_names_exist() -> None:
    for plan in re.findall(r"examples/\w+\.toml", TUTORIAL):
        assert (ROOT / plan).exists(), plan
