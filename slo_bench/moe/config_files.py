"""vLLM's MoE configuration files: their names, what is in them, and which batch sizes they really cover.

Names as vLLM 0.20.2, 0.22.1, 0.24.0, 0.31.0 and 0.32.0 compute them: get_config_file_name in fused_moe/fused_moe.py,
_get_config_dtype_str in fused_moe/config.py, refine_fp8_moe_block_shape in fused_moe/oracle/fp8.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slo_bench.hosts.moe_proof import FILE_NAME
from slo_bench.moe.shape import MoeShape, Quantisation
from slo_bench.store import write_text
from traffic.errors import UsageError

Version = tuple[int, int]
"""Major and minor number of a vLLM release."""

_OLDEST: Version = (0, 20)
_LAST_OLD: Version = (0, 24)
_FIRST_NEW: Version = (0, 31)
"""Names were read in releases up to _LAST_OLD and from _FIRST_NEW on; between them the rules changed."""

_FINEST_BLOCK = 32
_TRITON = "triton_version"


@dataclass(frozen=True, slots=True)
class FileKey:
    """What a file's name says. experts and columns: of one rank. device: as the name spells it."""

    experts: int
    columns: int
    device: str
    quantisation: Quantisation


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file holds. Batch sizes stay in the file's order, which decides between two equally near ones.

    entries: batch size in tokens -> launch options; what is not known among them is kept as it is, since vLLM hands all
    of them to the kernel. unknown: everything that stands beside batch sizes; vLLM fails on it.
    """

    entries: Mapping[int, Mapping[str, Any]]
    triton_version: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def nearest(self, tokens: int) -> Mapping[str, Any]:
        """The entry that vLLM runs for so many tokens. Raises UsageError for a file without any."""
        return self.entries[nearest_size(self.entries, tokens)]

    def missing(self, sizes: Iterable[int]) -> tuple[int, ...]:
        """Of these batch sizes, those without an entry of their own."""
        return tuple(size for size in sizes if size not in self.entries)

    def with_entries(self, entries: Mapping[int, Mapping[str, Any]]) -> ConfigFile:
        """The file with these sizes added, or put in place of what it had for them; sizes ascend."""
        return replace(self, entries=dict(sorted({**self.entries, **entries}.items())))


def parse_version(text: str) -> Version:
    """Major and minor number in 0.24.0, v0.31.1rc1.dev3+cu129 and the like. Raises UsageError."""
    match = re.match(r"v?(\d{1,6})\.(\d{1,6})(?!\d)", text)
    if match is None:
        raise UsageError(f"{text!r} is no version of vLLM; give it like 0.24.0")
    return int(match[1]), int(match[2])


def file_name(shape: MoeShape, quantisation: Quantisation, device: str, version: Version, *, rank: int = 0) -> str:
    """The name of the file that a rank looks for.

    device: as NVML and torch name the GPU, like "NVIDIA H200". rank: ranks look for different files where experts are
    spread unevenly. Raises UsageError where the version refuses the shape, or is one whose rules are not known.
    """
    if version < _OLDEST:
        raise UsageError(f"file names of vLLM before {_text(_OLDEST)} are not known; take the name from its warning")
    names, refusals = [], []
    for is_new in (False, True):
        if (is_new and version <= _LAST_OLD) or (not is_new and version >= _FIRST_NEW):
            continue
        try:
            names.append(_name(shape, quantisation, device, rank, is_new=is_new))
        except UsageError as error:
            refusals.append(error)
    if not names:
        raise refusals[0]
    if refusals or len(set(names)) > 1:
        raise UsageError(
            f"what vLLM {_text(version)} looks for here is not known (releases up to {_text(_LAST_OLD)} differ from "
            f"{_text(_FIRST_NEW)}); take the name from its warning"
        )
    return names[0]


def rank_names(shape: MoeShape, quantisation: Quantisation, device: str, version: Version) -> tuple[str, ...]:
    """The distinct names that the ranks of a server look for: two where experts are spread unevenly."""
    names = (file_name(shape, quantisation, device, version, rank=rank) for rank in range(shape.ep_size))
    return tuple(dict.fromkeys(names))


def parse_name(name: str) -> FileKey | None:
    """What a file's name says; None when it is not a name that vLLM would ask for."""
    match = FILE_NAME.fullmatch(name)
    if match is None or max(len(match["E"]), len(match["N"])) > _DIGITS:
        return None
    block = re.fullmatch(r"\[(\d{1,6}),(\d{1,6})\]", match["block_shape"] or "")
    if match["block_shape"] and block is None:
        return None
    try:
        quantisation = Quantisation(match["dtype"], (int(block[1]), int(block[2])) if block else None)
    except UsageError:
        return None
    return FileKey(int(match["E"]), int(match["N"]), match["device_name"], quantisation)


