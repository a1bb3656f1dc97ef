"""Models of a few layers of another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slo_bench.moe.advising.truncated import FEWER, MORE, depth_of, read_config, write_truncated
from traffic.errors import UsageError

QWEN = {"num_hidden_layers": 48, "vocab_size": 151936, "decoder_sparse_step": 1, "mlp_only_layers": []}
DEEPSEEK = {"num_hidden_layers": 61, "vocab_size": 129280, "first_k_dense_replace": 3, "moe_layer_freq": 1}


def test_layers_with_experts_are_counted_by_each_familys_own_fields() -> None:
    assert depth_of(QWEN).moe_layers == 48
    assert depth_of(DEEPSEEK).moe_layers == 58
    assert depth_of({**QWEN, "mlp_only_layers": [0, 1]}).moe_layers == 46
    assert depth_of({"num_hidden_layers": 32, "vocab_size": 32000}).moe_layers == 32
    every_second = {"num_hidden_layers": 24, "vocab_size": 1, "moe_layer_freq": [0, 1] + [1] * 22}
    assert depth_of(every_second).moe_layers == 23


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**QWEN, "num_hidden_layers": 10}, "has 10 layers"),
        ({**QWEN, "decoder_sparse_step": 2}, "not all layers from 4 to 12 have experts"),
        ({**DEEPSEEK, "first_k_dense_replace": 5}, "not all layers from 4 to 12 have experts"),
        ({"text_config": QWEN, **QWEN}, "text models alone"),
        ({"vocab_size": 5}, "text models alone"),
    ],
)
def test_a_model_whose_layers_differ_where_it_is_cut_is_refused(config: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        depth_of(config)


def test_the_first_layers_keep_what_is_said_of_them(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    config = {**QWEN, "layer_types": ["full"] * 24 + ["sliding"] * 24, "mlp_only_layers": [2, 40]}
    (model / "config.json").write_text(json.dumps(config))
    for layers in (FEWER, MORE):
        cut = read_config(write_truncated(model, layers, tmp_path / str(layers)))
        assert cut == {**config, "num_hidden_layers": layers, "layer_types": ["full"] * layers, "mlp_only_layers": [2]}
        assert (tmp_path / str(layers) / "tokenizer.json").read_text() == "{}"
    assert read_config(model) == config
