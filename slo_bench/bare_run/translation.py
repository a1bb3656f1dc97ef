"""From the environment, and the machine's own file, to one command with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slo_bench.bare_run.local_model import config_of
from slo_bench.bare_run.machine_file import MachineFile
from slo_bench.bare_run.names import EXPERIMENT, KNOWN, NEEDS_VLLM, SWEEP, TUNE, Kind
from slo_bench.bare_run.simulated_sweep import with_tuned_dir
from slo_bench.config import LABEL, SweepOptions
from slo_bench.experiment.command import ExperimentOptions
from slo_bench.moe.tune_options import TuneOptions
from slo_bench.options import Options, flag, load
from slo_bench.store import free_name
from traffic.errors import UsageError

PROG = "slo-bench run"
SIMULATED_LAYER = {"shape": "E=128,N=768,K=2048,top-k=8", "dtype": "fp8_w8a8", "block_shape": "128,128"}
"""What a simulated search tunes where the model's own layer is not known here: Qwen3-30B-A3B-FP8's."""

_NOT_OF_THE_MACHINE = ("model", "output", "resume", "simulated", "tuner", "vllm_checkout")

SomeOptions = TypeVar("SomeOptions", bound=Options)


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search with a run directory. target: the folder for VLLM_TUNED_CONFIG_FOLDER that gets its file at the end."""

    label: str
    runs_dir: Path
    target: Path
    options: TuneOptions
    min_driver: str | None = None

    @property
    def directory(self) -> Path:
        """Its run directory."""
        return self.runs_dir / self.label


@dataclass(frozen=True, slots=True)
class Meant:
    """The command that `slo-bench run` is here.

    words: as it would be typed. model: as given. tuned_dir: the folder whose tuned file a sweep needs. notes: what was
    left out and why.
    """

    options: SweepOptions | ExperimentOptions | Tuning
    words: tuple[str, ...]
    model: str | None = None
    tuned_dir: Path | None = None
    notes: tuple[str, ...] = ()


def meant(environ: Mapping[str, str], machine: MachineFile) -> Meant:
    """What the environment asks for. Raises UsageError in one line, with the name of the variable."""
    given = {name: value for name in _names() if (value := environ.get(name, "").strip())}
    is_tuning = _is_on(given, "TUNE_MOE")
    kind: Kind = "experiment" if "PLAN" in given else "tune" if is_tuning else "sweep"
    if kind == "experiment" and is_tuning:
        raise UsageError("TUNE_MOE=1 and PLAN: one of them; an arm of a plan has a table tune = {...}")
    strangers = sorted(given.keys() - KNOWN[kind] - {"TUNE_MOE"})
    if strangers:
        raise UsageError(f"{', '.join(strangers)} would change nothing: {_reason(kind)}")
    min_driver = given.get("MIN_DRIVER", "0")
    if not re.fullmatch(r"\d+(\.\d+)*", min_driver):  # compared by its numbers, it would be older than any driver
        raise UsageError(f"MIN_DRIVER: give a version like 580 or 580.95.05 (given: {min_driver})")
    match kind:
        case "experiment":
            return _experiment(given, machine)
        case "tune":
            return _tuning(given, machine)
        case "sweep":
            return _sweep(given, machine)


def _names() -> frozenset[str]:
    return frozenset().union(*KNOWN.values())


def _reason(kind: Kind) -> str:
    return {
        "experiment": "PLAN names a file that says it",
        "tune": "TUNE_MOE=1 tunes and measures no load",
        "sweep": "it belongs to TUNE_MOE=1",
    }[kind]


def _is_on(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "0")
    if value not in ("0", "1"):
        raise UsageError(f"{name}: give 1 or 0 (given: {value})")
    return value == "1"


def _label(given: Mapping[str, str]) -> str | None:
    label = given.get("LABEL")
    if label is not None and not LABEL.fullmatch(label):
        raise UsageError(f"LABEL: a label is one name of letters, digits, '.', '_' and '-' (given: {label})")
    return label


