"""A journal survives a kill at any byte, and is not taken for another search's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tuning_journal import (
    Begun,
    CompiledLine,
    FinalLine,
    FinalRow,
    Journal,
    TimedLine,
    TimedRow,
    numbers,
    read_journal,
)
from traffic.errors import UsageError

ABOUT = {"shape": "E=128,N=768", "device": "NVIDIA H200"}
CONFIG = KernelConfig(16, 64, 128, 1, 4, 3)
LINES = (
    Begun(about=ABOUT),
    CompiledLine(spent_s=1.0, config=numbers(CONFIG), took_s=0.5),
    TimedLine(
        spent_s=2.0,
        tokens=64,
        routing="uniform",
        rung=0,
        rows=(TimedRow(config=numbers(CONFIG), times_s=(1.5e-4,)), TimedRow(config=numbers(CONFIG), times_s=())),
    ),
    FinalLine(
        spent_s=3.0,
        tokens=64,
        is_confirmation=False,
        rows=(FinalRow(config=numbers(CONFIG), times_s={"uniform": (1e-4, 2e-4)}, relative_error=0.01),),
    ),
)


def written(path: Path) -> bytes:
    with Journal(path) as journal:
        for line in LINES:
            journal.append(line)
    return path.read_bytes()


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuning.jsonl"
    written(path)
    assert read_journal(path, ABOUT) == LINES
    assert KernelConfig(*numbers(CONFIG)) == CONFIG
    assert read_journal(tmp_path / "none", ABOUT) == ()


@settings(max_examples=40)
@given(st.data())
def test_a_kill_at_any_byte_loses_the_torn_line_alone(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "tuning.jsonl"
    content = written(path)
    kept = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:kept])
    whole = content[:kept].count(b"\n")
    assert read_journal(path, ABOUT) == LINES[:whole]
    with Journal(path) as journal:
        journal.append(LINES[-1])
    assert path.read_bytes().count(b"\n") == whole + 1
    if whole:
        assert read_journal(path, ABOUT) == (*LINES[:whole], LINES[-1])


@pytest.mark.parametrize(
    "about", [{**ABOUT, "device": "NVIDIA H100"}, {"shape": "E=128,N=768"}, {**ABOUT, "rank": "1"}]
)
def test_another_shape_version_or_device_is_refused(tmp_path: Path, about: dict[str, str]) -> None:
    written(tmp_path / "tuning.jsonl")
    with pytest.raises(UsageError, match="is of another search"):
        read_journal(tmp_path / "tuning.jsonl", about)


@pytest.mark.parametrize(
    "content", [b"no json\n", b'{"kind": "other"}\n', b'{"kind":"begun","schema_version":99,"about":{}}\n']
)
def test_what_is_no_journal_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tuning.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="line 1") as refused:
        read_journal(path, ABOUT)
    assert "\n" not in str(refused.value)


def test_a_journal_without_its_first_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tuning.jsonl"
    path.write_bytes(written(path).partition(b"\n")[2])
    with pytest.raises(UsageError, match="does not begin"):
        read_journal(path, ABOUT)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        Journal(tmp_path / "file" / "tuning.jsonl")
