"""Rows, experts hit, bytes and operations of a routing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.moe.routing import concentrated, draw, uniform
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.work import Work, estimated_rows, expected_hit, expert_bytes, work

QWEN3 = MoeShape(128, 768, 2048, 8)
FP8 = Quantisation("fp8_w8a8", (128, 128))


def of(tokens: int, *, few: bool = False) -> Work:
    routing = concentrated(QWEN3) if few else uniform(QWEN3)
    return work(draw(routing, QWEN3, tokens, seed=0), QWEN3, FP8)


def test_all_experts_of_a_qwen3_layer_are_604_megabytes_of_fp8_and_their_scales() -> None:
    weights = expert_bytes(QWEN3, Quantisation("fp8_w8a8"))
    assert 128 * weights == 603_979_776
    assert expert_bytes(QWEN3, FP8) == weights + 4 * (12 * 16 + 16 * 6)
    assert expert_bytes(QWEN3, Quantisation()) == 2 * weights
    assert expert_bytes(QWEN3, Quantisation("int4_w4a16", (0, 128))) == weights // 2


def test_only_the_experts_hit_are_read() -> None:
    everywhere, few = of(512), of(512, few=True)
    assert (everywhere.experts_hit, few.experts_hit) == (128, 8)
    assert everywhere.weight_bytes == 16 * few.weight_bytes
    assert everywhere.operations == few.operations == 6 * 768 * 2048 * 8 * 512
    assert few.most_rows == 512
    assert everywhere.intensity is not None
    assert few.intensity is not None
    assert few.intensity > everywhere.intensity


def test_the_estimate_of_rows_is_never_below_one() -> None:
    assert [estimated_rows(tokens, QWEN3) for tokens in (0, 1, 16, 17, 512)] == [1, 1, 1, 2, 32]


def test_nothing_to_do_has_no_intensity() -> None:
    idle = work(np.zeros((0, 8), dtype=np.int32), QWEN3, FP8)
    assert (idle.experts_hit, idle.most_rows, idle.least_bytes, idle.intensity) == (0, 0, 0, None)


@pytest.mark.parametrize("tokens", [1, 4, 16, 64])
def test_uniform_tokens_hit_as_many_experts_as_expected(tokens: int) -> None:
    hit = [work(draw(uniform(QWEN3), QWEN3, tokens, seed=seed), QWEN3, FP8).experts_hit for seed in range(25)]
    assert np.mean(hit) == pytest.approx(expected_hit(tokens, QWEN3), rel=0.03)


@given(st.integers(0, 40), st.integers(1, 6))
@settings(max_examples=12)
def test_the_ranks_together_do_the_work_of_the_layer(tokens: int, ranks: int) -> None:
    shape = MoeShape(16, 64, 128, 4, ep_size=ranks)
    ids = draw(uniform(shape), shape, tokens, seed=ranks)
    parts = [work(ids, shape, Quantisation(), rank=rank) for rank in range(ranks)]
    whole = work(ids, MoeShape(16, 64, 128, 4), Quantisation())
    for name in ("rows", "experts_hit", "weight_bytes", "operations"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    assert max(part.most_rows for part in parts) == whole.most_rows
    assert whole.rows <= whole.experts_hit * whole.most_rows
    assert whole.most_rows <= tokens
