"""Real vLLM as the judge of MoE file names, nearest keys and defaults; one import of it for all of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slo_bench.moe.config_files import (
    ConfigFile,
    Version,
    file_name,
    parse_version,
    rank_names,
    read_config,
    write_config,
)
from slo_bench.moe.shape import MoeModel, MoeShape, Quantisation, read_model
from slo_bench.moe.space import default_config
from traffic.errors import UsageError

pytestmark = pytest.mark.vllm

FP8 = Quantisation("fp8_w8a8", (128, 128))
DEVICES = ("NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA H100 80GB HBM3", "NVIDIA H20-3e", "A / B")
MODELS = {
    "qwen3-30b-fp8": MoeModel(128, 768, 2048, 8, FP8),
    "qwen3-30b": MoeModel(128, 768, 2048, 8, Quantisation()),
    "qwen3-235b-fp8": MoeModel(128, 1536, 4096, 8, FP8),
    "qwen3-30b-tensor-fp8": MoeModel(128, 768, 2048, 8, Quantisation("fp8_w8a8")),
    "mixtral": MoeModel(8, 14336, 4096, 2, Quantisation()),
    "deepseek-v3": MoeModel(256, 2048, 7168, 8, FP8),
    "float32": MoeModel(8, 64, 128, 2, Quantisation("float32")),
    "odd": MoeModel(130, 1408, 2048, 6, FP8),
}
RANKS = ((1, False), (2, False), (4, False), (8, False), (4, True), (8, True))
KEYS = (1, 2, 4, 64, 24, 16, 1024, 256)
TOKENS = (*range(1, 140), 255, 256, 257, 639, 640, 641, 4096, 8192)

ASK = r"""
import json, sys
from types import SimpleNamespace
import torch, vllm
from vllm.platforms import current_platform
from vllm.model_executor.layers.fused_moe import fused_moe
from vllm.model_executor.layers.fused_moe.config import _get_config_dtype_str
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map
from vllm.model_executor.layers.fused_moe.oracle.fp8 import refine_fp8_moe_block_shape

def name(case):
    tp, ep = (1, case["ranks"]) if case["is_ep"] else (case["ranks"], 1)
    columns, block = case["intermediate"] // tp, case["block"]
    if block and (refined := refine_fp8_moe_block_shape(
        SimpleNamespace(intermediate_size_per_partition=columns, tp_size=tp, hidden_dim=case["hidden"]), block
    )):
        block = refined
    kind = _get_config_dtype_str(
        torch.float32 if case["dtype"] == "float32" else torch.bfloat16, **{"use_" + (case["dtype"] or ""): True}
        if case["dtype"] in ("fp8_w8a8", "int8_w8a16", "int4_w4a16") else {},
    )
    type(current_platform).get_device_name = classmethod(lambda cls, device_id=0: case["device"])
    getattr(fused_moe.get_device_name_as_file_name, "cache_clear", lambda: None)()
    held = [determine_expert_map(ep, rank, case["experts"])[0] for rank in range(ep)]
    return [fused_moe.get_config_file_name(each, columns, kind, block) for each in held]

asked = json.load(sys.stdin)
type(current_platform).get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H200")
shape = asked["shape"]
E, N, K, top_k = shape
ran = [fused_moe.try_get_optimal_moe_config((E, 2 * N, K), (E, K, N), top_k, "fp8_w8a8", M, [128, 128])
       for M in asked["tokens"]]