def _sweep(given: Mapping[str, str], machine: MachineFile) -> Meant:
    values: dict[str, Any] = {field: given[name] for name, field in SWEEP.items() if name in given}
    directory = Path(given.get("RUNS_DIR", "runs")).expanduser() / (_label(given) or "")
    if _is_on(given, "RESUME") and "label" in values and (directory / "run.json").exists():
        values["resume"] = True
    if "gsm8k_file" in values:
        values["gsm8k_file"] = str(Path(values["gsm8k_file"]).expanduser())
    tuned_dir = Path(values["tuned_moe_dir"]).expanduser() if "tuned_moe_dir" in values else None
    notes = []
    if machine.is_simulated:
        left = [name for name, field in SWEEP.items() if field in NEEDS_VLLM and values.pop(field, None) is not None]
        left += ["VLLM_ARGS"] * ("VLLM_ARGS" in given)
        values |= {"engine": "simulated", "simulated": machine.simulated}
        if left:
            notes.append(f"[SIMULATED] this machine's own file sets the engine: {', '.join(left)} go to no server")
    else:
        values["vllm_arg"] = _words(given.get("VLLM_ARGS", ""))
        if "model" not in values:
            raise UsageError("MODEL: name the model that vLLM serves, like MODEL=Qwen/Qwen3-30B-A3B-FP8")
    options, words = _loaded(SweepOptions, "sweep", values, SWEEP)
    options.engine_kind()
    if machine.is_simulated and tuned_dir is not None:
        options = with_tuned_dir(options, tuned_dir)
    return Meant(options, words, given.get("MODEL"), tuned_dir, tuple(notes))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"VLLM_ARGS: {str(error).lower()} (given: {text})") from None


def _tuning(given: Mapping[str, str], machine: MachineFile) -> Meant:
    runs_dir = Path(given.get("RUNS_DIR", "runs")).expanduser()
    label = _label(given) or free_name(runs_dir, "tune")
    target = Path(given.get("TUNED_MOE_DIR", "~/moe-tuned")).expanduser()
    values: dict[str, Any] = {field: given[name] for name, field in TUNE.items() if name in given}
    if "model" not in values:
        raise UsageError("MODEL: name the model whose MoE kernels are tuned, like MODEL=Qwen/Qwen3-30B-A3B-FP8")
    layer = layer_values(values.pop("model"), machine)
    notes = []
    if "model" not in layer:
        notes.append(f"[SIMULATED] {given['MODEL']} is not on this machine: the layer is {layer['shape']}")
    values |= {**layer, "output": str(runs_dir / label / "tuned"), "simulated": machine.is_simulated}
    if machine.is_simulated:
        values.pop("vllm_python", None)
    options, words = _loaded(TuneOptions, "tune", values, TUNE)
    begun = runs_dir / label / "run.json"
    if _is_on(given, "RESUME") and begun.exists():
        options = options.model_copy(update={"resume": True})
    min_driver = None if machine.is_simulated else given.get("MIN_DRIVER")
    return Meant(Tuning(label, runs_dir, target, options, min_driver), words, notes=tuple(notes))


def layer_values(model: str, machine: MachineFile) -> dict[str, Any]:
    """The options of `slo-bench tune` that name the model's layer here, and those of every search on this machine.

    Raises UsageError where the layer of a real model is not known.
    """
    table = {str(key).replace("-", "_"): value for key, value in machine.tune.items()}
    for key in table:
        if key not in TuneOptions.model_fields or key in _NOT_OF_THE_MACHINE:
            raise UsageError(f"machine.toml: tune: there is no option {key!r} of slo-bench tune there")
    config = config_of(model, is_offline=machine.is_simulated)
    if config is not None:
        return table | {"model": str(config)}
    if machine.is_simulated:
        return SIMULATED_LAYER | table
    raise UsageError(
        f"MODEL: the config.json of {model} is neither here nor can it be had from the hub: download the model first, "
        "or name its folder"
    )


def _experiment(given: Mapping[str, str], machine: MachineFile) -> Meant:
    values: dict[str, Any] = {field: given[name] for name, field in EXPERIMENT.items() if name in given}
    plan = values.pop("plan")
    notes = []
    if machine.is_simulated:
        values["rehearse"] = True
        notes.append("[SIMULATED] this machine's own file sets the engine: the plan is rehearsed")
    options, words = _loaded(ExperimentOptions, "experiment", values, EXPERIMENT, [str(Path(plan).expanduser())])
    begun = options.runs_dir / options.the_plan().label / "arms"
    if _is_on(given, "RESUME") and begun.is_dir():
        options, words = options.model_copy(update={"resume": True}), (*words, "--resume")
    return Meant(options, words, notes=tuple(notes))


def _loaded(
    model: type[SomeOptions],
    command: str,
    values: Mapping[str, Any],
    names: Mapping[str, str],
    positional: Sequence[str] = (),
) -> tuple[SomeOptions, tuple[str, ...]]:
    """The options as the command itself reads them; a fault is told under the bare name of what was given."""
    words = [*positional, *(word for field, value in values.items() for word in _flags(field, value))]
    shown = {field: name for name, field in names.items()}
    options = load(
        model,
        words,
        prog=PROG,
        description="",
        command=command,
        shown=lambda field: shown.get(field, flag(field)) if field in values else flag(field),
    )
    return options, (command, *words)


def _flags(field: str, value: Any) -> list[str]:
    if value is True:
        return [flag(field)]
    if value is False or value is None:
        return []
    if isinstance(value, list):
        return [f"{flag(field)}={each}" for each in value]
    return [f"{flag(field)}={value}"]
