from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports import tables
from reports.arms import Arm, read_experiment
from traffic.probe import Stop


@pytest.fixture
def arms(small: Path) -> tuple[Arm, ...]:
    return read_experiment(small).arms[:2]


def settings(first: dict[str, Any], second: dict[str, Any], arms: tuple[Arm, ...]) -> tuple[str | None, str | None]:
    given = {arms[0].label: first, arms[1].label: second}
    return tables.differences(arms, lambda arm: given[arm.label]), tables.common(arms, lambda arm: given[arm.label])


def test_differences_are_told_by_dotted_name_and_the_rest_is_common(arms: tuple[Arm, ...]) -> None:
    differs, shared = settings(
        {"config": {"engine": {"seqs": 1024, "factor": 1.0}, "label": "a", "command": "x"}},
        {"config": {"engine": {"seqs": 1024, "factor": 0.97}, "label": "b", "command": "y", "new": [1, 2]}},
        arms,
    )
    assert differs is not None
    assert differs.splitlines()[2:] == [
        "| `config.engine.factor` | 1.0 | 0.97 |",
        "| `config.new` | not set | \\[1, 2\\] |",
    ]
    assert shared is not None
    assert shared.splitlines()[2:] == ["| `config.engine.seqs` | 1024 |"]


def test_equal_settings_have_no_table_of_differences(arms: tuple[Arm, ...]) -> None:
    assert settings({"a": None}, {"a": None}, arms) == (None, None)


def test_every_window_has_a_row_in_the_order_of_measurement(arms: tuple[Arm, ...]) -> None:
    rows = tables.windows(arms[1]).splitlines()[2:]
    assert len(rows) == len(arms[1].sweep.probes)
    assert [row.split("|")[1].strip(" ~") for row in rows] == [
        f"{probe.rate_rps:.2f}" for probe in arms[1].sweep.probes
    ]


def test_a_closed_loop_shows_its_concurrency_and_an_early_end_its_reason(arms: tuple[Arm, ...]) -> None:
    probe = (
        arms[0]
        .sweep.probes[0]
        .model_copy(update={"rate_rps": None, "concurrency": 16, "stop": Stop.LOST, "objectives": []})
    )
    arm = Arm("x", arms[0].directory, arms[0].run, arms[0].sweep.model_copy(update={"probes": [probe]}), arms[0].engine)
    row = tables.windows(arm).splitlines()[2]
    assert "| 16 in flight |" in row
    assert "pass; ended early: an objective was lost" in row
    assert row.count("| - ") == 2
