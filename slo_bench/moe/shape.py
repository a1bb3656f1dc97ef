"""The shape of a model's MoE layers, and what of it one rank holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from traffic.errors import UsageError

DTYPES = ("fp8_w8a8", "fp8_w8a16", "int8_w8a16", "int4_w4a16", "float32")
"""The quantisations that vLLM writes into a file's name; BF16 and FP16 are left out of it."""

_PARTS = {"E": "experts", "N": "columns", "K": "hidden", "top-k": "top_k", "ep": "ep_size"}
_OPTIONAL = {"ep"}
_FORM = "--shape E=128,N=768,K=2048,top-k=8 (and ,ep=4)"
_PART = re.compile(r"([^=]+)=([0-9]{1,9})")
_FIELDS = (
    ("num_experts", "moe_intermediate_size"),  # Qwen2-MoE, Qwen3-MoE
    ("n_routed_experts", "moe_intermediate_size"),  # DeepSeek, GLM, Kimi
    ("num_local_experts", "moe_intermediate_size"),  # Qwen3-MoE as transformers 5 writes it
    ("num_local_experts", "intermediate_size"),  # Mixtral, MiniMax
)
"""Counts of experts and of their columns; the first pair that is there counts. intermediate_size alone can be that of
dense layers."""

_HIDDEN, _TOP_K = "hidden_size", "num_experts_per_tok"


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How weights and activations of the experts are stored: what a file's name says of it.

    dtype: one of DTYPES; None for BF16 and FP16. block_shape: (rows, columns) of weights that share a scale, None where
    scales belong to whole tensors or channels.
    """

    dtype: str | None = None
    block_shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"vLLM's MoE files know no dtype {self.dtype!r}, only {', '.join(DTYPES)} or none")


@dataclass(frozen=True, slots=True)
class MoeShape:
    """One MoE layer as the ranks of one server share it.

    experts: of the whole layer. columns: of one expert's intermediate state on a rank (N in a file's name; the first
    weight has twice as many rows). hidden: width of the model (K). top_k: experts that a token goes to. ep_size: ranks
    that share the experts, whole ones. slices: ranks that each hold a slice of every expert, as tensor parallelism cuts
    them; one of the two is 1.
    """

    experts: int
    columns: int
    hidden: int
    top_k: int
    ep_size: int = 1
    slices: int = 1

    def __post_init__(self) -> None:
        if min(self.experts, self.columns, self.hidden, self.top_k, self.ep_size, self.slices) < 1:
            raise UsageError("every number of a MoE shape is at least 1")
        if self.top_k > self.experts:
            raise UsageError(f"a token cannot go to {self.top_k} of {self.experts} experts: top-k is at most E")
        if self.ep_size > self.experts:
            raise UsageError(f"{self.experts} experts are too few for {self.ep_size} ranks: ep is at most E")

    def held_by(self, rank: int) -> range:
        """The experts of one rank, as vLLM places them by default: in order, the first ranks one more where uneven."""
        if not 0 <= rank < self.ep_size:
            raise UsageError(f"there is no rank {rank} among {self.ep_size}")
        each, more = divmod(self.experts, self.ep_size)
        first = rank * each + min(rank, more)
        return range(first, first + each + (rank < more))


@dataclass(frozen=True, slots=True)
class MoeModel:
    """What a model's config.json says of its MoE layers. intermediate: columns of one whole expert."""

    experts: int
    intermediate: int
    hidden: int
    top_k: int
    quantisation: Quantisation

    def shape(self, *, ranks: int = 1, is_expert_parallel: bool = False, redundant_experts: int = 0) -> MoeShape:
        """The layer on so many ranks: tensor-parallel times data-parallel size, over both of which vLLM spreads it.

        redundant_experts: copies that the load balancer of expert parallelism (EPLB) keeps. Raises UsageError where the
        columns do not divide.
        """
        if ranks < 1 or redundant_experts < 0:
            raise UsageError("a server has at least one rank, and no fewer than no redundant experts")
        experts = self.experts + redundant_experts
        if is_expert_parallel:
            return MoeShape(experts, self.intermediate, self.hidden, self.top_k, ranks)
        if redundant_experts:
            raise UsageError("redundant experts go with expert parallelism")
        if self.intermediate % ranks:
            raise UsageError(
                f"{self.intermediate} columns of an expert cannot be cut for {ranks} ranks; vLLM does not start either"
            )
        return MoeShape(experts, self.intermediate // ranks, self.hidden, self.top_k, slices=ranks)


def parse_shape(text: str) -> MoeShape:
    """The shape in `E=128,N=768,K=2048,top-k=8,ep=4`, in any order; ep may be left out.

    E counts the experts of all ranks together, N the columns on one. Raises UsageError for anything else.
    """
    values: dict[str, int] = {}
    for word in text.split(","):
        part = _PART.fullmatch(word.strip())
        if part is None or part[1] not in _PARTS:
            raise UsageError(f"--shape {text!r}: {word.strip()!r} is none of its parts; give {_FORM}")
        if part[1] in values:
            raise UsageError(f"--shape {text!r}: {part[1]} stands there twice; give {_FORM}")
        values[part[1]] = int(part[2])
    missing = [name for name in _PARTS if name not in values and name not in _OPTIONAL]
    if missing:
        raise UsageError(f"--shape {text!r} lacks {', '.join(missing)}; give {_FORM}")
    try:
        return MoeShape(**{_PARTS[name]: value for name, value in values.items()})
    except UsageError as error:
        raise UsageError(f"--shape {text!r}: {error}") from None


def read_model(path: Path) -> MoeModel:
    """The MoE layers of the model in a folder, or of its config.json. Raises UsageError in one line."""
    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise UsageError(
            f"{file}: {reason}; give a local model folder or its config.json, or the shape: {_FORM}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON ({error}); give the model's config.json") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds no JSON object; give the model's config.json")
    try:
        return model_of(content)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def model_of(config: Mapping[str, Any]) -> MoeModel:
    """The MoE layers that a Hugging Face configuration describes; of a multimodal model, its text part.

    The field names are those of Qwen3-MoE, Mixtral and DeepSeek. Raises UsageError for others and for dense models.
    """
    text = config.get("text_config")
    part: Mapping[str, Any] = {**config, **text} if isinstance(text, dict) else config
    pair = next((pair for pair in _FIELDS if all(part.get(name) is not None for name in pair)), None)
    if pair is None:
        raise UsageError(
            f"no MoE layers as Qwen3-MoE, Mixtral or DeepSeek name them ({part.get('model_type')}): a dense model has "
            f"none, for others give {_FORM}"
        )
    numbers = [_count(part, name) for name in (*pair, _HIDDEN, _TOP_K)]
    experts, intermediate, hidden, top_k = numbers
    model = MoeModel(experts, intermediate, hidden, top_k, quantisation_of(part))
    model.shape()  # whether the numbers make sense together
    return model


def quantisation_of(config: Mapping[str, Any]) -> Quantisation:
    """How the experts are quantised. Raises UsageError where a file's name does not follow from the configuration."""
    about = config.get("quantization_config")
    if about is None:
        kind = config.get("torch_dtype", config.get("dtype"))
        return Quantisation("float32" if kind == "float32" else None)
    method = about.get("quant_method") if isinstance(about, dict) else None
    if method == "fp8":
        return Quantisation("fp8_w8a8", _block(about.get("weight_block_size")))
    if method == "compressed-tensors":
        return _compressed(about)
    raise UsageError(
        f"which file vLLM reads for quant_method {method!r} depends on the kernel that it picks: take the name from "
        "its warning"
    )


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} must be a whole number above 0 (it is {value!r}); else give {_FORM}")
    return value


def _block(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, list) and [type(each) for each in value] == [int, int] and min(value) > 0:
        return value[0], value[1]
    raise UsageError(f"weight_block_size must be two whole numbers (it is {value!r})")


def _compressed(about: Mapping[str, Any]) -> Quantisation:
    """Of compressed-tensors only FP8 on both sides: which kernel runs another scheme is vLLM's choice."""
    groups = about.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights, inputs = (
        first.get(side) if isinstance(first, dict) else None for side in ("weights", "input_activations")
    )
    if not (_is_fp8(weights) and _is_fp8(inputs)):
        raise UsageError("of compressed-tensors only FP8 on both sides is known: take the name from vLLM's warning")
    return Quantisation("fp8_w8a8", _block(weights.get("block_structure")))


def _is_fp8(side: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(side, dict) and (side.get("type"), side.get("num_bits")) == ("float", 8)
