"""The options that name a MoE layer, by a model or by its shape."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import field_validator, model_validator

from slo_bench.engine_options import option
from slo_bench.hosts.moe_proof import USUAL_SIZES
from slo_bench.moe.routing import Routing, concentrated, uniform, zipf
from slo_bench.moe.shape import MoeShape, Quantisation, parse_shape, read_model
from slo_bench.options import Options, StringList
from traffic.errors import UsageError

LAYER = "the layer"
_ZIPF = re.compile(r"zipf(?:-(\d+(?:\.\d+)?))?")


class LayerOptions(Options):
    """Which layer, and how ranks share it."""

    model: str | None = option(None, "local model folder, or its config.json", group=LAYER, metavar="FOLDER")
    shape: str | None = option(
        None,
        "the layer, in place of a model: E=128,N=768,K=2048,top-k=8 (and ,ep=4); E of all ranks, N on one",
        group=LAYER,
    )
    dtype: str | None = option(None, "with --shape: fp8_w8a8, ... (default: BF16)", group=LAYER)
    block_shape: str | None = option(None, "with --shape: blocks that share a scale", group=LAYER, metavar="N,K")
    tensor_parallel_size: int = option(1, "ranks that share the model", group=LAYER, metavar="N", ge=1)
    data_parallel_size: int = option(1, "replicas; experts are spread over them too", group=LAYER, metavar="N", ge=1)
    enable_expert_parallel: bool = option(default=False, description="whole experts per rank", group=LAYER)

    @model_validator(mode="after")
    def _names_a_layer(self) -> LayerOptions:
        if (self.model is None) == (self.shape is None):
            raise ValueError("give --model FOLDER or --shape E=128,N=768,K=2048,top-k=8, one of the two")
        ranks = self.tensor_parallel_size * self.data_parallel_size
        if self.shape is not None and (ranks > 1 or self.enable_expert_parallel):
            raise ValueError("--shape says itself what a rank holds (N and ep)")
        return self

    def layer(self) -> tuple[MoeShape, Quantisation]:
        """The layer as one rank holds it. Raises UsageError."""
        if self.shape is not None:
            return parse_shape(self.shape), Quantisation(self.dtype, parse_block(self.block_shape))
        model = read_model(Path(self.model or "").expanduser())
        ranks = self.tensor_parallel_size * self.data_parallel_size
        return model.shape(ranks=ranks, is_expert_parallel=self.enable_expert_parallel), model.quantisation


class CaseOptions(LayerOptions):
    """And which batch sizes and routings; the commands say of both what they are for."""

    batch_size: StringList = option([], "batch size in tokens, repeatable", group=LAYER, metavar="N")
    routing: StringList = option([], "uniform, concentrated or zipf-S, repeatable", group=LAYER, metavar="NAME")

    @field_validator("batch_size")
    @classmethod
    def _are_sizes(cls, words: list[str]) -> list[str]:
        return checked_sizes(words)

    @field_validator("routing")
    @classmethod
    def _are_routings(cls, names: list[str]) -> list[str]:
        return checked_routings(names)

    def sizes(self) -> tuple[int, ...]:
        """Batch sizes in tokens, ascending; those of vLLM's own tuner where none is given."""
        return tuple(sorted({int(word) for word in self.batch_size} or USUAL_SIZES))

    def routings(self, shape: MoeShape) -> tuple[Routing, ...]:
        """The patterns, in the order given. Raises UsageError where the shape has no such."""
        return tuple(routing_named(name, shape) for name in self.routing or ["uniform", "concentrated"])


def parse_block(text: str | None) -> tuple[int, int] | None:
    """Two whole numbers in `128,128`; None of None. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*\[?\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\]?\s*", text)
    if match is None:
        raise UsageError(f"--block-shape {text!r}: give two whole numbers, like 128,128")
    return int(match[1]), int(match[2])


def checked_sizes(words: list[str]) -> list[str]:
    """Batch sizes as they are given. Raises ValueError."""
    for word in words:
        if not re.fullmatch(r"[1-9]\d{0,6}", word):
            raise ValueError(f"{word!r} is no number of tokens")
    return words


def checked_routings(names: list[str]) -> list[str]:
    """Names of routings. Raises ValueError."""
    for name in names:
        if name not in ("uniform", "concentrated") and not _ZIPF.fullmatch(name):
            raise ValueError(f"{name!r} is none of uniform, concentrated, zipf-1.0")
    if len(set(names)) < len(names):
        raise ValueError("each routing once")
    return names


def routing_named(name: str, shape: MoeShape) -> Routing:
    """The pattern of that name. Raises UsageError where the shape has no such."""
    if name == "uniform":
        return uniform(shape)
    if name == "concentrated":
        return concentrated(shape)
    match = _ZIPF.fullmatch(name)
    return zipf(shape, float((match and match[1]) or 1.0))
