"""Where a run took place: host, interpreter, GPU, versions. Facts that are not there are null, never guessed."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import slo_bench

QUERY_LIMIT_S = 10.0
_GPU_FIELDS = ("name", "uuid", "driver_version", "memory.total", "power.limit")
_PACKAGES = ("httptools", "httpx2", "numpy", "pyarrow", "pydantic", "scipy", "uvloop")


def environment() -> dict[str, object]:
    """The passport of this client, as it stands in run.json."""
    return {
        "slo_bench": slo_bench.__version__,
        "python": platform.python_version(),
        "git": git_state(Path(slo_bench.__file__).parent),
        "packages": {name: _version(name) for name in _PACKAGES},
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": sorted(os.sched_getaffinity(0)),
        "governor": _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "clock_source": _read(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        "gpus": gpus(),
    }


@functools.cache
def git_state(folder: Path) -> str | None:
    """The commit of the checkout that a package belongs to, with " and changes" where files differ; None for none."""
    program = shutil.which("git")
    if program is None:
        return None
    said = []
    asked = (
        ("ls-files", "--error-unmatch", "__init__.py"),  # an environment may lie in somebody else's checkout
        ("rev-parse", "HEAD"),
        ("status", "--porcelain", "--untracked-files=no"),
    )
    for words in asked:
        try:
            answer = subprocess.run(
                [program, "-C", str(folder), *words],
                capture_output=True,
                text=True,
                timeout=QUERY_LIMIT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        said.append(answer.stdout.strip())
    _, commit, changes = said
    return f"{commit} and changes" if changes else commit


def gpus() -> list[dict[str, str]] | None:
    """Name, UUID, driver, memory and power limit of each GPU; None where nvidia-smi is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=QUERY_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [
        dict(zip(_GPU_FIELDS, (value.strip() for value in line.split(",")), strict=False))
        for line in answer.stdout.splitlines()
    ]


_SECRET = ("--api-key", "--header", "--hf-token")


_STANDS_FOR: ContextVar[tuple[str, ...] | None] = ContextVar("stands_for", default=None)
"""The words of the command that another way of asking came to."""


def stands_for(words: Sequence[str]) -> None:
    """From here on this is the command, whatever was typed."""
    _STANDS_FOR.set(tuple(words))


def command_line() -> list[str]:
    """The command as it was typed, for the reproduce block; keys, header values and --resume are left out."""
    typed = sys.argv[1:] if (known := _STANDS_FOR.get()) is None else known
    words = ["slo-bench", *(word for word in typed if word != "--resume")]
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        name, equals, _ = word.partition("=")
        if before in _SECRET:
            shown.append("...")
        elif equals and name in _SECRET:
            shown.append(f"{name}=...")
        else:
            shown.append(word)
    return shown


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def cpu_model() -> str | None:
    """The processor's name; None where the kernel does not tell it."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None
