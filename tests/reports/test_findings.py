from __future__ import annotations

from pathlib import Path

import pytest

from reports.arms import Arm, read_experiment
from reports.findings import capacity_relation, capacity_text, limit_text, mean_of


@pytest.fixture
def arms(small: Path) -> tuple[Arm, ...]:
    return read_experiment(small).arms


def between(arm: Arm, capacity_rps: float | None, first_failed_rps: float | None) -> Arm:
    sweep = arm.sweep.model_copy(update={"capacity_rps": capacity_rps, "first_failed_rps": first_failed_rps})
    return Arm(arm.label, arm.directory, arm.run, sweep, arm.engine)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (11.50, 11.82, "higher than both equal arms, between these server instances"),
        (10.80, 11.18, "lower than both equal arms, between these server instances"),
        (11.18, 11.50, "not told apart, the brackets meet or overlap"),
        (11.40, 11.70, "not told apart, the brackets meet or overlap"),
        (11.50, None, "cannot be compared, a bracket has only one end"),
    ],
)
def test_a_capacity_differs_only_beyond_the_brackets_of_all_equal_arms(
    arms: tuple[Arm, ...], low: float, high: float | None, said: str
) -> None:
    assert capacity_relation(between(arms[1], low, high), (arms[0], arms[2])) == said


def test_a_step_that_an_equal_arm_makes_too_is_no_difference(arms: tuple[Arm, ...]) -> None:
    base, tuned, again = arms
    assert capacity_relation(tuned, (base, between(again, 11.50, 11.82))).startswith("not told apart")
    assert capacity_relation(tuned, (base,)).startswith("higher than the baseline alone, with no equal arm")


def test_a_capacity_is_never_alone(arms: tuple[Arm, ...]) -> None:
    assert capacity_text(arms[0].sweep) == "11.18 req/s (11.18: 3 of 3; 11.50: 0 of 3; resolution 2.9 %)"
    assert limit_text(arms[0].sweep) == "limited by TPOT at 11.50 req/s; why is not known yet"
    assert limit_text(between(arms[0], 11.18, None).sweep) == "nothing limited it up to the highest rate tried"


def test_a_mean_over_windows_leaves_no_window_out() -> None:
    assert mean_of([1.0, 3.0]) == 2.0
    assert mean_of([1.0, None]) is None
    assert mean_of([]) is None
