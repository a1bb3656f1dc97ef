"""Whether a vLLM server ran the MoE kernel configuration that was meant, told from its log.

A tuner's claim proves nothing: a file under another name, in another folder or for another kernel library is passed
over and nothing fails. Proof is what the log says: the Triton backend, and which file it read or that it found none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Literal

from slo_bench.hosts.log_facts import LogFacts, MoeBackend, MoeLookup

USUAL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Batch sizes, in tokens, that vLLM's own tuner measures."""

_FOLDER = "VLLM_TUNED_CONFIG_FOLDER"
_FAR = 2  # neighbours among the usual sizes are at most this factor apart
FILE_READERS = ("TRITON", "BATCHED_TRITON")
"""MoE backends that read tuned files."""

_CHOOSERS = (
    "VLLM_USE_DEEP_GEMM",
    "VLLM_MOE_USE_DEEP_GEMM",
    "VLLM_USE_FLASHINFER_MOE_FP8",
    "VLLM_TEST_FORCE_FP8_MARLIN",
)
_NAMES_BACKEND = (0, 20)
_SHOWN = 3
FILE_NAME = re.compile(
    r"E=(?P<E>\d+),N=(?P<N>\d+),device_name=(?P<device_name>.*?)(?:,dtype=(?P<dtype>[^,]*))?"
    r"(?:,block_shape=(?P<block_shape>\[[^\]]*\]))?\.json"
)
"""What vLLM names a MoE file by; dtype and block_shape are None where left out."""


def moe_faults(expected: Path | Literal["default"], facts: LogFacts, env: Mapping[str, str]) -> tuple[str, ...]:
    """Every way in which the server did not run what was meant, one line each with what to do; empty is the proof.

    expected: the tuned file as this machine sees it, or "default" for the heuristic. facts: of the whole log of one
    start, a container's paths mapped back. env: the server's environment. Reads the file and its folder.

    A file must be the one for a process's lookups. Layers of other shapes in the same process (a draft model, LoRA)
    may look for other names; a second model on another backend is a fault, as the log does not say whose it is.
    """
    faults = [*_backend_faults(expected, facts), *_lookup_faults(expected, facts, env), *_disagreements(facts)]
    faults += _environment_faults(expected, facts, env)
    if expected != "default":
        faults += file_faults(expected, facts.max_num_batched_tokens)
    return tuple(dict.fromkeys(faults))


def name_differences(asked: str, present: str) -> dict[str, tuple[str, str]] | None:
    """The parts in which a file's name differs from the one asked for, each as (present, asked); "none" where left out.

    A part is E (experts on a rank), N (intermediate columns on a rank), device_name, dtype (none for BF16) or
    block_shape. vLLM compares letter by letter, so that a space counts. None when one is no MoE file's name.
    """
    want, have = FILE_NAME.fullmatch(asked), FILE_NAME.fullmatch(present)
    if want is None or have is None:
        return None
    parts = {part: (have[part] or "none", want[part] or "none") for part in want.groupdict()}
    return {part: pair for part, pair in parts.items() if pair[0] != pair[1]}


def _backend_faults(expected: Path | Literal["default"], facts: LogFacts) -> Iterator[str]:
    for backend in facts.moe_backends:
        if not _reads_files(backend):
            where = f" of {backend.process}" if backend.process else ""
            yield (
                f"the {backend.kind} MoE backend{where} is {backend.name}, which reads no tuned file: start the server "
                "with --moe-backend triton, on a GPU"
            )
    paths = [path for lookup in facts.moe_lookups for path in _paths(lookup)]
    names = [PurePath(path).name for path in paths] if expected == "default" else [expected.name]
    version = re.match(r"(\d{1,9})\.(\d{1,9})", facts.version or "")
    is_told = version is not None and (int(version[1]), int(version[2])) >= _NAMES_BACKEND
    if facts.moe_lookups and not facts.moe_backends and is_told and any("dtype=fp8_w8a8" in name for name in names):
        yield (
            f"the log names no MoE backend, as vLLM {facts.version} does for FP8; its MoE line may be of other layers: "
            "keep the whole log, at level INFO"
        )


def _lookup_faults(expected: Path | Literal["default"], facts: LogFacts, env: Mapping[str, str]) -> Iterator[str]:
    if not facts.moe_lookups:
        if all(map(_reads_files, facts.moe_backends)) and not _is_invariant(env):
            yield _neither(facts, env)
    elif expected == "default":
        for (used, _), who in _by_result(facts.moe_lookups).items():
            if used is not None:
                yield f"{who} used {used} although the default was meant: {_out_of_reach(used, env)}"
    else:
        proven = {_origin(each) for each in facts.moe_lookups if each.used and _is_same(each.used, expected)}
        others = [each for each in facts.moe_lookups if _origin(each) not in proven]
        if proven:
            others = [each for each in others if not _is_of_lora(each, expected)]
        for (used, asked), who in _by_result(others).items():
            yield f"{who} {_why_other(used, asked, expected, facts)}"


