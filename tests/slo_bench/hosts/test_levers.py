"""Levers by vLLM's own names, and a lever that is pulled twice."""

from __future__ import annotations

import pytest

from slo_bench.hosts.levers import Levers, engine_arguments
from traffic.errors import UsageError


def test_no_lever_leaves_the_arguments_as_they_are() -> None:
    assert engine_arguments(Levers(), ["--load-format", "dummy"]) == ("--load-format", "dummy")


def test_each_lever_becomes_the_option_of_its_name() -> None:
    levers = Levers(
        kv_cache_dtype="fp8",
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        speculative_config='{"method": "ngram"}',
        tensor_parallel_size=2,
        data_parallel_size=2,
        gpu_memory_utilization=0.3,
        kv_cache_memory_bytes="12G",
        max_model_len=8192,
        moe_backend="triton",
    )
    pairs = dict(zip(*[iter(engine_arguments(levers))] * 2, strict=True))
    assert pairs == {
        "--kv-cache-dtype": "fp8",
        "--max-num-seqs": "256",
        "--max-num-batched-tokens": "8192",
        "--speculative-config": '{"method": "ngram"}',
        "--tensor-parallel-size": "2",
        "--data-parallel-size": "2",
        "--gpu-memory-utilization": "0.3",
        "--kv-cache-memory-bytes": "12G",
        "--max-model-len": "8192",
        "--moe-backend": "triton",
    }
    assert levers.gpus == 4


def test_a_switch_is_on_off_or_left_to_vllm() -> None:
    levers = Levers(enable_prefix_caching=False, enable_chunked_prefill=True, async_scheduling=False)
    assert engine_arguments(levers, ["-x"]) == (
        "--no-enable-prefix-caching",
        "--enable-chunked-prefill",
        "--no-async-scheduling",
        "-x",
    )
    assert engine_arguments(Levers(enable_expert_parallel=True)) == ("--enable-expert-parallel",)


@pytest.mark.parametrize(
    ("levers", "args"),
    [
        (Levers(max_num_seqs=1), ["--max-num-seqs", "2"]),
        (Levers(max_num_seqs=1), ["--load-format", "dummy", "--max-num-seqs=2"]),
        (Levers(max_num_seqs=1), ["--max_num_seqs", "2"]),
        (Levers(enable_prefix_caching=True), ["--no-enable-prefix-caching"]),
        (Levers(enable_prefix_caching=False), ["--enable-prefix-caching"]),
        (Levers(async_scheduling=True), ["--async_scheduling"]),
        (Levers(tensor_parallel_size=2), ["-tp", "2"]),
        (Levers(data_parallel_size=2), ["-dp=2"]),
        (Levers(enable_expert_parallel=True), ["-ep"]),
        (Levers(speculative_config="{}"), ["--speculative-config.method", "ngram"]),
        (Levers(moe_backend="triton"), ["--kernel-config.moe_backend", "marlin"]),
        (Levers(moe_backend="triton"), ["--kernel-config", '{"moe_backend": "marlin"}']),
    ],
)
def test_a_lever_that_is_given_twice_is_refused(levers: Levers, args: list[str]) -> None:
    with pytest.raises(UsageError, match=r"--[a-z-]+ is given twice, as an option and after --: leave one out"):
        engine_arguments(levers, args)


def test_a_lever_may_be_given_either_way() -> None:
    args = ["--max-num-seqs", "2", "--no-enable-prefix-caching", "-tp", "2", "--kernel-config", '{"moe_backend": "x"}']
    assert engine_arguments(Levers(max_model_len=4096), args) == ("--max-model-len", "4096", *args)


@pytest.mark.parametrize(
    ("text", "problem"), [("{method: ngram}", "is not JSON: Expecting"), ('"ngram"', "must be a JSON object")]
)
def test_a_speculative_config_is_a_json_object(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        engine_arguments(Levers(speculative_config=text))
