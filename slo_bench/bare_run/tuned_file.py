"""Whether a folder of tuned MoE files has what the server that is about to start will look for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slo_bench.bare_run.local_model import config_of
from slo_bench.bare_run.machine_file import MachineFile
from slo_bench.bare_run.translation import layer_values
from slo_bench.config import SweepOptions
from slo_bench.hosts.gpu_memory import read_gpus, visible_gpus
from slo_bench.moe.config_files import file_name, parse_version, rank_names
from slo_bench.moe.shape import read_model
from slo_bench.moe.tune_command import installed_version
from slo_bench.moe.tune_files import TunedFolder
from slo_bench.moe.tune_options import TuneOptions
from slo_bench.moe.tune_simulated import DEVICE, VLLM_VERSION
from traffic.errors import UsageError


@dataclass(frozen=True, slots=True)
class Found:
    """file: the name of the tuned file that will be used, as far as one can tell. lack: why none does, else None."""

    file: str
    lack: str | None = None


def look_for_file(folder: Path, model: str, options: SweepOptions, machine: MachineFile) -> Found:
    """What the folder has for this sweep."""
    names = _needed(model, options, machine)
    present = sorted(path.name for path in folder.glob("*.json"))
    remedy = "tune it first: TUNE_MOE=1"
    if not present:
        return Found("", f"TUNED_MOE_DIR {folder} holds no tuned file: {remedy}")
    missing = [name for name in names if name not in present]
    if missing:
        lack = f"TUNED_MOE_DIR {folder} lacks {missing[0]}, which {model} needs here (it has {present[0]}): {remedy}"
        return Found("", lack)
    used = names or present
    made_up = [name for name in used if TunedFolder(folder, name).is_simulated]
    if made_up and not machine.is_simulated:
        return Found("", f"TUNED_MOE_DIR {folder}: {made_up[0]} is SIMULATED, and for no server: {remedy}")
    return Found(used[0])


def _needed(model: str, options: SweepOptions, machine: MachineFile) -> Sequence[str]:
    """The files that the server's ranks look for; empty where that is not known before it says so itself."""
    try:
        if machine.is_simulated:
            search = TuneOptions(**layer_values(model, machine), simulated=True, output=Path())
            return [file_name(*search.layer(), DEVICE, parse_version(VLLM_VERSION))]
        config, reading = config_of(model), read_gpus()
        if config is None or reading is None or any("parallel" in word or word == "-tp" for word in options.vllm_arg):
            return []
        ranks = (options.tensor_parallel_size or 1) * (options.data_parallel_size or 1)
        found = read_model(config)
        shape = found.shape(ranks=ranks, is_expert_parallel=bool(options.enable_expert_parallel))
        version = parse_version(installed_version(options.vllm_python or Path(sys.executable)))
        devices = [gpu.name for gpu in visible_gpus(reading, os.environ)]
        return rank_names(shape, found.quantisation, devices[0], version) if devices else []
    except UsageError:  # a layer, a release or a quantisation whose file name does not follow from what is known
        return []
