"""Download a model once, before the runs that serve it: `fetch_model.py MODEL [REVISION]`.

A job of its own, so that its time and its cost stand alone. Skipped where the machine has no server to load it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError

from slo_bench.bare_run.machine_file import read_machine_file
from traffic.errors import UsageError

OTHER_WEIGHTS = ("*.bin", "*.pth", "*.pt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*")


def main(words: Sequence[str]) -> int:
    """The program."""
    begun_s = time.monotonic()
    model, revision = words[0], (words[1] if len(words) > 1 else "") or None
    try:
        if read_machine_file().is_simulated:
            sys.stdout.write(f"{model} is not needed here: the engine is simulated; took 0 s\n")
            return 0
        names = HfApi().list_repo_files(model, revision=revision)
        has_safetensors = any(name.endswith(".safetensors") for name in names)
        ignored = list(OTHER_WEIGHTS) if has_safetensors else None
        folder = Path(snapshot_download(model, revision=revision, ignore_patterns=ignored))
    except (OSError, HFValidationError, UsageError) as error:
        raise SystemExit(f"{model} could not be downloaded: {(str(error).splitlines() or ['no reason'])[0]}") from None
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sys.stdout.write(f"{model}: {size / 1e9:.1f} GB; took {time.monotonic() - begun_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
