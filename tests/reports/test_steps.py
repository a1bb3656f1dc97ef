from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reports.arms import Arm, read_arm
from reports.metrics import read_metrics, write_metrics
from reports.steps import step_sizes, steps_at
from traffic.server_facts import Histogram


@pytest.fixture
def arm(scenario: Callable[[str], Path]) -> Arm:
    return read_arm(scenario("real_effect") / "arms" / "moe-default", "moe-default")


def test_the_steps_of_all_whole_windows_of_a_rate_count_together(arm: Arm) -> None:
    steps = steps_at(arm, 11.18)
    assert steps is not None
    assert steps.mean == pytest.approx(78.0)
    assert steps.count == pytest.approx(3 * 145 * 25, rel=0.02)
    assert steps.quantile_bounds(0.45) == (16.0, 64.0)


def test_a_window_without_counts_leaves_the_rate_without_an_answer(arm: Arm) -> None:
    path = arm.directory / "metrics.parquet"
    begin_s = read_metrics(path).samples[0].utc_s
    write_metrics(path, [each for each in read_metrics(path).samples if each.utc_s < begin_s + 900])
    assert steps_at(arm, 11.18) is None
    assert steps_at(arm, 8.0) is not None


def test_a_server_that_tells_nothing_has_no_steps(arm: Arm) -> None:
    path = arm.directory / "metrics.parquet"
    write_metrics(path, [replace(each, step_tokens=None) for each in read_metrics(path).samples])
    assert steps_at(arm, 11.18) is None
    path.unlink()
    assert steps_at(arm, 11.18) is None


def test_a_histogram_becomes_sizes_whose_shares_add_up_with_the_last_ones_at_the_last_edge() -> None:
    sizes = step_sizes(Histogram((16.0, 64.0, 128.0), (1, 1, 6), 900.0, 10), moe_share=0.4)
    assert [(each.tokens, each.time_share) for each in sizes] == [(16.0, 0.1), (128.0, 0.9)]
    assert {each.moe_share for each in sizes} == {0.4}
