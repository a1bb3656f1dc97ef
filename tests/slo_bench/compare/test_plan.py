from __future__ import annotations

from typing import Any

import pytest

from gates.slo import DEFAULT_SLO
from gates.validity import MEASURED
from slo_bench.bench import Load
from slo_bench.compare.options import DesignOptions
from slo_bench.compare.plan import ComparisonPlan, comparison_plan, shortened
from slo_bench.compare.servers import LEAST_RAMP_S, BlockPlan, text_start
from traffic.errors import UsageError
from traffic.workload import CHAT_MIX

LOAD = Load(CHAT_MIX, 1.0, 0, DEFAULT_SLO, LEAST_RAMP_S, MEASURED)


def plan(kind: Any = "simulated", **options: Any) -> ComparisonPlan:
    return comparison_plan(DesignOptions(request_rate=10.0, **options), LOAD, kind)


def test_each_engine_has_its_own_placement_and_starts() -> None:
    assert (plan().placement, plan().instances, plan().pairs) == ("coresident", 1, 6)
    assert (plan("attached").placement, plan("attached").instances, plan("attached").pairs) == ("attached", 1, 6)
    restart = plan("vllm")
    assert (restart.placement, restart.instances, restart.pairs, restart.pairs_per_start) == ("restart", 4, 8, 2)


def test_several_servers_side_by_side_run_in_whole_rows() -> None:
    assert plan(instances=3).pairs == 9
    assert plan(instances=3, blocks=12).pairs == 12
    for blocks in (7, 6):
        with pytest.raises(UsageError, match="give a multiple of 3, at least 9"):
            plan(instances=3, blocks=blocks)
    with pytest.raises(UsageError, match="give a multiple of 4"):
        plan("vllm", blocks=9)


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        ("simulated", {"placement": "attached"}, "--placement attached goes with --base-url"),
        ("attached", {"placement": "restart"}, "--placement attached goes with --base-url"),
        ("attached", {"instances": 2}, "somebody else's"),
        ("vllm", {"instances": 1}, "one arm would always run first"),
        ("simulated", {"blocks": 2}, "3 pairs are the fewest"),
    ],
)
def test_designs_that_show_nothing_are_refused(kind: str, options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        plan(kind, **options)


def test_the_load_is_told_before_it_starts() -> None:
    made = plan()
    assert "10.00 req/s, chat-mix; coresident (all servers up, load takes turns), 1 start of each arm" in made.said()
    assert "6 pairs of blocks in the order A B B A, each a ramp of at least 15 s and 60 s measured" in made.said()
    assert made.cost().startswith("12 blocks, 2 server starts; at most 26 minutes of load, ")
    assert made.cost().endswith(", before it at most 17 minutes of warm-up")
    assert "server starts" not in plan("attached").cost()
    assert made.load_minutes == pytest.approx(12 * (15 + 60 + 2 + 999 * 0.05) / 60)


def test_a_comparison_until_a_resolution_has_an_end_all_the_same() -> None:
    assert plan().max_minutes is None
    made = plan(until_resolution=0.01)
    assert made.max_minutes == 120.0
    assert "up to 120 minutes, until ±1.00 %" in made.cost()
    assert "at least 6 pairs" in made.said()
    assert plan(until_resolution=0.01, max_minutes=30.0).max_minutes == 30.0


def test_a_block_that_is_shorter_than_the_method_says_so() -> None:
    assert shortened(plan()) == []
    said = shortened(plan(duration=10.0, ramp=5.0))
    assert said[0] == "blocks of 10 s are shorter than the method's 60 s"
    assert said[1].startswith("a ramp of 5 s is shorter than the method's 15 s")


def test_a_drawn_order_is_told() -> None:
    assert "in a drawn, balanced order" in plan(order="random").said()


def test_warm_up_blocks_are_no_longer_than_the_blocks() -> None:
    assert BlockPlan(LOAD, 10.0, None, 60.0, None).warm_window_s == 30.0
    assert BlockPlan(LOAD, 10.0, None, 10.0, None).warm_window_s == 10.0


def test_partners_on_real_servers_share_their_text_and_simulated_ones_no_noise() -> None:
    assert {
        text_start(kind, name, start) for kind in ("vllm", "attached") for name in ("A", "B") for start in (0, 3)
    } == {0}
    assert len({text_start("simulated", name, start) for name in ("A", "B") for start in range(4)}) == 8


def test_a_control_is_a_third_server_with_half_of_the_pairs() -> None:
    made = plan(control=True)
    assert (made.servers, made.row, made.pairs) == (3, 2, 8)
    assert "1 start of each arm and a second one of arm A" in made.said()
    assert "16 blocks, 3 server starts" in made.cost()
    assert made.design()["control"] is True
    assert "control" not in plan().design()
    assert plan("vllm", placement="coresident", control=True, blocks=6).pairs == 6


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        ("vllm", {}, "goes with --placement coresident"),
        ("attached", {}, "goes with --placement coresident"),
        ("simulated", {"instances": 2}, "and one start of each arm"),
        ("simulated", {"blocks": 7}, "give an even number, at least 6"),
        ("simulated", {"blocks": 4}, "give an even number, at least 6"),
    ],
)
def test_a_control_where_it_would_show_nothing_is_refused(kind: str, options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        plan(kind, control=True, **options)
