"""The command reference is made from the program. SLO_BENCH_GOLDEN=write refreshes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slo_bench.cli import COMMANDS
from slo_bench.options import flag
from slo_bench.reference import reference

DOCS = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


@pytest.fixture(scope="module")
def text() -> str:
    return reference()


def test_the_reference_in_docs_is_the_programs(text: str) -> None:
    if os.environ.get("SLO_BENCH_GOLDEN") == "write":
        DOCS.write_text(text)
    assert DOCS.read_text() == text


def test_it_names_every_command_and_every_option(text: str) -> None:
    for name, command in COMMANDS.items():
        section = text.partition(f"## slo-bench {name}\n")[2].partition("\n## ")[0]
        assert command.summary in section.replace("\\", "")
        for field_name, field in command.find()[0].model_fields.items():
            extra = field.json_schema_extra
            is_positional = isinstance(extra, dict) and extra.get("is_positional")
            assert (str(extra["metavar"]) if is_positional else flag(field_name)) in section
