from __future__ import annotations

from typing import Any

import pytest
from comparisons import pairs

from gates.block_order import Order
from gates.slo import DEFAULT_SLO
from gates.validity import MEASURED
from slo_bench.bench import Load
from slo_bench.compare.enough import Enough
from slo_bench.compare.plan import ComparisonPlan
from slo_bench.compare.servers import BlockPlan
from traffic.workload import CHAT_MIX

LOAD = Load(CHAT_MIX, 1.0, 0, DEFAULT_SLO, 15.0, MEASURED)

QUIET = [0.001, -0.001, 0.0, 0.001, -0.002, 0.001, 0.0, 0.001]
LOUD = [0.05, -0.06, 0.03, 0.04, -0.05, 0.02, 0.01, -0.04]


def enough(now_s: list[float], **design: Any) -> Enough:
    values: dict[str, Any] = {"placement": "coresident", "instances": 1, "pairs": 6, "order": Order.ABBA}
    return Enough(ComparisonPlan(BlockPlan(LOAD, 10.0, None, 60.0, None), **{**values, **design}), lambda: now_s[0])


def test_the_pairs_that_were_asked_for_are_enough() -> None:
    looked = enough([0.0])
    assert not looked.is_reached(pairs(LOUD[:5]))
    assert looked.is_reached(pairs(LOUD[:6]))
    assert looked.shortfall(pairs(LOUD[:6])) == []


def test_no_pair_begins_that_would_end_after_the_time() -> None:
    now_s = [100.0]
    looked = enough(now_s, max_minutes=10.0)
    looked.took(190.0)
    now_s[0] = 100.0 + 600.0 - 190.0
    assert not looked.is_reached(pairs(LOUD[:3]))
    now_s[0] += 1.0
    assert looked.is_reached(pairs(LOUD[:3]))
    assert looked.shortfall(pairs(LOUD[:3])) == ["the time ran out after 3 of 6 pairs: raise --max-minutes"]


def test_too_few_pairs_conclude_nothing() -> None:
    assert enough([0.0]).shortfall(pairs(LOUD[:2]))[0].startswith("2 pairs with a value: three pairs")


def test_pairs_are_added_until_the_interval_is_narrow() -> None:
    looked = enough([0.0], until_share=0.01)
    assert looked.is_reached(pairs(QUIET[:6]))
    assert not looked.is_reached(pairs(LOUD[:6]))
    assert looked.shortfall(pairs(QUIET[:6])) == []
    (said,) = looked.shortfall(pairs(LOUD[:6]))
    assert said.startswith("after 6 pairs the interval reaches ±")
    assert said.endswith("±1.0 % was asked for: raise --max-minutes")


def test_the_pairs_that_were_asked_for_come_first() -> None:
    assert not enough([0.0], until_share=0.2).is_reached(pairs(QUIET[:5]))


def test_where_only_starts_help_it_stops_and_says_how_many() -> None:
    looked = enough([0.0], until_share=0.01, known_offset_share=0.02)
    assert looked.is_reached(pairs(QUIET[:6]))
    (said,) = looked.shortfall(pairs(QUIET[:6]))
    assert "offsets of starts are wider" in said
    assert "starts of each arm would do" in said


def test_a_row_of_servers_is_finished_before_anybody_looks() -> None:
    crossed = [(0, 0), (1, 1), (0, 1), (1, 0), (0, 0), (1, 1), (0, 1), (1, 0)]
    looked = enough([0.0], until_share=0.05, instances=2)
    assert not looked.is_reached(pairs(QUIET[:7], starts=crossed[:7]))
    assert looked.is_reached(pairs(QUIET, starts=crossed))


def test_restarts_are_added_however_much_starts_differ() -> None:
    nested = [(start, start) for start in range(4) for _ in range(2)]
    looked = enough([0.0], until_share=0.01, placement="restart", instances=4, pairs=8)
    wide = [0.05, 0.05, -0.05, -0.05, 0.06, 0.06, -0.04, -0.04]
    assert not looked.is_reached(pairs(wide, starts=nested))


@pytest.mark.parametrize("share", [0.001, 0.5])
def test_a_resolution_is_read_to_each_side(share: float) -> None:
    assert enough([0.0], until_share=share).is_reached(pairs(QUIET[:6])) == (share > 0.01)
