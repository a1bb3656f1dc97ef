"""A model's config.json on this machine: of a folder, or from the hub's cache, or from the hub."""

from __future__ import annotations

import logging
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HFValidationError

_CONFIG = "config.json"


def config_of(model: str, *, is_offline: bool = False) -> Path | None:
    """The file, or None where it cannot be had. is_offline: nothing is asked for over the network."""
    folder = Path(model).expanduser()
    if folder.exists():
        file = folder / _CONFIG if folder.is_dir() else folder
        return file if file.is_file() else None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each of its retries would be a line
    for is_local in (True,) if is_offline else (True, False):
        try:
            return Path(hf_hub_download(model, _CONFIG, local_files_only=is_local))
        except HFValidationError:
            return None
        except OSError:  # not in the cache, not on the hub, not allowed, no network
            continue
    return None
