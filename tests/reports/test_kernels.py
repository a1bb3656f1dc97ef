from __future__ import annotations

import json
from pathlib import Path

import pytest
from note_scenarios import kernels

from reports.kernels import read_kernels, typical
from reports.run_directory import to_json
from traffic.errors import UsageError


def test_routings_stay_apart_and_sizes_ascend(tmp_path: Path) -> None:
    (tmp_path / "kernels.json").write_text(to_json(kernels()))
    read = read_kernels(tmp_path)
    assert read is not None
    assert read.routings == ["uniform", "concentrated"]
    assert read.changes("uniform") == pytest.approx({1: -0.13, 64: -0.10, 128: -0.07, 1024: -0.03})
    assert read.gains("concentrated")[128] == pytest.approx(-0.10)
    assert typical(list(read.changes("uniform").values())) == pytest.approx(-0.085)


def test_what_a_later_version_adds_is_passed_over(tmp_path: Path) -> None:
    document = json.loads(to_json(kernels()))
    document["clocks"] = [1980]
    document["rows"][0]["rank"] = 3
    (tmp_path / "kernels.json").write_text(json.dumps(document))
    assert read_kernels(tmp_path) == kernels()


def test_kernels_that_were_not_timed_are_none(tmp_path: Path) -> None:
    assert read_kernels(tmp_path) is None
    assert typical([]) is None


def test_a_time_of_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    document = json.loads(to_json(kernels()))
    document["rows"][0]["after_s"] = 0
    (tmp_path / "kernels.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"kernels.json cannot be read: rows.0.after_s") as caught:
        read_kernels(tmp_path)
    assert "\n" not in str(caught.value)
