"""The space of a tuner, without what cannot differ or cannot run."""

import pytest

from slo_bench.moe.config_files import Version
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.moe.space import (
    HOPPER_SHARED_BYTES,
    KernelConfig,
    candidates,
    default_config,
    distinct,
    fits_blocks,
    published_space,
)
from traffic.errors import UsageError

QWEN3 = MoeShape(128, 768, 2048, 8)
FP8 = Quantisation("fp8_w8a8", (128, 128))


def test_the_published_space_has_1920_configurations_and_1280_distinct_ones() -> None:
    space = list(published_space())
    assert len(space) == len(set(space)) == 1920
    assert all(fits_blocks(each, FP8) for each in space)
    assert len(distinct(space, FP8)) == 1280
    assert len(distinct(space, Quantisation())) == 1920


def test_1248_of_them_fit_the_shared_memory_of_a_hopper_card() -> None:
    assert sum(each.shared_bytes(FP8) > HOPPER_SHARED_BYTES for each in published_space()) == 64
    assert len(candidates(FP8, ())) == 1248


def test_a_tile_that_no_block_divides_is_left_out() -> None:
    assert not fits_blocks(KernelConfig(16, 96, 128, 1, 4, 3), FP8)
    assert fits_blocks(KernelConfig(16, 64, 64, 1, 4, 3), Quantisation("fp8_w8a8", (32, 32)))


@pytest.mark.parametrize("version", [(0, 24), (0, 32)])
def test_the_default_is_always_tried_and_tried_first(version: Version) -> None:
    defaults = [default_config(tokens, QWEN3, FP8, version) for tokens in (1, 8, 16, 64, 4096)]
    tried = candidates(FP8, defaults)
    assert set(defaults) <= set(tried)
    assert tried[: len(set(defaults))] == tuple(dict.fromkeys(defaults))
    assert len(tried) == len(set(tried)) == 1248
    huge = KernelConfig(256, 256, 128, 1, 4, 9)
    assert candidates(FP8, [huge])[0] == huge


def test_the_default_of_small_batches_is_another_one_since_0_31() -> None:
    assert default_config(4, QWEN3, FP8, (0, 24)) == KernelConfig(16, 128, 128, 1, 4, 3)
    assert default_config(4, QWEN3, FP8, (0, 31)) == KernelConfig(16, 64, 128, 1, 4, 4)
    assert default_config(64, QWEN3, FP8, (0, 28)) == KernelConfig(16, 128, 128, 32, 4, 3)
    with pytest.raises(UsageError, match="not known"):
        default_config(4, QWEN3, FP8, (0, 28))
    with pytest.raises(UsageError, match="not known"):
        default_config(4, QWEN3, Quantisation("int4_w4a16"), (0, 32))


def test_an_entry_has_the_names_of_vllms_files() -> None:
    assert KernelConfig(16, 64, 128, 1, 4, 3).entry() == {
        "BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 1,
        "num_warps": 4,
        "num_stages": 3,
    }
