"""What a search leaves out, by what others with the same tile took."""

from __future__ import annotations

from collections.abc import Mapping

from slo_bench.moe.shape import MoeShape
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tune_search import FAR, FAR_SEEN, Search, Space
from slo_bench.moe.tuning_journal import CompiledLine, TimedLine, TimedRow, numbers

SIZES = (1, 64)
DEFAULT = KernelConfig(16, 128, 128, 32, 4, 3)
HUGE = [KernelConfig(256, 256, 128, group, 8, stages) for group in (1, 16, 32, 64) for stages in (2, 3)]
BEST_S = 1e-4


def searched(times: Mapping[KernelConfig, Mapping[int, float | None]]) -> Search:
    """A search in which these took so many times the best at a size; None: its first call took too long."""
    space = Space(MoeShape(128, 768, 2048, 8), SIZES, ("uniform",), dict.fromkeys(SIZES, DEFAULT), {}, (DEFAULT, *HUGE))
    search = Search(space)
    for config, by_size in {DEFAULT: dict.fromkeys(SIZES, 1.0), **times}.items():
        search.apply(CompiledLine(config=numbers(config), took_s=1.0, failure=None))
        for size, factor in by_size.items():
            times_s = () if factor is None else (factor * BEST_S,)
            row = TimedRow(config=numbers(config), times_s=times_s, failure=None)
            search.apply(TimedLine(tokens=size, routing="uniform", rung=0, rows=(row,)))
    return search


def test_the_rest_of_a_tile_is_left_out_where_enough_of_it_are_far_everywhere() -> None:
    search = searched({config: {1: 1.1 * FAR, 64: None} for config in HUGE[:FAR_SEEN]})
    assert search.leaves_out(HUGE[FAR_SEEN])
    assert search.leaves_out(HUGE[-1])
    assert search.left_out == {HUGE[FAR_SEEN], HUGE[-1]}
    assert search.able == len(search.space.configs) - 2
    assert search.first_looks == (2 * (FAR_SEEN + 1), 2 * (len(HUGE) - 1))


def test_tiles_that_no_threads_registers_hold_speak_for_each_other() -> None:
    search = searched({config: dict.fromkeys(SIZES, 2 * FAR) for config in HUGE[:FAR_SEEN]})
    assert search.leaves_out(KernelConfig(256, 256, 128, 1, 4, 2))
    assert search.leaves_out(KernelConfig(256, 128, 128, 1, 4, 2))
    assert not search.leaves_out(KernelConfig(256, 128, 128, 1, 8, 2))


def test_another_tile_or_other_warps_are_tried() -> None:
    tile = [KernelConfig(256, 64, 128, group, 4, 3) for group in (1, 16, 32, 64)]
    search = searched({config: dict.fromkeys(SIZES, 2 * FAR) for config in tile})
    assert search.leaves_out(KernelConfig(256, 64, 64, 1, 4, 2))
    assert not search.leaves_out(KernelConfig(128, 64, 128, 1, 4, 3))
    assert not search.leaves_out(KernelConfig(256, 64, 128, 1, 8, 3))


def test_fewer_are_no_evidence_and_one_that_is_near_at_one_size_keeps_the_others_in() -> None:
    far = dict.fromkeys(SIZES, 2 * FAR)
    assert not searched(dict.fromkeys(HUGE[: FAR_SEEN - 1], far)).leaves_out(HUGE[-1])
    near = {HUGE[0]: {1: 2 * FAR, 64: 0.9 * FAR}, **dict.fromkeys(HUGE[1 : FAR_SEEN + 1], far)}
    assert not searched(near).leaves_out(HUGE[-1])


def test_who_was_not_looked_at_everywhere_yet_does_not_count() -> None:
    seen: dict[KernelConfig, dict[int, float | None]] = {config: dict.fromkeys(SIZES) for config in HUGE[:FAR_SEEN]}
    seen[HUGE[0]] = {1: None}
    search = searched(seen)
    assert not search.leaves_out(HUGE[-1])
    row = TimedRow(config=numbers(HUGE[0]), times_s=(2 * FAR * BEST_S,), failure=None)
    search.apply(TimedLine(tokens=64, routing="uniform", rung=0, rows=(row,)))
    assert search.leaves_out(HUGE[-1])


def test_one_that_was_tried_before_a_stop_is_tried_again_and_not_called_left_out() -> None:
    search = searched({config: dict.fromkeys(SIZES) for config in HUGE[:FAR_SEEN]})
    assert not search.leaves_out(HUGE[0])
    assert search.left_out == set()
