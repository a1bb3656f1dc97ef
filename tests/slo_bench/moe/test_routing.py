"""Where tokens go: patterns, and draws that follow them."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.moe.routing import (
    Routing,
    concentrated,
    draw,
    local_ids,
    one_rank,
    recorded,
    rows_per_expert,
    uniform,
    zipf,
)
from slo_bench.moe.shape import MoeShape
from traffic.errors import UsageError

QWEN3 = MoeShape(128, 768, 2048, 8)
PATTERNS: dict[str, Callable[[MoeShape], Routing]] = {
    "uniform": uniform,
    "zipf": zipf,
    "steep zipf": lambda shape: zipf(shape, 5.0),
    "concentrated": concentrated,
    "half concentrated": lambda shape: concentrated(shape, shape.top_k, 0.5 if shape.experts > shape.top_k * 2 else 1),
    "one rank": lambda shape: (
        one_rank(shape) if len(shape.held_by(0)) >= shape.top_k < shape.experts else uniform(shape)
    ),
}


@st.composite
def shapes(draw: st.DrawFn) -> MoeShape:
    experts = draw(st.integers(2, 40))
    return MoeShape(experts, 64, 64, draw(st.integers(1, experts)), ep_size=draw(st.integers(2, experts)))


@given(shapes(), st.sampled_from(sorted(PATTERNS)), st.integers(0, 20), st.integers(0, 5))
@settings(max_examples=30)
def test_a_token_has_distinct_experts_that_exist_and_are_wanted(
    shape: MoeShape, name: str, tokens: int, seed: int
) -> None:
    routing = PATTERNS[name](shape)
    ids = draw(routing, shape, tokens, seed=seed)
    assert ids.shape == (tokens, shape.top_k)
    assert ids.dtype == np.int32
    assert all(len(set(row)) == shape.top_k for row in ids.tolist())
    assert all(0 <= expert < shape.experts and routing.shares[expert] > 0 for expert in ids.ravel().tolist())
    rows = rows_per_expert(ids, shape)
    assert rows.sum() == tokens * shape.top_k
    assert rows.max() <= tokens
    local = [local_ids(ids, shape, rank) for rank in range(shape.ep_size)]
    assert sum(int((each >= 0).sum()) for each in local) == ids.size
    assert all(each.max(initial=-1) < len(shape.held_by(rank)) for rank, each in enumerate(local))


def test_a_draw_is_made_by_seed_repeat_and_tokens_alone() -> None:
    first = draw(uniform(QWEN3), QWEN3, 64, seed=1)
    assert (draw(uniform(QWEN3), QWEN3, 64, seed=1) == first).all()
    assert (draw(uniform(QWEN3), QWEN3, 64, seed=2) != first).any()
    assert (draw(uniform(QWEN3), QWEN3, 64, seed=1, repeat=1) != first).any()


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_each_expert_gets_its_share_of_the_rows(name: str) -> None:
    shape, tokens = MoeShape(24, 64, 64, 4, ep_size=4), 4000
    routing = PATTERNS[name](shape)
    rows = rows_per_expert(draw(routing, shape, tokens, seed=3), shape)
    chance = np.asarray(routing.shares) * shape.top_k
    deviation = np.sqrt(tokens * chance * (1 - np.minimum(chance, 1)))
    assert (np.abs(rows - tokens * chance) <= 5 * deviation + 0.01).all()


def test_uniform_routing_draws_every_pair_of_experts_alike() -> None:
    shape = MoeShape(5, 64, 64, 2)
    ids = draw(uniform(shape), shape, 20_000, seed=0)
    pairs = np.bincount(ids.min(axis=1) * 5 + ids.max(axis=1), minlength=25)
    seen = pairs[pairs > 0]
    assert len(seen) == 10
    assert (np.abs(seen - 2000) < 5 * np.sqrt(2000 * 0.9)).all()


def test_concentrated_routing_sends_all_tokens_to_the_same_few() -> None:
    rows = rows_per_expert(draw(concentrated(QWEN3), QWEN3, 128, seed=0), QWEN3)
    assert rows.tolist() == [128] * 8 + [0] * 120
    some = draw(concentrated(QWEN3, 16, 0.8), QWEN3, 1000, seed=0)
    assert rows_per_expert(some, QWEN3)[:16].sum() == pytest.approx(0.8 * 8000, rel=0.02)


def test_one_rank_only_leaves_the_others_without_a_row() -> None:
    shape = MoeShape(130, 768, 2048, 8, ep_size=4)
    rows = rows_per_expert(draw(one_rank(shape, 1), shape, 64, seed=0), shape)
    held = shape.held_by(1)
    assert rows[held.start : held.stop].sum() == rows.sum() == 512


def test_a_recorded_histogram_is_followed() -> None:
    shape = MoeShape(4, 64, 64, 2)
    rows = rows_per_expert(draw(recorded(shape, [50, 30, 20, 0]), shape, 1000, seed=0), shape)
    assert rows.tolist()[0] == 1000
    assert rows.tolist()[3] == 0
    assert rows.tolist()[1] == pytest.approx(600, abs=80)


def test_a_steep_zipf_is_cut_where_a_token_would_take_an_expert_twice() -> None:
    for exponent in (5.0, 20.0):
        shares = zipf(QWEN3, exponent).shares
        assert max(shares) == pytest.approx(1 / 8)
        assert list(shares) == sorted(shares, reverse=True)
        assert shares[100] / shares[101] == pytest.approx((102 / 101) ** exponent)
    assert zipf(QWEN3, 0.0).shares == pytest.approx(uniform(QWEN3).shares)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: zipf(QWEN3, -1.0),
        lambda: zipf(QWEN3, float("nan")),
        lambda: concentrated(QWEN3, 7),
        lambda: concentrated(QWEN3, 0),
        lambda: concentrated(QWEN3, 129),
        lambda: concentrated(QWEN3, 124, 0.1),
        lambda: concentrated(QWEN3, 8, 1.1),
        lambda: one_rank(QWEN3),
        lambda: one_rank(MoeShape(128, 768, 2048, 8, ep_size=2), 2),
        lambda: one_rank(MoeShape(128, 768, 2048, 8, ep_size=32)),
        lambda: recorded(QWEN3, [1, 2]),
        lambda: recorded(QWEN3, [0] * 128),
        lambda: recorded(QWEN3, [100] + [1] * 127),
        lambda: draw(uniform(MoeShape(8, 1, 1, 1)), QWEN3, 1, seed=0),
        lambda: draw(Routing("one", (1.0,) + (0.0,) * 127), QWEN3, 1, seed=0),
        lambda: Routing("half", (0.5,)),
    ],
)
def test_what_no_tokens_could_do_is_refused_in_one_line(wrong: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as caught:
        wrong()
    assert "\n" not in str(caught.value)
