"""One rank's MoE layer on the GPU: weights in several copies, inputs, vLLM's call, and a float32 reference of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.model_executor.layers import fused_moe
from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

from .failures import failure_of
from .serving import RefusedError

_SPREAD = 16.0
"""Standard deviation of FP8 weights before their scales: far from the subnormal numbers, far from the largest one."""


@dataclass(frozen=True)
class Weights:
    """w1: (experts, 2 x columns, hidden), gate before up. w2: (experts, hidden, columns). Scales of blocks, or None."""

    w1: torch.Tensor
    w2: torch.Tensor
    scale1: torch.Tensor | None
    scale2: torch.Tensor | None
    quant_config: Any

    def expert(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Both matrices of an expert in float32."""
        return _plain(self.w1[number], self.scale1, number), _plain(self.w2[number], self.scale2, number)


@dataclass(frozen=True)
class Input:
    """One batch. ids: a tensor (tokens, top-k) for each draw, experts by their number in the whole layer."""

    hidden: torch.Tensor
    gates: torch.Tensor
    ids: tuple[torch.Tensor, ...]


class GpuLayer:
    """The layer and its batches. is_compile_only: weights of one expert stand for all, nothing may be launched."""

    def __init__(
        self,
        *,
        shape: Mapping[str, int],
        is_fp8: bool,
        block: int,
        weight_sets: int,
        batches: Sequence[Mapping[str, Any]],
        seed: int,
        is_compile_only: bool,
    ) -> None:
        self.experts, self.columns, self.hidden = shape["experts"], shape["columns"], shape["hidden"]
        self.top_k, self.first, self.held = shape["top_k"], shape["first"], shape["held"]
        self.is_fp8, self.block, self.is_compile_only = is_fp8, block, is_compile_only
        self._random = torch.Generator(device="cuda").manual_seed(seed)
        torch.set_float32_matmul_precision("highest")
        try:
            self.weights = tuple(self._weights() for _ in range(1 if is_compile_only else weight_sets))
            self.inputs = {(each["tokens"], each["routing"]): self._input(each) for each in batches}
        except torch.OutOfMemoryError as error:
            raise RefusedError(
                f"{failure_of(error)}: {weight_sets} copies of the layer's weights and its batches do not fit; free "
                "the GPU or take a smaller layer"
            ) from None
        self.expert_map = self._map() if self.held < self.experts else None

    def call(self, input_: Input, number: int) -> torch.Tensor:
        """The fused MoE of vLLM as call number `number` of a series: copies of weights and draws go round."""
        weights = self.weights[number % len(self.weights)]
        return fused_moe.fused_experts(
            hidden_states=input_.hidden,
            w1=weights.w1,
            w2=weights.w2,
            topk_weights=input_.gates,
            topk_ids=input_.ids[number % len(input_.ids)],
            global_num_experts=self.experts,
            expert_map=self.expert_map,
            quant_config=weights.quant_config,
        )

    def reference(self, input_: Input) -> torch.Tensor:
        """What call number 0 should give, in float32: (tokens, hidden)."""
        hidden, ids, weights = input_.hidden.float(), input_.ids[0], self.weights[0]
        result = torch.zeros_like(hidden)
        for expert in ids.unique().tolist():
            if not self.first <= expert < self.first + self.held:
                continue
            tokens, places = (ids == expert).nonzero(as_tuple=True)
            w1, w2 = weights.expert(expert - self.first)
            gate, up = (hidden[tokens] @ w1.T).chunk(2, dim=1)
            out = (torch.nn.functional.silu(gate) * up) @ w2.T
            result.index_add_(0, tokens, out * input_.gates[tokens, places].unsqueeze(1))
        return result

    def _weights(self) -> Weights:
        count = 1 if self.is_compile_only else self.held
        w1, scale1 = self._matrices(count, 2 * self.columns, self.hidden)
        w2, scale2 = self._matrices(count, self.hidden, self.columns)
        return Weights(w1, w2, scale1, scale2, self._quant_config(scale1, scale2))

    def _matrices(self, count: int, rows: int, depth: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Random matrices whose products keep the size of their input; in FP8 with a different scale for each block."""
        kind = torch.float8_e4m3fn if self.is_fp8 else torch.bfloat16
        made = torch.empty(count, rows, depth, dtype=kind, device="cuda")
        spread = _SPREAD if self.is_fp8 else depth**-0.5
        for matrix in made:
            matrix.copy_(spread * torch.randn(rows, depth, generator=self._random, device="cuda"))
        if not self.is_fp8:
            return made, None
        blocks = (count, -(-rows // self.block), -(-depth // self.block))
        scale = 0.5 + torch.rand(blocks, generator=self._random, device="cuda")
        return made, scale * depth**-0.5 / _SPREAD

    def _quant_config(self, scale1: torch.Tensor | None, scale2: torch.Tensor | None) -> Any:
        if scale1 is None or scale2 is None:
            return None
        return fp8_w8a8_moe_quant_config(w1_scale=scale1, w2_scale=scale2, block_shape=[self.block, self.block])

    def _input(self, batch: Mapping[str, Any]) -> Input:
        tokens = batch["tokens"]
        hidden = torch.randn(tokens, self.hidden, generator=self._random, device="cuda").bfloat16()
        gates = 0.5 + torch.rand(tokens, self.top_k, generator=self._random, device="cuda")
        ids = tuple(torch.from_numpy(np.load(path)).to(device="cuda", dtype=torch.int32) for path in batch["draws"])
        return Input(hidden, gates / gates.sum(dim=1, keepdim=True), ids)

    def _map(self) -> torch.Tensor:
        """Each expert's number on this rank, -1 for those of other ranks."""
        local = torch.full((self.experts,), -1, dtype=torch.int32)
        local[self.first : self.first + self.held] = torch.arange(self.held, dtype=torch.int32)
        return local.cuda()


@contextmanager
def overridden(entry: Mapping[str, int]) -> Iterator[None]:
    """Every call inside runs with this entry. vLLM's own context manager leaks it when a call fails."""
    before = fused_moe.get_config()
    try:
        with fused_moe.override_config(dict(entry)):
            yield
    finally:
        fused_moe._config = before  # noqa: SLF001 - there is no other way to put it back after an error


def _plain(matrix: torch.Tensor, scale: torch.Tensor | None, number: int) -> torch.Tensor:
    plain = matrix.float()
    if scale is None:
        return plain
    rows, depth = plain.shape
    mine = scale[number]
    block = (-(-rows // mine.shape[0]), -(-depth // mine.shape[1]))
    wide = mine.repeat_interleave(block[0], dim=0).repeat_interleave(block[1], dim=1)
    return plain * wide[:rows, :depth]