def _by_result(lookups: Iterable[MoeLookup]) -> dict[tuple[str | None, tuple[str, ...]], str]:
    """Who came to each result: the workers of a server say the same thing once."""
    results: dict[tuple[str | None, tuple[str, ...]], list[MoeLookup]] = {}
    for lookup in lookups:
        results.setdefault((lookup.used, lookup.asked), []).append(lookup)
    return {result: _who(same) for result, same in results.items()}


def _neither(facts: LogFacts, env: Mapping[str, str]) -> str:
    text = "the log says neither which MoE file was used nor that the default was"
    for name, loud in (("VLLM_LOGGING_LEVEL", ("", "INFO", "DEBUG")), ("VLLM_CONFIGURE_LOGGING", ("", "1"))):
        if env.get(name, "").upper() not in loud:
            return f"{text}: {name}={env[name]} hides such lines; unset it"
    if not facts.is_ready:
        return f"{text}, nor that the server got ready: keep its log from the start until then"
    return (
        f"{text}: another backend, batch-invariant mode or a model without MoE layers reads no file; start with "
        "--moe-backend triton, without VLLM_BATCH_INVARIANT"
    )


def _out_of_reach(used: str, env: Mapping[str, str]) -> str:
    folder = env.get(_FOLDER)
    if folder and _is_same(str(PurePath(used).parent), Path(folder)):
        return f"unset {_FOLDER}"
    return "this vLLM ships a file for the shape; take it out of reach, in an installation of its own"


def _why_other(used: str | None, asked: Sequence[str], expected: Path, facts: LogFacts) -> str:
    """What was run in place of the file that was meant, and what to do."""
    if used is None:
        return f"ran the default configuration: {_why_default(asked, expected, facts)}"
    if PurePath(used).name != expected.name:
        return f"used {used}: {_compared(PurePath(used).name, expected, facts)}"
    return f"used the file of that name in {PurePath(used).parent}: {_set_folder(expected)}, where it looks first"


def _why_default(asked: Sequence[str], expected: Path, facts: LogFacts) -> str:
    """Why a default was run where a file was meant, and what to do."""
    if not asked:
        return "its log line does not say what it looked for; keep the whole line"
    named = [path for path in asked if PurePath(path).name == expected.name]
    if not named:
        return _compared(PurePath(asked[0]).name, expected, facts)
    if not any(_is_same(path, expected) for path in named):
        folders = " and ".join(str(PurePath(path).parent) for path in named)
        return f"it looked for that name in {folders}{_tilde(named[0])}: {_set_folder(expected)}"
    if not expected.is_file():
        return f"{expected} does not exist; put the file there before the start"
    return (
        f"it did not find {expected}, which is there now: it was written after the start, or the server sees another "
        "file system (container, node); mount the folder and start again"
    )


def _compared(asked: str, expected: Path, facts: LogFacts) -> str:
    """The name asked for beside the files in the folder, the expected one first, then the nearest; and what to do."""
    files: list[str] = []
    with suppress(OSError):
        files = [path.name for path in expected.parent.iterdir() if path.suffix == ".json"]
    compared = {name: name_differences(asked, name) for name in sorted({expected.name, *files})}
    named = {name: parts for name, parts in compared.items() if parts is not None}
    if not named:
        return f"it looked for {asked}, and no file in {expected.parent} is named as vLLM names them; use that name"
    nearest = sorted(named, key=lambda name: (name != expected.name, len(named[name])))[:_SHOWN]
    shown = "; ".join(f"{name} has {_in_words(named[name])}" for name in nearest)
    return f"it looked for {asked}; in {expected.parent}, {shown}: {_remedy(named[nearest[0]], facts)}"


def _in_words(parts: Mapping[str, tuple[str, str]]) -> str:
    return ", ".join(f"{part} {have} instead of {want}" for part, (have, want) in parts.items()) or "that very name"


def _remedy(parts: Mapping[str, tuple[str, str]], facts: LogFacts) -> str:
    dtype, (have, want) = parts.get("dtype"), parts.get("block_shape", ("", ""))
    is_other_block = have.replace(" ", "") != want.replace(" ", "")
    if "E" in parts or "N" in parts:
        return "tune for the server's model, tensor-parallel and expert-parallel sizes"
    if is_other_block and facts.block_refinement is not None:
        return f"vLLM refined the blocks to {facts.block_refinement.after} to fit this shard; tune for those"
    if is_other_block or dtype not in (None, ("bf16", "none")):
        return "tune with the server's quantisation (benchmark_moe.py --dtype)"
    return "give it that name, if it was tuned on this very GPU"


def _disagreements(facts: LogFacts) -> Iterator[str]:
    """One line for each name for which processes came to different results."""
    results: dict[str, dict[str, list[MoeLookup]]] = {}
    for lookup in facts.moe_lookups:
        for name in {PurePath(path).name for path in _paths(lookup)}:
            results.setdefault(name, {}).setdefault(lookup.used or "the default", []).append(lookup)
    for name, by_result in results.items():
        if len(by_result) > 1:
            shown = "; ".join(f"{_who(lookups)} ran {result}" for result, lookups in by_result.items())
            yield f"workers disagree about {name}: {shown}; give every node the same file at the same path"


