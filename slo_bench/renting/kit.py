"""What a session sends to its machine, and the jobs that it starts there."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pydantic import SecretStr

from cloud.errors import CloudUsageError
from cloud.jobs import Job
from cloud.kit import Checks, Kit
from slo_bench.experiment.plan import read_plan
from slo_bench.renting.options import SessionOptions
from slo_bench.renting.run_text import TAKEN
from slo_bench.renting.wheel import constraints, make_wheel
from traffic.errors import UsageError

SET_UP = "set-up"
_SET_UP_S, _MODEL_S = 3600.0, 7200.0
_SEARCH_BEYOND_S = 1800.0
"""A search ends some time after its budget: what is being compiled, and the finals."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KIT = "kit"


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan's label and what its arms need."""

    path: Path
    label: str
    models: tuple[tuple[str, str], ...]
    min_drivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for, checked here where it costs nothing. said: lines that tell it."""

    options: SessionOptions
    name: str
    passed: Mapping[str, str]
    plan: Planned | None

    @property
    def base(self) -> str:
        """The session's folder on the machine."""
        return f"~/slo-bench/{self.name}"

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of vLLM that are installed there."""
        runs = [run.values.get("VLLM_VERSION", self.options.vllm_version) for run in self.options.runs()]
        return tuple(dict.fromkeys([*runs, *([self.options.vllm_version] if self.plan else [])]))

    @property
    def models(self) -> tuple[tuple[str, str], ...]:
        """Models of the hub with their revisions, each once."""
        named = [(run.model, run.revision) for run in self.options.runs() if run.model is not None]
        return tuple(dict.fromkeys([*named, *(self.plan.models if self.plan else ())]))

    @property
    def min_driver(self) -> str | None:
        """The newest driver that any run asks for."""
        asked = [run.values["MIN_DRIVER"] for run in self.options.runs() if run.values.get("MIN_DRIVER")]
        asked += self.plan.min_drivers if self.plan else ()
        return max(asked, key=lambda text: [int(part) for part in re.findall(r"\d+", text)], default=None)

    def lines(self) -> list[str]:
        """What will be done, in order."""
        told = [
            f"{run.label} (search of {run.tune_minutes:g} min)" if run.tune_minutes else run.label
            for run in self.options.runs()
        ]
        told += [f"{self.plan.label} (experiment)"] if self.plan else []
        return [f"runs, in this order: {', '.join(told)}", f"vLLM {', '.join(self.versions)} on the machine"]


def wanted(options: SessionOptions, name: str, environ: Mapping[str, str]) -> Wanted:
    """Check all that can be checked here. Raises UsageError and CloudUsageError in one line."""
    passed: dict[str, str] = {}
    for each in options.pass_env:
        if not _VARIABLE.fullmatch(each):
            raise CloudUsageError(f"--pass-env {each!r}: give a variable's name, not its value")
        if not environ.get(each):
            raise CloudUsageError(f"--pass-env {each}: it is not set here")
        passed[each] = environ[each]
    found = Wanted(options, name, passed, None if options.plan is None else _planned(options.plan))
    labels = [run.label.lower() for run in options.runs()]
    if found.plan is not None and found.plan.label.lower() in {*labels, *TAKEN}:
        raise UsageError(f"{found.plan.path}: its label {found.plan.label} is taken in this session: give another")
    return found


def _planned(path: Path) -> Planned:
    plan = read_plan(path.expanduser())
    options = [arm.options for arm in plan.arms]
    models = [each.model for each in options if each.model and each.model[0] not in "/~."]
    drivers = [each.min_driver for each in options if each.min_driver]
    return Planned(path.expanduser(), plan.label, tuple(dict.fromkeys((m, "") for m in models)), tuple(drivers))


def kit_for(
    what: Wanted, scratch: Path, say: Callable[[str], None], *, usd_per_hour: float | None, is_sent: bool = True
) -> Kit:
    """The kit. scratch: an empty folder for what is uploaded; is_sent: False where it is there already."""
    base, options = what.base, what.options
    if is_sent:
        _fill(scratch, what, say)
    shared = {"VLLM_VERSION": options.vllm_version, "RUNS_DIR": f"{base}/runs"}
    if usd_per_hour is not None:
        shared["SLO_BENCH_USD_PER_HOUR"] = f"{usd_per_hour:g}"
    limit_s = options.minutes * 60
    runs = [
        Job(
            name=run.label,
            command=(f"{base}/bin/slo-bench", "run"),
            env={**shared, **run.values, **what.passed},
            limit_s=min(limit_s, run.tune_minutes * 60 + _SEARCH_BEYOND_S) if run.tune_minutes else limit_s,
            results=f"{base}/runs/{run.label}",
        )
        for run in options.runs()
    ]
    if what.plan is not None:
        runs.append(
            Job(
                name=what.plan.label,
                command=(f"{base}/bin/slo-bench", "run"),
                env={**shared, "PLAN": f"{base}/{_KIT}/plan.toml", **what.passed},
                limit_s=limit_s,
                results=f"{base}/runs/{what.plan.label}",
            )
        )
    return Kit(
        uploads=((scratch, f"{base}/{_KIT}"),),
        setup=_set_up(what),
        runs=tuple(runs),
        checks=Checks(min_driver=what.min_driver),
        secrets=tuple(SecretStr(value) for value in what.passed.values()),
    )


def _set_up(what: Wanted) -> tuple[Job, ...]:
    base = what.base
    first = Job(
        name=SET_UP,
        command=("python3", f"{base}/{_KIT}/set_up.py", base, *what.versions),
        env=what.passed,
        limit_s=_SET_UP_S,
    )
    models = [
        Job(
            name=f"model-{number}",
            command=(f"{base}/bin/python", f"{base}/{_KIT}/fetch_model.py", model, revision),
            env=what.passed,
            limit_s=_MODEL_S,
        )
        for number, (model, revision) in enumerate(what.models, 1)
    ]
    return (first, *models)


def _fill(scratch: Path, what: Wanted, say: Callable[[str], None]) -> None:
    wheel = make_wheel(scratch)
    say(f"{wheel.file.name} from {wheel.origin}; Python {sys.version_info.major}.{sys.version_info.minor} here")
    programs = files("slo_bench.renting.on_machine")
    for name in ("set_up.py", "fetch_model.py"):
        (scratch / name).write_text(programs.joinpath(name).read_text(encoding="utf-8"), encoding="utf-8")
    (scratch / "constraints.txt").write_text(constraints(), encoding="utf-8")
    if what.plan is not None:
        shutil.copyfile(what.plan.path, scratch / "plan.toml")