_DIGITS = 9


def device_in_name(device: str, *, is_new: bool = True) -> str:
    """A device's name as a file's name spells it. is_new: vLLM 0.31 and later, which also replaces slashes."""
    spelt = re.sub(r"[\s/]+", "_", device) if is_new else device.replace(" ", "_")
    return "NVIDIA_H200" if "H200" in spelt.split("_") else spelt


def refined_block(block: tuple[int, int], shape: MoeShape) -> tuple[int, int] | None:
    """The blocks that vLLM 0.31 and later cuts a checkpoint's FP8 blocks into, so that they fit a rank's columns.

    The same blocks where they fit; None where no finer ones of at least 32 do.
    """
    if shape.columns % block[0] == 0 and (shape.slices == 1 or shape.columns % block[1] == 0):
        return block
    finest = math.gcd(*block, shape.columns, shape.hidden)
    return (finest, finest) if finest >= _FINEST_BLOCK else None


def nearest_size(sizes: Iterable[int], tokens: int) -> int:
    """VLLM's rule: the size nearest to the tokens of a step, however far; of two equally near ones the earlier one.

    tokens: rows that the kernel gets, padded to the CUDA graph's size. Raises UsageError when there is no size.
    Source: try_get_optimal_moe_config in fused_moe/fused_moe.py.
    """
    nearest = min(sizes, key=lambda size: abs(size - tokens), default=None)
    if nearest is None:
        raise UsageError("the MoE file has no batch size: tune again")
    return nearest


def read_config(path: Path) -> ConfigFile:
    """What a file holds. Raises UsageError in one line for a missing, half-written or otherwise broken one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise UsageError(f"{path} cannot be read ({reason}): name the tuned file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON ({error}): vLLM fails on it; write or tune it again") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object of batch sizes: tune again")
    triton = content.pop(_TRITON, None)
    entries: dict[int, Mapping[str, Any]] = {}
    unknown: dict[str, Any] = {} if isinstance(triton, str | None) else {_TRITON: triton}
    for key, entry in content.items():
        size = _size(key)
        if size is None or not isinstance(entry, dict) or not entry:
            unknown[key] = entry
        else:
            entries[size] = entry
    return ConfigFile(entries, triton if isinstance(triton, str) else None, unknown)


def write_config(path: Path, config: ConfigFile) -> None:
    """Write the file whole, as vLLM's tuner lays it out: triton_version first. What was not known is written back."""
    version = {} if config.triton_version is None else {_TRITON: config.triton_version}
    sizes = {str(size): entry for size, entry in config.entries.items()}
    write_text(path, json.dumps({**version, **sizes, **config.unknown}, indent=4) + "\n")


def shipped_or_tuned(name: str, folders: Sequence[Path]) -> Path | None:
    """The first file of that name, in the order in which vLLM looks: the tuned folder first, then its own."""
    return next((path for folder in folders if (path := folder / name).is_file()), None)


def _name(shape: MoeShape, quantisation: Quantisation, device: str, rank: int, *, is_new: bool) -> str:
    block = quantisation.block_shape
    if block is not None and all(block) and quantisation.dtype == "fp8_w8a8":
        finer = refined_block(block, shape)
        if finer is None or (finer != block and not is_new):
            raise UsageError(
                f"{shape.columns} columns on a rank are no whole FP8 blocks of {block[0]} x {block[1]}: this vLLM "
                "refuses them, or pads them for some kernels; take the name from its log"
            )
        block = finer
    kind = "" if quantisation.dtype is None else f",dtype={quantisation.dtype}"
    # vLLM leaves out a block with a zero, as group sizes of 4-bit weights are given: [0, 128].
    cut = "" if block is None or not all(block) else f",block_shape=[{block[0]},{block[1]}]"
    held = len(shape.held_by(rank))
    return f"E={held},N={shape.columns},device_name={device_in_name(device, is_new=is_new)}{kind}{cut}.json"


def _size(key: str) -> int | None:
    """A key as vLLM reads it, a whole number above 0; None otherwise."""
    try:
        size = int(key)
    except ValueError:
        return None
    return size if size > 0 else None


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
