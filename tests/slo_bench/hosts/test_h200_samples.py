"""Lines that vLLM 0.24.0 wrote on an NVIDIA H200, with the shipped file, the same file in a folder of ours, and none.

The 30B-A3B FP8 shape with random weights, --moe-backend triton; kept are the lines that name version, backends, MoE
configuration and KV cache. A fourth start, without --enforce-eager, also compiled and captured CUDA graphs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slo_bench.hosts.log_facts import LogFacts, compilations, log_facts
from slo_bench.hosts.moe_proof import moe_faults

SAMPLES = Path(__file__).resolve().parents[2] / "vllm_samples"
NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)


def seen(arm: str) -> LogFacts:
    return log_facts((SAMPLES / f"h200_vllm_0.24.0_{arm}.log").read_bytes().decode())


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A file of the right name and sizes; where it lies on this machine stands for where it lay on that one."""
    entry = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4}
    path = tmp_path / NAME
    path.write_text(json.dumps({str(size): entry | {"num_stages": 3} for size in SIZES}))
    return path


def test_the_three_ways_are_told_apart_by_the_log() -> None:
    used = {arm: [lookup.used for lookup in seen(arm).moe_lookups] for arm in ("shipped", "own", "heuristic")}
    assert [Path(path or "").parent.name for path in used["shipped"]] == ["configs"]
    assert [Path(path or "").parent.name for path in used["own"]] == ["tuned"]
    assert used["heuristic"] == [None]
    assert {backend.name for arm in used for backend in seen(arm).moe_backends} == {"TRITON"}


def test_the_default_is_proven_only_where_no_file_was_read() -> None:
    assert moe_faults("default", seen("heuristic"), {}) == ()
    for arm in ("shipped", "own"):
        assert moe_faults("default", seen(arm), {}) != ()


def test_our_file_is_proven_only_where_it_was_read(tuned: Path) -> None:
    own = seen("own")
    moved = replace(own, moe_lookups=tuple(replace(each, used=str(tuned)) for each in own.moe_lookups))
    env = {"VLLM_TUNED_CONFIG_FOLDER": str(tuned.parent)}
    assert moe_faults(tuned, moved, env) == ()
    for arm in ("shipped", "heuristic"):
        assert moe_faults(tuned, seen(arm), env) != ()


def test_the_parts_of_a_compiled_start_are_told() -> None:
    facts = seen("compiled")
    assert (facts.model_load_s, facts.compile_s, facts.graph_capture_s) == (2.974084, 70.46, 31.0)
    assert (facts.model_load_gib, facts.graph_capture_gib, facts.init_engine_s) == (29.04, 0.83, 119.68)
    assert (facts.kv_cache_gib, facts.kv_cache_tokens, facts.max_concurrency) == (12.0, 131_072, 8.0)
    assert facts.capture_sizes is not None
    assert facts.capture_sizes[-1] == 512
    assert facts.is_ready


def test_the_lines_of_a_compilation_would_be_flagged_in_a_window() -> None:
    text = (SAMPLES / "h200_vllm_0.24.0_compiled.log").read_bytes().decode()
    assert compilations(text) == (
        "Dynamo bytecode transform time: 23.82 s",
        "Cache the graph of compile range (1, 8192) for later use",
        "Compiling a graph for compile range (1, 8192) takes 22.92 s",
        "torch.compile took 70.46 s in total",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)",
        "Capturing CUDA graphs (decode, FULL)",
        "Graph capturing finished in 31 secs, took 0.83 GiB",
    )