def _environment_faults(expected: Path | Literal["default"], facts: LogFacts, env: Mapping[str, str]) -> Iterator[str]:
    runs_triton = bool(facts.moe_backends) and all(map(_reads_files, facts.moe_backends))
    for name in _CHOOSERS:
        # A zero only takes one library off the list, which cannot matter once Triton is seen to be chosen.
        if name in env and not (runs_triton and env[name].strip() == "0"):
            yield f"{name}={env[name]} chooses the MoE backend by being set, even to its default: unset it"
    if _is_invariant(env):
        value = env["VLLM_BATCH_INVARIANT"]
        yield f"VLLM_BATCH_INVARIANT={value} makes vLLM read no MoE file and use a fixed configuration: unset it"
    folder = env.get(_FOLDER)
    if expected == "default" or folder is None or _is_same(folder, expected.parent):
        return
    if not any(lookup.used and _is_same(lookup.used, expected) for lookup in facts.moe_lookups):
        yield f"{_FOLDER}={folder}{_tilde(folder)} is not the folder of the file: {_set_folder(expected)}"


def file_faults(path: Path, most_tokens: int | None) -> Iterator[str]:
    """What is wrong with a tuned file for a server whose steps have at most so many tokens; None: all usual sizes."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        yield f"{path} cannot be read ({(error.strerror or 'unknown reason').lower()}): name the tuned file"
        return
    except (ValueError, RecursionError) as error:
        yield f"{path} is not valid JSON ({error}): vLLM fails on it; write or tune it again"
        return
    if not isinstance(content, dict):
        yield f"{path} holds no JSON object of batch sizes: tune again"
        return
    content.pop("triton_version", None)
    wrong = [key for key in content if _size(key) is None]
    if wrong:
        yield f"{path} has keys that are no batch sizes ({', '.join(wrong[:_SHOWN])}): vLLM fails on them; remove them"
    sizes = [size for key in content if (size := _size(key)) is not None]
    if not sizes:
        yield f"{path} has no batch size: tune again"
        return
    empty = [key for key, entry in content.items() if not isinstance(entry, dict) or not entry]
    if empty:
        yield f"{path} has no configuration for {', '.join(empty[:_SHOWN])}: tune these sizes again"
    far = far_sizes(sizes, [size for size in USUAL_SIZES if most_tokens is None or size <= most_tokens])
    if far:
        shown = "; ".join(f"{', '.join(map(str, served))} would run the one for {key}" for key, served in far.items())
        yield (
            f"{path} misses batch sizes: {shown}; vLLM takes the nearest key, however far, and never the default for "
            "a single size: tune these sizes too"
        )


def far_sizes(sizes: Iterable[int], served: Iterable[int]) -> dict[int, list[int]]:
    """Served sizes whose nearest key (the earlier one of two equally near) is more than a factor of two away."""
    keys = list(sizes)
    far: dict[int, list[int]] = {}
    for size in served:
        nearest = min(keys, key=lambda key: abs(key - size))
        if max(nearest, size) > _FAR * min(nearest, size):
            far.setdefault(nearest, []).append(size)
    return far


def _size(key: str) -> int | None:
    with suppress(ValueError):
        return size if (size := int(key)) > 0 else None
    return None


def _reads_files(backend: MoeBackend) -> bool:
    return backend.name.upper() in FILE_READERS


def _is_invariant(env: Mapping[str, str]) -> bool:
    return env.get("VLLM_BATCH_INVARIANT", "").strip() not in ("", "0")


def _is_of_lora(lookup: MoeLookup, expected: Path) -> bool:
    """Whether it looked for the expected name without block shape or dtype, as LoRA does beside a quantised layer."""
    parts = [name_differences(expected.name, PurePath(path).name) for path in _paths(lookup)]
    return bool(parts) and all(
        each and all(part in ("dtype", "block_shape") and have == "none" for part, (have, _) in each.items())
        for each in parts
    )


def _is_same(path: str, other: Path) -> bool:
    with suppress(OSError, ValueError, RuntimeError):  # no path, or a circle of links
        return Path(path).resolve() == other.resolve()
    return False


def _paths(lookup: MoeLookup) -> tuple[str, ...]:
    return lookup.asked if lookup.used is None else (lookup.used,)


def _origin(lookup: MoeLookup) -> tuple[str, int | None]:
    return lookup.process, lookup.pid


def _who(lookups: Iterable[MoeLookup]) -> str:
    return ", ".join(dict.fromkeys(lookup.process or "the server" for lookup in lookups))


def _set_folder(expected: Path) -> str:
    return f"start the server with {_FOLDER}={expected.parent}"


def _tilde(path: str) -> str:
    return " (vLLM does not expand ~)" if path.startswith("~") else ""
