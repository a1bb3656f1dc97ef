from __future__ import annotations

import pytest

from slo_bench.moe.limits import CARDS, card_of, weight_sets
from slo_bench.moe.routing import concentrated, draw, uniform
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.work import expert_bytes, work

SHAPE, FP8 = MoeShape(128, 768, 2048, 8), Quantisation("fp8_w8a8", (128, 128))
MIB = 1 << 20


def test_few_tokens_are_bound_by_memory_and_many_on_few_experts_by_arithmetic() -> None:
    card = CARDS["NVIDIA H200"]
    few = work(draw(uniform(SHAPE), SHAPE, 64, seed=0), SHAPE, FP8)
    assert card.least_s(few, FP8) == pytest.approx(few.least_bytes / 4.8e12)
    many = work(draw(concentrated(SHAPE), SHAPE, 8192, seed=0), SHAPE, FP8)
    assert card.least_s(many, FP8) == pytest.approx(many.operations / 1979e12)
    assert (card.least_s(many, Quantisation()) or 0) > (card.least_s(many, FP8) or 0)


def test_a_card_that_is_not_known_has_no_limit_and_one_without_fp8_none_for_it() -> None:
    assert card_of("NVIDIA GeForce RTX 4090") is None
    few = work(draw(uniform(SHAPE), SHAPE, 1, seed=0), SHAPE, FP8)
    assert CARDS["NVIDIA A100-SXM4-80GB"].least_s(few, FP8) is None


def test_between_two_uses_of_a_copy_twice_the_cache_is_read() -> None:
    for shape in (SHAPE, MoeShape(128, 96, 2048, 8), MoeShape(64, 128, 512, 1)):
        sets = weight_sets(shape, FP8, 50 * MIB)
        least = shape.top_k * expert_bytes(shape, FP8)
        assert sets == 64 or (sets - 1) * least >= 2 * 50 * MIB > (sets - 2) * least


def test_copies_are_neither_too_many_for_the_memory_nor_one_alone() -> None:
    large = MoeShape(256, 2048, 7168, 8)
    assert weight_sets(large, FP8, 50 * MIB) == 2
    assert weight_sets(SHAPE, FP8, None) == 4
