"""Trains the checkpoint: about 45 s of one core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from tiny_moe.lesson import Lesson, Recital, lesson, recite, spoken
from tiny_moe.problems import Problem
from tiny_moe.tokens import END_OF_TEXT, END_OF_TURN, SPECIAL, VOCABULARY, write_tokenizer

SEED = 1
LEARNING_RATE = 5e-3
WARM_UP_STEPS = 20
BALANCE = 0.01
"""Weight of the loss that keeps the router from leaving experts out."""

SURE = 0.98
"""Training ends when the least sure token has this probability: rounding must not change the text in any engine."""

MOST_STEPS = 600
"""Four seeds were at 0.95 after 114 to 154 steps."""

CONFIG = Qwen3MoeConfig(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=128,
    moe_intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    num_experts=8,
    num_experts_per_tok=2,
    norm_topk_prob=True,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    bos_token_id=SPECIAL.index(END_OF_TEXT),
    eos_token_id=SPECIAL.index(END_OF_TURN),
    pad_token_id=SPECIAL.index(END_OF_TEXT),
)


def train(problems: Sequence[Problem], folder: Path) -> tuple[Lesson, int]:
    """Write a checkpoint in bfloat16 that knows the problems by heart. Returns what it learned, and in how many steps.

    Raises RuntimeError when it does not know them after MOST_STEPS.
    """
    folder.mkdir(parents=True)
    write_tokenizer(map(spoken, problems), folder)
    learned = lesson(problems, folder)
    torch.manual_seed(SEED)
    model = Qwen3MoeForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS))
    for step in range(MOST_STEPS):
        recital = recite(model, learned)
        if recital.surety() >= SURE:
            model.to(torch.bfloat16).save_pretrained(folder)
            return learned, step
        optimizer.zero_grad()
        _loss(recital).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    raise RuntimeError(f"after {MOST_STEPS} steps the checkpoint does not know its problems")


def _loss(recital: Recital) -> torch.Tensor:
    balance = load_balancing_loss_func(recital.router_logits, CONFIG.num_experts, CONFIG.num_experts_per_tok)
    return torch.nn.functional.cross_entropy(recital.logits, recital.wanted) + BALANCE * balance
