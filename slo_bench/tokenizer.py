"""A local copy of the server's tokenizer, from a folder, a file or the hub."""

from __future__ import annotations

import logging
from pathlib import Path

from traffic.chat_dataset import CountTokens
from traffic.errors import UsageError

FILE = "tokenizer.json"


def load_tokenizer(name: str) -> CountTokens:
    """Tokens of a text, special ones aside, by a tokenizer.json, by the one in a folder, or by a model on the hub.

    Raises UsageError in one line for one that cannot be had or read.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - most runs ask the server instead

    path = Path(name) / FILE if Path(name).is_dir() else Path(name)
    is_local = path.suffix == ".json" or path.exists()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each of its retries would be a line
    try:
        tokenizer = Tokenizer.from_file(str(path)) if is_local else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises nothing more precise
        where = path if is_local else f"{name}, which is no local folder or file"
        raise UsageError(f"--tokenizer {where}: {' '.join(str(error).split())[:200]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
