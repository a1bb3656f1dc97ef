"""Noise in one expert's weights, and which expert to choose."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeForCausalLM

from tiny_moe.lesson import Lesson, Recital, recite

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Expert:
    """An expert and its part in the answers.

    token_share: of all tokens of all answers, how many go through it. least_share: the same in the answer that needs
    it least.
    """

    layer: int
    number: int
    token_share: float
    least_share: float


def busiest_expert(recital: Recital, experts: int) -> Expert:
    """The expert of the first layer that the router chose most often; all later layers read what it says."""
    found = []
    for number in range(experts):
        is_sent = (recital.choices[0] == number).any(-1).double()
        shares = [float(is_sent[recital.problem == row].mean()) for row in recital.problem.unique()]
        found.append(Expert(0, number, float(is_sent.mean()), min(shares)))
    return max(found, key=lambda expert: expert.token_share)


def damage(source: Path, target: Path, expert: Expert, *, noise: float, seed: int) -> None:
    """Copy a checkpoint with normal noise added to one expert.

    noise: its standard deviation in units of that of each of the expert's three matrices.
    """
    shutil.copytree(source, target)
    weights = load_file(source / WEIGHTS)
    draw = torch.Generator().manual_seed(seed)
    for name, matrix in sorted(weights.items()):
        if name.startswith(f"model.layers.{expert.layer}.mlp.experts.{expert.number}."):
            spread = noise * matrix.float().std()
            noisy = matrix.float() + spread * torch.randn(matrix.shape, generator=draw)
            weights[name] = noisy.to(matrix.dtype)
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})


def share_known(folder: Path, learned: Lesson) -> float:
    """The share of the problems that a checkpoint knows by heart."""
    model = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.no_grad():
        return recite(model, learned).share_known()
