"""`slo-bench tune`: a configuration file for the fused MoE kernel, with the evidence for every line of it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reports.kernels import KERNELS_NAME, KernelRow, KernelsDocument
from reports.run_directory import to_json
from slo_bench.environment import command_line
from slo_bench.moe.bench import Batch, BenchFacts, KernelBench, Layer
from slo_bench.moe.config_files import ConfigFile, file_name, parse_version, read_config
from slo_bench.moe.routing import Routing, draw
from slo_bench.moe.shape import Quantisation, read_model
from slo_bench.moe.space import KernelConfig, candidates, default_config
from slo_bench.moe.tune import Machines, Tuned, Tuner
from slo_bench.moe.tune_files import SIDE_FOLDER, TunedFolder, TunedSize, shipped_entry, tuned_size
from slo_bench.moe.tune_lane import OpenBench
from slo_bench.moe.tune_machines import machines_for
from slo_bench.moe.tune_options import TuneOptions
from slo_bench.moe.tune_search import Search, Space
from slo_bench.moe.tuning_journal import Begun, Journal, Line, read_journal
from slo_bench.moe.vllm_tuner import Published, PublishedResult, check_checkout, run_published
from slo_bench.stopped import resumable
from slo_bench.store import write_text
from traffic.errors import UsageError

DRAWS = 4
"""Draws of a routing over which the calls of a replay go round, as over the copies of the weights."""

_QUERY_LIMIT_S = 60.0
_WHERE_IS_VLLM = "import importlib.util as u; print((u.find_spec('vllm').submodule_search_locations or [''])[0])"


async def tune(options: TuneOptions) -> int:
    """The command. Raises UsageError and EngineError in one line."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - a search is told while it runs

    if options.tuner == "vllm":
        return await _published(options, say)
    return await run_tune(options, machines_for(options), say)


async def _published(options: TuneOptions, say: Callable[[str], None]) -> int:
    """VLLM's own tuner, with its own times before and after."""
    assert options.vllm_checkout is not None  # noqa: S101 - the options say so
    assert options.model is not None  # noqa: S101 - the options say so
    python = options.vllm_python or Path(sys.executable)
    unknown = check_checkout(options.vllm_checkout, installed_version(python))
    if unknown is not None:
        say(unknown)
    folder = options.folder()
    result = await run_published(
        Published(
            python,
            options.vllm_checkout,
            options.model,
            _published_dtype(options),
            options.sizes(),
            folder,
            options.tensor_parallel_size,
            options.enable_expert_parallel,
        ),
        folder / SIDE_FOLDER / "benchmark_moe.log",
        say,
    )
    for size, before_s in result.before.times_s.items():
        after_s = result.after.times_s.get(size)
        change = "-" if after_s is None else f"{after_s * 1e6:.1f} us, {after_s / before_s - 1:+.1%}"
        say(f"{size:>5} tokens: {before_s * 1e6:.1f} us -> {change} (means, as benchmark_moe.py prints them)")
    side = folder / SIDE_FOLDER / result.file.stem
    write_text(side / KERNELS_NAME, to_json(published_kernels(result)))
    say(f"tuning took {result.took_s / 60:.1f} min")
    say(f"wrote {result.file}; start vLLM with VLLM_TUNED_CONFIG_FOLDER={folder}")
    return 0


def _published_dtype(options: TuneOptions) -> str | None:
    """As given, or as a local model's config.json says."""
    path = Path(options.model or "").expanduser()
    if options.dtype is not None:
        return options.dtype
    if path.exists():
        return read_model(path).quantisation.dtype
    raise UsageError("give --dtype fp8_w8a8, or the model's folder: without it the tuner times BF16 kernels")


def published_kernels(result: PublishedResult) -> KernelsDocument:
    """Its times as kernels.json has them. It draws gates at random, which is nearly uniform routing."""
    rows = [
        KernelRow(tokens=size, routing="benchmark_moe", before_s=before_s, after_s=result.after.times_s[size])
        for size, before_s in result.before.times_s.items()
        if size in result.after.times_s
    ]
    return KernelsDocument(rows=rows, tuning_s=result.took_s)


async def run_tune(options: TuneOptions, machines: Machines, say: Callable[[str], None]) -> int:
    """Tune on these machines and write the files; 0. Raises UsageError and EngineError in one line."""
    shape, quantisation = options.layer()
    first = _Opened(await machines.open_benches[0](), machines.open_benches[0])
    try:
        facts = first.bench.facts
        mark = "[SIMULATED] " if facts.is_simulated else ""
        name = file_name(shape, quantisation, facts.device, parse_version(facts.versions["vllm"]))
        folder = TunedFolder(options.folder(), name)
        folder.check(is_simulated=facts.is_simulated, is_resumed=options.resume)
        routings = options.routings(shape)
        space = _space(options, facts, name)
        about = _about(options, facts, space)
        lines = read_journal(folder.journal, about)
        search = Search(space)
        search.replay(lines)
        say(f"{mark}{name}: {len(space.configs)} configurations x {len(space.sizes)} batch sizes on {facts.device}")
        with resumable(folder.journal):
            tuned = await _searched(
                Tuner(
                    search,
                    replace(machines, open_benches=[first.open, *machines.open_benches[1:]]),
                    Layer(shape, quantisation),
                    _batches(space, routings, options.seed),
                    budget_s=None if options.minutes is None else 60 * options.minutes,
                    tell=lambda line: say(f"{mark}{line}"),
                ),
                folder,
                about,
                lines,
                facts,
            )
    finally:
        await first.close()
    folder.finish(tuned, about, shlex.join(command_line()))
    for line in summary(tuned, folder):
        say(f"{mark}{line}")
    return 0