packed = fused_moe.try_get_optimal_moe_config((E, 2 * N, K), (E, K, N // 2), top_k, "int4_w4a16", 64, [0, 128])
type(current_platform).is_rocm = lambda self: False
defaults = [[fused_moe.get_default_config(M, E, N, K, top_k, kind, block) for M in asked["tokens"]]
            for kind, block in asked["quantisations"]]
print("ANSWER" + json.dumps({
    "version": vllm.__version__, "names": [name(case) for case in asked["cases"]], "ran": ran, "packed": packed,
    "defaults": defaults,
}))
"""
CASES = [(model, *ranks, device) for model in MODELS for ranks in RANKS for device in DEVICES]
SHAPE = MODELS["qwen3-30b-fp8"].shape()
KINDS = (FP8, Quantisation("fp8_w8a8"), Quantisation(), Quantisation("fp8_w8a8", (32, 32)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuned folder with a file for blocks of FP8 and one for four-bit weights, both named by us."""
    made = tmp_path_factory.mktemp("tuned")
    entries = {size: {"BLOCK_SIZE_M": 16, "num_warps": 4, "ours": size} for size in KEYS}
    for quantisation in (FP8, Quantisation("int4_w4a16", (0, 128))):
        write_config(made / file_name(SHAPE, quantisation, "NVIDIA H200", (0, 32)), ConfigFile(entries, "3.6.0"))
    return made


@pytest.fixture(scope="module")
def answer(vllm_python: Path, folder: Path) -> dict[str, Any]:
    cases = [
        {
            "experts": MODELS[model].experts,
            "intermediate": MODELS[model].intermediate,
            "hidden": MODELS[model].hidden,
            "dtype": MODELS[model].quantisation.dtype,
            "block": MODELS[model].quantisation.block_shape,
            "ranks": ranks,
            "is_ep": is_expert_parallel,
            "device": device,
        }
        for model, ranks, is_expert_parallel, device in CASES
    ]
    asked = {
        "cases": cases,
        "shape": (SHAPE.experts, SHAPE.columns, SHAPE.hidden, SHAPE.top_k),
        "tokens": TOKENS,
        "quantisations": [(each.dtype, each.block_shape) for each in KINDS],
    }
    run = subprocess.run(
        [vllm_python, "-c", ASK],
        input=json.dumps(asked),
        env={**os.environ, "VLLM_TUNED_CONFIG_FOLDER": str(folder), "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    said: dict[str, Any] = json.loads(run.stdout.rpartition("ANSWER")[2])
    return said


@pytest.fixture(scope="module")
def version(answer: dict[str, Any]) -> Version:
    return parse_version(answer["version"])


def test_vllm_looks_for_the_names_that_we_say(answer: dict[str, Any], version: Version) -> None:
    checked = 0
    for (model, ranks, is_expert_parallel, device), names in zip(CASES, answer["names"], strict=True):
        shape = MODELS[model].shape(ranks=ranks, is_expert_parallel=is_expert_parallel)
        try:
            ours = rank_names(shape, MODELS[model].quantisation, device, version)
        except UsageError as error:
            assert "no whole FP8 blocks" in str(error)  # noqa: PT017 - most shapes have names
            continue
        assert ours == tuple(dict.fromkeys(names)), (model, ranks, is_expert_parallel)
        checked += 1
    assert checked >= 0.9 * len(CASES)


def test_vllm_runs_the_entry_that_we_say(answer: dict[str, Any], folder: Path, version: Version) -> None:
    config = read_config(folder / file_name(SHAPE, FP8, "NVIDIA H200", version))
    assert [each["ours"] for each in answer["ran"]] == [config.nearest(tokens)["ours"] for tokens in TOKENS]
    assert answer["packed"]["ours"] == 64


def test_vllm_has_the_defaults_that_we_say(answer: dict[str, Any], version: Version) -> None:
    for quantisation, theirs in zip(KINDS, answer["defaults"], strict=True):
        ours = [default_config(tokens, SHAPE, quantisation, version).entry() for tokens in TOKENS]
        assert [{**each, "SPLIT_K": 1} for each in ours] == theirs


def test_the_configurations_that_transformers_writes_are_read(vllm_python: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from transformers import DeepseekV3Config, MixtralConfig, Qwen3MoeConfig\n"
        "for kind in (DeepseekV3Config, MixtralConfig, Qwen3MoeConfig):\n"
        "    kind().save_pretrained(f'{sys.argv[1]}/{kind.__name__}')"
    )
    subprocess.run([vllm_python, "-c", code, tmp_path], check=True, capture_output=True, timeout=120)
    shapes = {path.name: read_model(path).shape() for path in tmp_path.iterdir()}
    assert shapes == {
        "DeepseekV3Config": MoeShape(256, 2048, 7168, 8),
        "MixtralConfig": MoeShape(8, 14336, 4096, 2),
        "Qwen3MoeConfig": MoeShape(128, 768, 2048, 8),
    }
