"""From a model's configuration, or a line of numbers, to what one rank holds."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slo_bench.moe.shape import MoeShape, Quantisation, model_of, parse_shape, read_model
from traffic.errors import UsageError

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QWEN3 = {
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "hidden_size": 2048,
    "num_experts_per_tok": 8,
}
MIXTRAL = {"num_local_experts": 8, "intermediate_size": 14336, "hidden_size": 4096, "num_experts_per_tok": 2}
DEEPSEEK = {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "hidden_size": 7168,
    "num_experts_per_tok": 8,
    "quantization_config": FP8,
}


def test_the_names_of_qwen3_moe_mixtral_and_deepseek_are_known() -> None:
    assert model_of(QWEN3).shape() == MoeShape(128, 768, 2048, 8)
    assert model_of(MIXTRAL).shape() == MoeShape(8, 14336, 4096, 2)
    assert model_of(DEEPSEEK).shape() == MoeShape(256, 2048, 7168, 8)
    rewritten = {**QWEN3, "num_experts": None, "num_local_experts": 128}  # as transformers 5 saves it
    assert model_of(rewritten).shape() == MoeShape(128, 768, 2048, 8)
    assert model_of({"model_type": "vl", "text_config": QWEN3}).shape() == MoeShape(128, 768, 2048, 8)


def test_tensor_parallelism_cuts_experts_and_expert_parallelism_deals_whole_ones() -> None:
    model = model_of(QWEN3)
    assert model.shape(ranks=4) == MoeShape(128, 192, 2048, 8, slices=4)
    assert model.shape(ranks=4, is_expert_parallel=True) == MoeShape(128, 768, 2048, 8, ep_size=4)
    balanced = model.shape(ranks=4, is_expert_parallel=True, redundant_experts=16)
    assert [len(balanced.held_by(rank)) for rank in range(4)] == [36] * 4
    with pytest.raises(UsageError, match="768 columns of an expert cannot be cut for 7 ranks"):
        model.shape(ranks=7)
    with pytest.raises(UsageError, match="redundant experts go with expert parallelism"):
        model.shape(redundant_experts=2)


@given(st.integers(1, 300), st.data())
@settings(max_examples=25)
def test_every_expert_is_on_exactly_one_rank(experts: int, data: st.DataObject) -> None:
    shape = MoeShape(experts, 64, 64, 1, ep_size=data.draw(st.integers(1, experts)))
    held = [expert for rank in range(shape.ep_size) for expert in shape.held_by(rank)]
    sizes = [len(shape.held_by(rank)) for rank in range(shape.ep_size)]
    assert held == list(range(experts))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize(
    ("about", "quantisation"),
    [
        ({}, Quantisation()),
        ({"torch_dtype": "bfloat16"}, Quantisation()),
        ({"dtype": "float32"}, Quantisation("float32")),
        ({"quantization_config": FP8}, Quantisation("fp8_w8a8", (128, 128))),
        ({"quantization_config": {"quant_method": "fp8"}}, Quantisation("fp8_w8a8")),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {
                        "group_0": {
                            "weights": {"type": "float", "num_bits": 8, "block_structure": [128, 128]},
                            "input_activations": {"type": "float", "num_bits": 8},
                        }
                    },
                }
            },
            Quantisation("fp8_w8a8", (128, 128)),
        ),
    ],
)
def test_the_quantisation_is_read_from_the_configuration(about: dict[str, Any], quantisation: Quantisation) -> None:
    assert model_of({**QWEN3, **about}).quantisation == quantisation


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts": None}, "no MoE layers"),
        ({"num_experts": True}, "num_experts must be a whole number"),
        ({"num_experts": [128]}, "num_experts must be a whole number"),
        ({"hidden_size": "2048"}, "hidden_size must be a whole number"),
        ({"num_experts_per_tok": 129}, "129 of 128 experts"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quant_method 'mxfp4' depends on the kernel"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "only FP8 on both sides"),
        ({"quantization_config": {**FP8, "weight_block_size": [128]}}, "two whole numbers"),
    ],
)
def test_what_cannot_be_known_is_said_in_one_line(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, **change}))
    with pytest.raises(UsageError, match=words) as caught:
        read_model(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_a_configuration_is_a_usage_error(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"config\.json"):
        read_model(tmp_path)


def test_a_shape_is_read_in_any_order() -> None:
    assert parse_shape("E=128,N=768,K=2048,top-k=8") == MoeShape(128, 768, 2048, 8)
    assert parse_shape("ep=4, top-k=8, K=2048, N=768, E=128") == MoeShape(128, 768, 2048, 8, ep_size=4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is none of its parts"),
        ("E=128", "lacks N, K, top-k"),
        ("E=128,N=768,K=2048,top_k=8", "'top_k=8' is none"),
        ("E=128,N=768,K=2048,top-k=8,", "'' is none"),
        ("E=128,E=64,N=768,K=2048,top-k=8", "E stands there twice"),
        ("E=128,N=0,K=2048,top-k=8", "at least 1"),
        ("E=-1,N=1,K=1,top-k=1", "'E=-1' is none"),
        ("E=8,N=768,K=2048,top-k=9", "9 of 8 experts"),
        ("E=8,N=768,K=2048,top-k=2,ep=9", "too few for 9 ranks"),
    ],
)
def test_another_shape_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_shape(text)
    assert str(caught.value).startswith("--shape")


@given(st.text(alphabet="ENKtop-ep=,0123456789 \n", max_size=40))
@settings(max_examples=50)
def test_no_text_breaks_the_reader_of_shapes(text: str) -> None:
    with suppress(UsageError):
        parse_shape(text)
