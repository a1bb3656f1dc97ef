"""Elimination on rungs: who is looked at next, and that the best is not lost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.moe.ladder import HOPELESS, RUNGS, Ladder, Look, Step, is_hopeless, median
from slo_bench.moe.shape import MoeShape
from slo_bench.moe.space import KernelConfig

UNIFORM, CONCENTRATED = "uniform", "concentrated"
DEFAULT = KernelConfig(16, 128, 128, 1, 4, 3)
OTHERS = [KernelConfig(16, 64, 128, group, 4, stages) for group in (1, 16, 32, 64) for stages in (2, 3, 4, 5)]


def climbed(
    times: dict[KernelConfig, dict[str, float]],
    off: Callable[[int], float] = lambda _: 0.0,
) -> Ladder:
    """A ladder on which every step that it asks for was done, each look off by a share that its rung has."""
    ladder = Ladder(DEFAULT, (UNIFORM, CONCENTRATED))
    ladder.offer(times)
    while (step := ladder.next_step()) is not None:
        for config in step.configs:
            time_s = times[config][step.routing] * (1 + off(step.rung))
            ladder.saw(config, step.routing, Look(step.rung, time_s))
    return ladder


def flat(time_s: float, concentrated_s: float = 1.0) -> dict[str, float]:
    return {UNIFORM: time_s, CONCENTRATED: concentrated_s}


def test_the_default_is_looked_at_before_all_others() -> None:
    ladder = Ladder(DEFAULT, (UNIFORM, CONCENTRATED))
    ladder.offer([OTHERS[0], DEFAULT, OTHERS[1]])
    assert ladder.next_step() == Step(0, UNIFORM, (DEFAULT,))
    ladder.saw(DEFAULT, UNIFORM, Look(0, 1.0))
    assert ladder.next_step() == Step(0, UNIFORM, tuple(OTHERS[:2]))


def test_who_is_far_behind_goes_no_further_and_the_default_always_does() -> None:
    ladder = climbed({DEFAULT: flat(2.0), OTHERS[0]: flat(1.0), OTHERS[1]: flat(1.31)})
    rungs = {config: seen[UNIFORM].rung for config, seen in ladder.looks.items()}
    assert rungs == {DEFAULT: len(RUNGS) - 1, OTHERS[0]: len(RUNGS) - 1, OTHERS[1]: 0}
    assert ladder.looks[DEFAULT].keys() == {UNIFORM, CONCENTRATED}


def test_other_routings_are_looked_at_only_by_survivors_and_refuse_who_is_slower_there() -> None:
    times = {DEFAULT: flat(1.2), OTHERS[0]: flat(1.0, 1.6), OTHERS[1]: flat(1.1), OTHERS[2]: flat(3.0, 0.5)}
    ladder = climbed(times)
    assert ladder.is_refused(OTHERS[0])
    assert ladder.best == OTHERS[1]
    assert CONCENTRATED not in ladder.looks[OTHERS[2]]
    assert ladder.finalists(8) == (OTHERS[1],)


def test_who_was_left_behind_by_one_that_is_refused_later_comes_back() -> None:
    times = {DEFAULT: flat(2.0), OTHERS[0]: flat(1.0, 9.0), OTHERS[1]: flat(1.5)}
    ladder = climbed(times)
    assert ladder.best == OTHERS[1]
    assert ladder.looks[OTHERS[1]][UNIFORM].rung == len(RUNGS) - 1


def test_what_vllm_ships_is_timed_at_the_end_however_slow() -> None:
    ladder = climbed({DEFAULT: flat(1.0), OTHERS[0]: flat(0.9), OTHERS[1]: flat(5.0)})
    ladder.always = frozenset({OTHERS[1]})
    assert ladder.finalists(8) == (OTHERS[0], OTHERS[1])
    assert ladder.finalists(8, without=[OTHERS[0]]) == (OTHERS[1],)


def test_one_that_fails_is_asked_for_no_more() -> None:
    ladder = Ladder(DEFAULT, (UNIFORM,))
    ladder.offer([DEFAULT, OTHERS[0]])
    ladder.saw(DEFAULT, UNIFORM, Look(0, 1.0))
    ladder.fails(OTHERS[0])
    ladder.offer([OTHERS[0]])
    step = ladder.next_step()
    assert step is not None
    assert step.configs == (DEFAULT,)


def test_the_rank_counts_everybody_who_was_faster() -> None:
    ladder = climbed({DEFAULT: flat(1.0), OTHERS[0]: flat(0.9), OTHERS[1]: flat(5.0)})
    assert (ladder.rank(DEFAULT), ladder.rank(OTHERS[1]), ladder.tried) == (2, 3, 3)
    assert ladder.rank(OTHERS[2]) is None


@settings(max_examples=40)
@given(
    st.lists(st.floats(1.0, 3.0), min_size=2, max_size=len(OTHERS)),
    st.lists(st.floats(0.7, 1.0) | st.floats(1.05, 1.6), min_size=len(OTHERS), max_size=len(OTHERS)),
    st.floats(1.0, 3.0),
    st.randoms(use_true_random=False),
)
def test_under_noise_within_the_bounds_the_best_that_is_nowhere_slower_is_a_finalist(
    times_s: list[float], elsewhere_s: list[float], default_s: float, draw: random.Random
) -> None:
    def off(rung: int) -> float:
        least = min(RUNGS[rung].keep, RUNGS[rung].refuse)
        bound = (least - 1) / (least + 1)
        return draw.uniform(-bound, bound)

    times = {config: flat(*pair) for config, pair in zip(OTHERS, zip(times_s, elsewhere_s, strict=False), strict=False)}
    able = [config for config, seen in times.items() if seen[CONCENTRATED] <= 1.0 and seen[UNIFORM] <= default_s]
    ladder = climbed({DEFAULT: flat(default_s), **times}, off)
    if able:
        best = min(able, key=lambda config: times[config][UNIFORM])
        assert best in ladder.finalists(len(OTHERS))


def test_a_full_tile_that_is_hopeless_is_not_tried_with_more_tokens() -> None:
    shape = MoeShape(128, 768, 2048, 8)
    narrow, wide = KernelConfig(16, 64, 128, 1, 4, 3), KernelConfig(256, 64, 128, 1, 4, 3)
    assert is_hopeless(narrow, 256, shape, 2.1, 1.0)
    assert not is_hopeless(narrow, 256, shape, HOPELESS, 1.0)
    assert not is_hopeless(narrow, 128, shape, 2.1, 1.0)
    assert not is_hopeless(wide, 256, shape, 2.1, 1.0)
    assert is_hopeless(narrow, 256, shape, math.inf, 1.0)


@pytest.mark.parametrize(("times_s", "expected_s"), [((), math.inf), ((3.0, 1.0), 1.0), ((1.0, 9.0, 2.0), 2.0)])
def test_a_disturbed_replay_does_not_count(times_s: tuple[float, ...], expected_s: float) -> None:
    assert median(times_s) == expected_s
