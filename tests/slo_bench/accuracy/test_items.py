"""Reading the items: rows in their own order, one line for what is no such set."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gates.gsm8k import Item, items_sha256
from slo_bench.accuracy.items import ItemSet, items_from, load_items
from traffic.errors import UsageError

ROWS = [{"question": "How many?", "answer": "2 + 1 = 3\n#### 3"}, {"question": "How much?", "answer": "#### 1,005"}]
ITEMS = (Item(0, "How many?", Fraction(3)), Item(1, "How much?", Fraction(1005)))
LINES = '{"question": "How many?", "answer": "2 + 1 = 3\\n#### 3"}\n{"question": "How much?", "answer": "#### 1,005"}\n'


def test_rows_are_items_in_their_own_order() -> None:
    assert items_from(ROWS, "ours") == ITEMS


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({}, "row 3 has no question and answer"),
        ({"question": "How long?"}, "row 3 has no question and answer"),
        ({"question": " ", "answer": "3"}, "row 3 has no question and answer"),
        (
            {"question": "How long?", "answer": "#### three"},
            "row 3: the answer ends in '#### three', which is no number",
        ),
    ],
)
def test_a_row_that_is_no_item_is_told_with_the_way_out(row: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError) as caught:
        items_from([*ROWS, row], "ours")
    assert str(caught.value) == f"ours: {fault}; give a file of rows with question and answer as --gsm8k-file"


def test_no_rows_are_no_items() -> None:
    with pytest.raises(UsageError, match="ours has no items"):
        items_from([], "ours")


def test_a_file_that_is_absent_or_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for name in ("absent.jsonl", "empty.jsonl"):
        with pytest.raises(UsageError, match=rf"--gsm8k-file .*{name} does not exist or is empty"):
            load_items(tmp_path / name)


@pytest.mark.process
def test_a_file_is_read_through_the_library(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(LINES)
    assert load_items(file) == ItemSet(ITEMS, "items.jsonl", items_sha256(ITEMS))
    assert load_items(file, count=1) == ItemSet(ITEMS[:1], "items.jsonl", items_sha256(ITEMS[:1]))


@pytest.mark.process
@pytest.mark.parametrize("content", ["question,answer\n1,2\n", '{"question": "a"'])
def test_a_file_of_something_else_is_told_in_one_line(
    tmp_path: Path, content: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"--gsm8k-file .*items\.jsonl is no file of JSON lines: [^\n]+$"):
        load_items(file)
    assert capfd.readouterr() == ("", "")


@pytest.mark.process
def test_a_hub_that_cannot_be_reached_is_told_in_one_line_that_names_the_way_out(tmp_path: Path) -> None:
    program = (
        "from slo_bench.accuracy.items import load_items\n"
        "from traffic.errors import UsageError\n"
        "try:\n"
        "    load_items()\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        cwd=Path(__file__).parents[3],
    )
    assert done.stderr == ""
    assert done.stdout.startswith("cannot get openai/gsm8k: ")
    assert done.stdout.endswith("; give a file of rows with question and answer as --gsm8k-file\n")
    assert done.stdout.count("\n") == 1