def summary(tuned: Tuned, folder: TunedFolder) -> Sequence[str]:
    """What came out, a line for each batch size, and how the file is used."""
    lines = [_size_line(tuned_size(choice)) for choice in tuned.choices.values()]
    if not tuned.is_complete:
        lines.append("the budget ended the search before everything was tried; --resume with more --minutes goes on")
    if tuned.left_out:
        lines.append(
            f"{tuned.left_out} configurations were left out: others with their tile are far too slow everywhere"
        )
    beyond = f", {tuned.beyond_s:.0f} s of it beyond the budget" if tuned.beyond_s >= 1 else ""
    lines.append(f"{tuned.spent_s / 60:.1f} min{beyond}")
    lines.append(f"the evidence is in {folder.side}")
    if tuned.facts.is_simulated:
        return [*lines, f"wrote {folder.file}, which is SIMULATED and for no server"]
    return [*lines, f"wrote {folder.file}; start vLLM with VLLM_TUNED_CONFIG_FOLDER={folder.folder}"]


def _size_line(size: TunedSize) -> str:
    parts = []
    for routing, times in size.routings.items():
        change = "the default stays"
        if times.change_share is not None and times.change_interval_share is not None:
            low, high = times.change_interval_share
            change = f"{times.after_s * 1e6:.1f} us, {times.change_share:+.1%} ({low:+.1%} to {high:+.1%})"
        parts.append(f"{routing} {times.before_s * 1e6:.1f} us -> {change}")
    rank = "" if size.default_rank is None else f"; the default was number {size.default_rank} of {size.tried}"
    return f"{size.tokens:>5} tokens: {'; '.join(parts)}{rank}"


async def _searched(
    tuner: Tuner, folder: TunedFolder, about: Mapping[str, str], lines: Sequence[Line], facts: BenchFacts
) -> Tuned:
    """Run with the journal open. The side file comes first: whoever finds the folder knows what it is."""
    folder.begin(about, shlex.join(command_line()), is_simulated=facts.is_simulated)
    with Journal(folder.journal) as journal:
        if not lines:
            journal.append(Begun(about=about))
        tuner.journal = journal
        return await tuner.run()


def _space(options: TuneOptions, facts: BenchFacts, name: str) -> Space:
    shape, quantisation = options.layer()
    version = parse_version(facts.versions["vllm"])
    sizes = options.sizes()
    defaults = {size: default_config(size, shape, quantisation, version).clamped(quantisation) for size in sizes}
    shipped = _shipped(options, facts, name, sizes, quantisation)
    configs = candidates(quantisation, [*defaults.values(), *shipped.values()], shared_bytes=facts.shared_bytes)
    return Space(shape, sizes, tuple(each.name for each in options.routings(shape)), defaults, shipped, configs)


def _shipped(
    options: TuneOptions, facts: BenchFacts, name: str, sizes: Sequence[int], quantisation: Quantisation
) -> dict[int, KernelConfig]:
    """What the file that vLLM brings along holds for each size; empty where it brings none."""
    folder = options.shipped
    if folder is None and not facts.is_simulated:
        folder = installed_configs(options.vllm_python or Path(sys.executable))
    if folder is None or not (folder / name).is_file():
        return {}
    config: ConfigFile = read_config(folder / name)
    found = {size: shipped_entry(config, size) for size in sizes}
    return {size: entry.clamped(quantisation) for size, entry in found.items() if entry is not None}


def installed_configs(python: Path) -> Path | None:
    """Where the vLLM of an interpreter keeps its files; None where it has no vLLM. vLLM is not imported."""
    try:
        answer = subprocess.run(
            [str(python), "-c", _WHERE_IS_VLLM], capture_output=True, text=True, timeout=_QUERY_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    package = answer.stdout.strip()
    return Path(package) / "model_executor" / "layers" / "fused_moe" / "configs" if package else None


def installed_version(python: Path) -> str:
    """The vLLM of an interpreter. Raises UsageError where it has none."""
    ask = "from importlib.metadata import version; print(version('vllm'))"
    try:
        answer = subprocess.run(
            [str(python), "-c", ask], capture_output=True, text=True, timeout=_QUERY_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        raise UsageError(f"{python} has no vLLM: name the interpreter that has it with --vllm-python") from None
    return answer.stdout.strip()


def _about(options: TuneOptions, facts: BenchFacts, space: Space) -> dict[str, str]:
    """What must be equal for a search to go on."""
    shape, quantisation = options.layer()
    return {
        "shape": str(shape),
        "quantisation": str(quantisation),
        "device": facts.device,
        **{f"{name} version": facts.versions.get(name, "unknown") for name in ("vllm", "torch", "triton")},
        "batch sizes": " ".join(map(str, space.sizes)),
        "routings": " ".join(space.routings),
        "configurations": str(len(space.configs)),
        "seed": str(options.seed),
        "simulated": str(facts.is_simulated),
    }


def _batches(space: Space, routings: Sequence[Routing], seed: int) -> dict[int, list[Batch]]:
    return {
        size: [
            Batch(
                routing.name,
                size,
                tuple(draw(routing, space.shape, size, seed=seed, repeat=number) for number in range(DRAWS)),
            )
            for routing in routings
        ]
        for size in space.sizes
    }


class _Opened:
    """A bench that was opened to ask what it is; its first user gets it, later ones a new one."""

    def __init__(self, bench: KernelBench, anew: OpenBench) -> None:
        self.bench, self._anew = bench, anew
        self._is_ours = True

    async def open(self) -> KernelBench:
        if self._is_ours:
            self._is_ours = False
            return self.bench
        return await self._anew()

    async def close(self) -> None:
        if self._is_ours:
            self._is_ours = False
            await self.bench.close()
