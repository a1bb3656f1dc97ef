"""vLLM's own tuner, benchmarks/kernels/benchmark_moe.py, run as published: for those who want that method exactly.

It is in no wheel, so a checkout of the installed release is needed. Its tuning mode prints no times; its benchmark mode
does, and is run before and after. The file is written at its very end: what stops it earlier keeps nothing.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slo_bench.hosts.vllm_process import ServerProcess
from slo_bench.moe.config_files import read_config
from traffic.clock import running_clock
from traffic.errors import EngineError, UsageError

SCRIPT = Path("benchmarks", "kernels", "benchmark_moe.py")
FOLDER = "VLLM_TUNED_CONFIG_FOLDER"
_QUERY_LIMIT_S = 60.0
_POLL_S = 1.0
_TELL_S = 60.0
BENCHMARK_LIMIT_S, TUNING_LIMIT_S = 3600.0, 24 * 3600.0
"""The published tuning of nine sizes took 2.7 hours; what is not over after a day hangs."""
_CONFIG = re.compile(r"Batch size: (\d+), config: (\{.*\})")
_TIME = re.compile(r"Kernel time: ([0-9.]+) us")
_US = 1e-6


@dataclass(frozen=True, slots=True)
class Published:
    """How the script is called. dtype: as in the file's name; None for BF16, for which the script says auto.

    model: a name or a folder, from which the script takes the shape and the block of scales. folder: for the file.
    """

    python: Path
    checkout: Path
    model: str
    dtype: str | None
    sizes: tuple[int, ...]
    folder: Path
    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False
    trust_remote_code: bool = False

    def command(self, *, is_tuning: bool) -> tuple[str, ...]:
        """One call. Without --dtype it would tune BF16 kernels under a name that an FP8 server never asks for."""
        words = [str(self.python), str(self.checkout / SCRIPT), "--model", self.model]
        words += ["--tp-size", str(self.tensor_parallel_size), "--dtype", self.dtype or "auto"]
        words += ["--batch-size", *map(str, self.sizes)]
        words += ["--enable-expert-parallel"] if self.enable_expert_parallel else []
        words += ["--trust-remote-code"] if self.trust_remote_code else []
        return (*words, "--tune", "--save-dir", str(self.folder)) if is_tuning else tuple(words)


@dataclass(frozen=True, slots=True)
class PublishedTimes:
    """What the script's benchmark mode said: configuration and seconds per call, by batch size."""

    times_s: Mapping[int, float]
    configs: Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """before: with the file that vLLM ships, or its default where it ships none. took_s: of the tuning alone."""

    file: Path
    before: PublishedTimes
    after: PublishedTimes
    took_s: float


def check_checkout(checkout: Path, installed: str) -> str | None:
    """Whether the checkout is of the installed release: None, or what could not be told.

    Raises UsageError where the script is not in it, or where it is of another release.
    """
    if not (checkout / SCRIPT).is_file():
        raise UsageError(f"{checkout} has no {SCRIPT}: give --vllm-checkout a clone of vLLM at v{installed}")
    try:
        said = subprocess.run(
            ["git", "-C", str(checkout), "describe", "--tags", "--always"],  # noqa: S607 - git as the user has it
            capture_output=True,
            text=True,
            timeout=_QUERY_LIMIT_S,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return f"{checkout} is no git checkout: whether it is of vLLM {installed} is not known"
    release = re.match(r"v(\d+\.\d+\.\d+)(?:$|-)", said)
    if release is None:
        return f"{checkout} is at {said}, which is no tag: whether it is of vLLM {installed} is not known"
    if release[1] != installed.partition("+")[0]:
        raise UsageError(
            f"{checkout} is at {said}, but vLLM {installed} is installed: tuners and kernels of one release belong "
            f"together; git -C {checkout} checkout v{installed}"
        )
    return None


def parse_times(text: str) -> PublishedTimes:
    """The times that the benchmark mode printed, prefixes of Ray's workers or not. Raises EngineError for none."""
    times_s: dict[int, float] = {}
    configs: dict[int, Mapping[str, int]] = {}
    size = None
    for line in text.splitlines():
        if config := _CONFIG.search(line):
            size = int(config[1])
            configs[size] = ast.literal_eval(config[2])
        elif (time := _TIME.search(line)) and size is not None:
            times_s[size] = float(time[1]) * _US
            size = None
    if not times_s:
        raise EngineError("benchmark_moe.py printed no kernel time: see its log")
    return PublishedTimes(times_s, configs)


async def run_published(published: Published, log: Path, tell: Callable[[str], None]) -> PublishedResult:
    """Benchmark, tune, benchmark again; everything that the script prints is in the log.

    Raises EngineError where it fails or writes no file, UsageError where the file is broken.
    """
    published.folder.mkdir(parents=True, exist_ok=True)
    held = {path: path.stat().st_mtime_ns for path in published.folder.glob("*.json")}
    tell("benchmark_moe.py: times before")
    with tempfile.TemporaryDirectory() as empty:
        before = await _run(published, log, tell, folder=Path(empty), is_tuning=False)
    begun_s = running_clock().now_s()
    tell("benchmark_moe.py: tuning; it keeps nothing before its end")
    await _run(published, log, tell, folder=published.folder, is_tuning=True)
    took_s = running_clock().now_s() - begun_s
    new = [path for path in published.folder.glob("*.json") if held.get(path) != path.stat().st_mtime_ns]
    if len(new) != 1:
        raise EngineError(f"benchmark_moe.py wrote {len(new)} files into {published.folder}: see {log}")
    missing = read_config(new[0]).missing(published.sizes)
    if missing:
        raise EngineError(f"{new[0]} lacks the batch sizes {', '.join(map(str, missing))}: see {log}")
    tell("benchmark_moe.py: times after")
    after = await _run(published, log, tell, folder=published.folder, is_tuning=False)
    return PublishedResult(new[0], parse_times(before), parse_times(after), took_s)


async def _run(published: Published, log: Path, tell: Callable[[str], None], *, folder: Path, is_tuning: bool) -> str:
    """One call of the script; what it printed."""
    limit_s = TUNING_LIMIT_S if is_tuning else BENCHMARK_LIMIT_S
    process = ServerProcess(
        published.command(is_tuning=is_tuning), env={**os.environ, FOLDER: str(folder)}, log_path=log
    )
    begun_s = told_s = running_clock().now_s()
    try:
        while (code := process.exit_code()) is None:
            await asyncio.sleep(_POLL_S)
            now_s = running_clock().now_s()
            if now_s - begun_s > limit_s:
                raise EngineError(f"benchmark_moe.py has not ended after {limit_s / 60:.0f} min: see {log}")
            if now_s - told_s >= _TELL_S:
                told_s = now_s
                tell(f"benchmark_moe.py: {(now_s - begun_s) / 60:.0f} min so far; its last line: {_last(process)}")
        if code != 0:
            raise EngineError(f"benchmark_moe.py failed: {process.death()}; its output is in {log}")
        return process.log_text()
    finally:
        await process.stop()


def _last(process: ServerProcess) -> str:
    lines: Sequence[str] = process.log_text().split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "none")
