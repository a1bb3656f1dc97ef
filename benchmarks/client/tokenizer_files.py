"""A small tokenizer on disk, for clients that will not start without one: none can be fetched, and none is measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 1024
TEXTS = 400
_LETTERS = "etaoinshrdlucmfwypvbgk"
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE over made-up words, with settings and template as Hugging Face's loaders want them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "bos_token": SPECIAL[0],
        "chat_template": _TEMPLATE,
        "model_max_length": 131_072,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": VOCABULARY}))


def _texts() -> list[str]:
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list(_LETTERS), size=draw.integers(2, 9))) for _ in range(TEXTS)]
    answers = [" token" * 40] * TEXTS  # what the server says, so that one of its tokens is one of these too
    return answers + [" ".join(draw.choice(words, size=40)) for _ in range(TEXTS)]
