"""What is compiled first, and which GPU gets which batch sizes."""

from __future__ import annotations

from slo_bench.moe.shape import Quantisation
from slo_bench.moe.space import KernelConfig, candidates
from slo_bench.moe.tune_order import CompileQueue, deal, neighbours

FP8 = Quantisation("fp8_w8a8", (128, 128))
DEFAULT = KernelConfig(16, 128, 128, 32, 4, 3)


def test_what_vllm_runs_comes_first_then_what_is_near_the_best_then_the_rest() -> None:
    space = candidates(FP8, [DEFAULT])
    queue = CompileQueue([DEFAULT], space)
    best = KernelConfig(64, 128, 128, 16, 4, 4)
    assert queue.take([]) == DEFAULT
    taken = [queue.take([best]) for _ in range(len(set(neighbours(best)) & set(space) - {DEFAULT}))]
    assert set(taken) == set(neighbours(best)) & set(space) - {DEFAULT}


def test_every_configuration_is_taken_once_and_huge_tiles_at_the_end() -> None:
    space = candidates(FP8, [DEFAULT])
    queue = CompileQueue([DEFAULT], space)
    taken = []
    while (config := queue.take([])) is not None:
        taken.append(config)
    assert len(taken) == len(set(taken)) == len(space)
    assert len(queue) == 0
    assert {(each.block_m, each.block_n, each.num_warps) for each in taken[-8:]} == {(256, 256, 4)}


def test_a_neighbour_differs_in_one_option() -> None:
    near = list(neighbours(DEFAULT))
    assert len(near) == len(set(near)) == 4 + 3 + 2 + 3 + 1 + 3
    assert DEFAULT not in near


def test_sizes_are_dealt_over_gpus_and_each_is_with_one() -> None:
    sizes = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
    assert deal(sizes, 1) == (sizes,)
    hands = deal(sizes, 2)
    assert sorted(size for hand in hands for size in hand) == list(sizes)
    assert hands[0][-2:] != hands[1][-2:]
    assert {4096, 2048} == {hand[-1] for hand in hands}
    assert deal((1, 2), 8) == ((2,), (1,))
