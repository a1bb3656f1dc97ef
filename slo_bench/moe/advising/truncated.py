"""Models of a few layers: what a layer costs is the difference between two of them, without what a model has once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traffic.errors import UsageError

FEWER, MORE = 4, 12
"""Layers of the two models."""

_PER_LAYER = ("layer_types", "mlp_layer_types", "moe_layer_freq")
_KEPT = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True, slots=True)
class Depth:
    """layers: of the whole model. moe_layers: those of them with experts. vocabulary: tokens that it knows."""

    layers: int
    moe_layers: int
    vocabulary: int


def read_config(model: Path) -> dict[str, Any]:
    """The config.json of a model folder, which `read_model` has read before."""
    content: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return content


def depth_of(config: Mapping[str, Any]) -> Depth:
    """Raises UsageError where two of its layers' counts cannot tell what one costs."""
    layers, vocabulary = config.get("num_hidden_layers"), config.get("vocab_size")
    if not isinstance(layers, int) or not isinstance(vocabulary, int) or isinstance(config.get("text_config"), dict):
        raise UsageError(
            "steps are measured of text models alone, whose config.json has num_hidden_layers and vocab_size"
        )
    if layers < MORE:
        raise UsageError(f"the model has {layers} layers; steps are measured of models with at least {MORE}")
    has_experts = [_has_experts(config, number) for number in range(layers)]
    if not all(has_experts[FEWER:MORE]):
        raise UsageError(f"not all layers from {FEWER} to {MORE} have experts, so their difference is no MoE layer's")
    return Depth(layers, sum(has_experts), vocabulary)


def write_truncated(model: Path, layers: int, folder: Path) -> Path:
    """A model folder that is the first layers of another one, without weights; returns it."""
    config = read_config(model)
    for name in _PER_LAYER:
        if isinstance(config.get(name), list):
            config[name] = config[name][:layers]
    if isinstance(config.get("mlp_only_layers"), list):
        config["mlp_only_layers"] = [each for each in config["mlp_only_layers"] if each < layers]
    config["num_hidden_layers"] = layers
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in _KEPT:
        if (model / name).is_file():
            (folder / name).symlink_to((model / name).resolve())
    return folder


def _has_experts(config: Mapping[str, Any], number: int) -> bool:
    """By the fields of Qwen2-MoE and Qwen3-MoE, and of DeepSeek; a model without them has experts in every layer."""
    if number < config.get("first_k_dense_replace", 0) or number in (config.get("mlp_only_layers") or ()):
        return False
    frequency = config.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        return bool(frequency[number])
    return bool(number % frequency == 0 and (number + 1) % config.get("decoder_sparse_step", 1) == 0)
