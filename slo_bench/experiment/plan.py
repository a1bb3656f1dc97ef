"""An experiment's plan: a TOML file that names the arms, what they share and what is compared.

    label = "vllm-upgrade"
    title = "Two versions of vLLM, all else equal"

    [all]                        # options of `slo-bench sweep` that hold for every arm
    model = "Qwen/Qwen3-30B-A3B-FP8"

    [[arm]]                      # in this order; the first is the baseline and is repeated last, for drift
    label = "vllm-0.31"
    vllm_python = "/opt/vllm-0.31/bin/python"

    [[arm]]
    label = "vllm-0.32"
    vllm_python = "/opt/vllm-0.32/bin/python"
    tune = { minutes = 8 }       # MoE kernels are tuned before this arm is measured (`experiment/tuning.py`)

    [[compare]]                  # design options of `slo-bench compare`; at the anchor rate where none is given
    arms = ["vllm-0.31", "vllm-0.32"]

Here it is read and checked, before anything is started.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slo_bench.compare.options import DesignOptions
from slo_bench.config import SweepOptions
from slo_bench.engine_options import EngineOptions
from slo_bench.experiment.tuning import planned_tune
from slo_bench.moe.tune_options import TuneOptions
from slo_bench.options import checked
from traffic.errors import UsageError

ARM_KEYS = frozenset(EngineOptions.model_fields)
"""What may differ between arms. The load may not: arms under different load compare nothing."""


class PlanFile(BaseModel):
    """The plan as written. Options are checked by the models of their commands."""

    model_config = ConfigDict(extra="forbid")

    label: str | None = None
    title: str | None = None
    drift: bool = True
    all: dict[str, Any] = Field(default_factory=dict)
    arm: list[dict[str, Any]] = Field(default_factory=list)
    compare: list[dict[str, Any]] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlannedArm:
    """One arm with its options, all of them. tune: the search whose files its server reads, None for no search."""

    label: str
    options: SweepOptions
    tune: TuneOptions | None = None


@dataclass(frozen=True, slots=True)
class PlannedComparison:
    """Two arms by label, and how they are compared. where: its place in the file, for what is wrong with it."""

    base: str
    other: str
    design: DesignOptions
    allow_different_models: bool
    where: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What an experiment does, in order: the arms, then the comparisons. drift_arm: the last arm, where it repeats."""

    label: str
    title: str
    arms: tuple[PlannedArm, ...]
    drift_arm: str | None
    comparisons: tuple[PlannedComparison, ...]


_SECRET = re.compile(r"^(\s*[\"']?(?:api_key|header)[\"']?\s*=).*", re.MULTILINE)


def shown_plan(path: Path) -> str:
    """A plan as it may be kept beside the results: its text, without the values of secrets.

    Raises UsageError where it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the plan {path} cannot be read: {error}") from error
    return _SECRET.sub(r"# \1 not kept", text)


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file. Raises UsageError, in one line that says where, for anything that cannot be run."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path}: {reason or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    try:
        written = PlanFile(**content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        known = ", ".join(PlanFile.model_fields)
        said = f"unknown key; a plan has {known}" if first["type"] == "extra_forbidden" else first["msg"].lower()
        raise UsageError(f"{path}: {where}: {said}") from None
    return _planned(path, written)


def _planned(path: Path, written: PlanFile) -> Plan:
    if not written.arm:
        raise UsageError(f"{path}: no [[arm]]: a plan needs at least one")
    shared = _keys(written.all)
    if "label" in shared or "resume" in shared:
        raise UsageError(f"{path}: [all]: label and resume are not for all arms")
    arms = [_arm(path, number, shared, _keys(values)) for number, values in enumerate(written.arm, 1)]
    drift_arm = None
    if written.drift:
        drift_arm = f"{arms[0].label}-2"
        again = arms[0].options.model_copy(update={"label": drift_arm})
        arms.append(PlannedArm(drift_arm, again, arms[0].tune))
    labels = [arm.label for arm in arms]
    doubled = next((label for label in labels if labels.count(label) > 1), None)
    if doubled is not None:
        raise UsageError(f"{path}: two arms are called {doubled!r}")
    kinds = {arm.options.engine_kind() for arm in arms}
    if "simulated" in kinds and len(kinds) > 1:
        raise UsageError(f"{path}: simulated and real arms do not belong in one experiment")
    comparisons = [_comparison(path, number, values, labels) for number, values in enumerate(written.compare, 1)]
    pairs = [(each.base, each.other) for each in comparisons]
    for each, pair in zip(comparisons, pairs, strict=True):
        if pairs.count(pair) > 1:
            raise UsageError(f"{each.where}: {each.other} is compared with {each.base} more than once")
    label = written.label or path.stem
    return Plan(label, written.title or label, tuple(arms), drift_arm, tuple(comparisons))


def _keys(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in values.items()}


def _arm(path: Path, number: int, shared: Mapping[str, Any], values: Mapping[str, Any]) -> PlannedArm:
    where = f"{path}: [[arm]] {number}"
    label = values.get("label")
    if not isinstance(label, str):
        raise UsageError(f'{where}: give it a label = "..."')
    for key in values:
        if key in ARM_KEYS or key in ("label", "tune"):
            continue
        if key in SweepOptions.model_fields:
            raise UsageError(f"{where}: {key} is the same for all arms, or nothing is compared: put it under [all]")
        raise UsageError(f"{where}: there is no option {key!r}")
    for key in shared:
        if key not in SweepOptions.model_fields:
            raise UsageError(f"{path}: [all]: slo-bench sweep has no option {key!r}")
    own = {key: value for key, value in values.items() if key != "tune"}
    options = checked(SweepOptions, {**shared, **own}, where=where)
    try:
        options.engine_kind()
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    tune = planned_tune(label, options, values["tune"], where) if "tune" in values else None
    return PlannedArm(label, options, tune)


def _comparison(path: Path, number: int, values: Mapping[str, Any], labels: Sequence[str]) -> PlannedComparison:
    where = f"{path}: [[compare]] {number}"
    options = _keys(values)
    pair = options.pop("arms", None)
    if not (isinstance(pair, list) and len(pair) == 2):  # noqa: PLR2004 - a comparison has two sides
        raise UsageError(f'{where}: name two arms = ["...", "..."]')
    base, other = pair
    for label in pair:
        if label not in labels:
            raise UsageError(f"{where}: there is no arm {label!r}; arms are {', '.join(labels)}")
    if base == other:
        raise UsageError(f"{where}: an arm is not compared with itself; its repeat is called {labels[-1]!r}")
    allowed = options.pop("allow_different_models", False)
    if not isinstance(allowed, bool):
        raise UsageError(f"{where}: allow_different_models: give true or false")
    for key in options:
        if key in SweepOptions.model_fields and key not in DesignOptions.model_fields:
            raise UsageError(f"{where}: {key} belongs to the arms: put it under [all] or [[arm]]")
        if key not in DesignOptions.model_fields:
            raise UsageError(f"{where}: slo-bench compare has no option {key!r} of its design")
    return PlannedComparison(base, other, checked(DesignOptions, options, where=where), allowed, where)
