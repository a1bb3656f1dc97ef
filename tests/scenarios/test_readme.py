"""What the README shows is what the program prints. SLO_BENCH_GOLDEN=write refreshes it; read the diff."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from slo_bench.cli import COMMANDS, main
from slo_bench.options import parser

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"(<!-- output: (?P<command>[^\n]*) -->\n```text\n)(?P<shown>.*?)(\n```)", re.DOTALL)


COMMANDS_SHOWN = [found["command"] for found in BLOCK.finditer(README.read_text())]


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS_SHOWN)
def test_the_output_in_the_readme_is_the_programs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = README.read_text()
    block = next(found for found in BLOCK.finditer(text) if found["command"] == command)
    words = shlex.split(command)[1:]
    monkeypatch.chdir(README.parent if words[0] == "report" else tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(words) == 0
    shown = capsys.readouterr()
    printed = "\n".join(line.rstrip() for line in (shown.err + shown.out).strip().splitlines())
    if os.environ.get("SLO_BENCH_GOLDEN") == "write":
        README.write_text(text[: block.start("shown")] + printed + text[block.end("shown") :])
    else:
        assert block["shown"] == printed


def test_it_shows_a_session_and_a_sweep() -> None:
    assert [shlex.split(command)[1] for command in COMMANDS_SHOWN] == ["report", "sweep"]


def test_every_command_and_flag_that_the_readme_names_exists() -> None:
    known = {"--help", "--version"}
    for name, command in COMMANDS.items():
        known |= set(parser(command.find()[0], name, "")._option_string_actions)
    lines = [line for line in README.read_text().splitlines() if "slo-bench " in line or line.startswith("`--")]
    for line in lines:
        ours = line.partition(" -- ")[0]
        for word in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", ours):
            assert word in known, line
    for name in re.findall(r"^ {4}slo-bench ((?:cloud )?[a-z]+)", README.read_text(), re.MULTILINE):
        assert name in COMMANDS
