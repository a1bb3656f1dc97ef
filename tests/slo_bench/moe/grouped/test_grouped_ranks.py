"""What each emulated rank gets, idle ones too."""

from __future__ import annotations

import pytest

from slo_bench.moe.grouped.ranks import fullest, ranks_of, slowest
from slo_bench.moe.routing import concentrated, draw, uniform
from slo_bench.moe.shape import MoeShape
from traffic.errors import UsageError

SHAPE = MoeShape(400, 2048, 4096, 6, ep_size=8)


def test_uniform_routing_spreads_all_rows_over_all_ranks() -> None:
    ranks = ranks_of(draw(uniform(SHAPE), SHAPE, 288, seed=0), SHAPE)
    assert [each.rank for each in ranks] == list(range(8))
    assert {len(each.counts) for each in ranks} == {50}
    assert sum(each.rows for each in ranks) == 288 * 6
    assert all(150 < each.rows < 290 for each in ranks)
    assert max(each.most_rows for each in ranks) < 20


def test_concentrated_routing_leaves_seven_ranks_idle_and_shows_them() -> None:
    busy, *idle = ranks_of(draw(concentrated(SHAPE), SHAPE, 288, seed=0), SHAPE)
    assert (busy.rows, busy.experts_hit, busy.most_rows) == (1728, 6, 288)
    assert [(each.rank, each.rows, each.most_rows) for each in idle] == [(rank, 0, 0) for rank in range(1, 8)]
    assert fullest([*idle, busy]) is busy


def test_the_slowest_rank_is_the_one_of_the_longest_time_and_of_equals_the_first() -> None:
    assert slowest({0: 1.0, 3: 2.0, 5: 2.0}) == 3


def test_uneven_ranks_are_refused() -> None:
    shape = MoeShape(10, 128, 128, 2, ep_size=4)
    with pytest.raises(UsageError, match="10 experts are not even over 4 ranks"):
        ranks_of(draw(uniform(shape), shape, 3, seed=0), shape)
