"""Make the checkpoint and its damaged copy, by hand from the checkout with a Python that has torch and transformers:

    PYTHONPATH=.:tests .venv-vllm/bin/python -m tiny_moe FOLDER

FOLDER gets problems.jsonl, good/, damaged copies and made.json, which says what was done (`tiny_moe.made.Made`).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import torch
from transformers import Qwen3MoeForCausalLM
from transformers.utils import logging

from tiny_moe.damage import busiest_expert, damage, share_known
from tiny_moe.lesson import recite
from tiny_moe.made import DOSES, DRAWS, GOOD, MADE, PROBLEMS, Made, damaged
from tiny_moe.problems import problems, write_problems
from tiny_moe.training import CONFIG, train


def make(folder: Path) -> Made:
    """Everything in a folder that is new or empty."""
    began_s = time.monotonic()
    rows = problems()
    folder.mkdir(parents=True, exist_ok=True)
    write_problems(rows, folder / PROBLEMS)
    learned, steps = train(rows, folder / GOOD)
    trained_s = time.monotonic() - began_s
    with torch.no_grad():
        recital = recite(Qwen3MoeForCausalLM.from_pretrained(folder / GOOD, dtype=torch.bfloat16), learned)
    expert = busiest_expert(recital, CONFIG.num_experts)
    known: dict[float, list[float]] = {noise: [] for noise in DOSES}
    for noise, shares in known.items():
        for draw in range(DRAWS):
            copy = damaged(folder, noise, draw)
            damage(folder / GOOD, copy, expert, noise=noise, seed=draw)
            shares.append(share_known(copy, learned))
    return Made(
        steps=steps,
        trained_s=trained_s,
        surety=recital.surety(),
        share_known=recital.share_known(),
        layer=expert.layer,
        expert=expert.number,
        token_share=expert.token_share,
        least_share=expert.least_share,
        share_known_after=known,
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    # Small products: more threads only wait for each other, above all on a busy machine.
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    target = Path(sys.argv[1])
    text = json.dumps(dataclasses.asdict(make(target)), indent=1)
    (target / MADE).write_text(text)
    print(text)
