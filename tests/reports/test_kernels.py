from __future__ import annotations

import json
from pathlib import Path

import pytest
from note_scenarios import kernels

from reports.figures_spent import kernels_figure
from reports.kernels import KernelConditions, KernelsDocument, KernelTime, read_kernels, typical
from reports.run_directory import to_json
from reports.sections.kernels import card_line
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


def test_a_file_with_times_alone_is_read_and_one_with_nothing_is_refused(tmp_path: Path) -> None:
    time = {"tokens": 8, "routing": "uniform", "source": "heuristic", "entry": {}, "median_s": 2.0}
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({"times": [{**time, "times_s": [1.0, 2.0, 2.0, 3.0, 2.0]}]}))
    read = read_kernels(tmp_path)
    assert read is not None
    assert (read.rows, read.routings, read.times[0].spread_share) == ([], [], 0.0)
    path.write_text(json.dumps({"rows": []}))
    with pytest.raises(UsageError, match="both empty"):
        read_kernels(tmp_path)


def test_what_is_known_of_the_card_is_said_and_what_is_not_too() -> None:
    said = card_line(
        KernelConditions(sm_clock_median_mhz=1980.0, temperature_max_c=61, held_down={"software power cap": 0.4})
    )
    assert said == (
        "Meanwhile the card's clock was 1,980 MHz (median), its temperature at most 61 °C; held down by: software "
        "power cap 40.0 %."
    )
    assert "held down by: nothing." in card_line(KernelConditions(held_down={}))
    assert "held down by: not told." in card_line(KernelConditions())
    for unknown in (None, KernelConditions(not_measured="no driver")):
        assert "not measured" in card_line(unknown)


def test_times_without_a_change_make_an_empty_figure() -> None:
    time = KernelTime(tokens=8, routing="uniform", source="heuristic", entry={}, median_s=1e-4)
    figure = kernels_figure({"default": KernelsDocument(times=[time])}, mark="")
    assert figure.axes[0].get_legend() is None
