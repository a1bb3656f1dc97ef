"""`--run "KEY=VALUE ..."`: the environment of one run of `slo-bench run` on the machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slo_bench.bare_run.machine_file import MachineFile
from slo_bench.bare_run.translation import meant
from traffic.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRET = re.compile(r"(?i)(TOKEN|SECRET|PASSWORD|PASSWD|_KEY|CREDENTIALS)$")
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?[A-Za-z0-9.+]*")
TAKEN = frozenset(
    ("logs", "figures", "note.md", "set-up", "session.json", "session.log", "watchdog.log", "heartbeat", "known_hosts")
)
"""Names of a session's own files and jobs."""


@dataclass(frozen=True, slots=True)
class RunText:
    """One run: its label, its environment as given, and where it was given."""

    label: str
    values: Mapping[str, str]
    where: str

    @property
    def is_tuning(self) -> bool:
        """Whether it searches instead of measuring load."""
        return self.values.get("TUNE_MOE", "").strip() == "1"

    @property
    def tune_minutes(self) -> float:
        """The budget of its search; 0 where it has none."""
        return float(self.values.get("TUNE_MINUTES") or 0) if self.is_tuning else 0.0

    @property
    def model(self) -> str | None:
        """The name on the hub of the model that is served; None for a folder."""
        model = self.values.get("MODEL", "")
        return model if model and model[0] not in "/~." else None

    @property
    def revision(self) -> str:
        """The revision of the model that VLLM_ARGS name, else empty."""
        words = shlex.split(self.values.get("VLLM_ARGS", ""))
        for word, after in zip(words, [*words[1:], ""], strict=False):
            name, equals, value = word.partition("=")
            if name == "--revision":
                return value if equals else after
        return ""


def read_runs(texts: Sequence[str], max_minutes: float, reserve_minutes: float) -> tuple[RunText, ...]:
    """All runs in their order. Raises UsageError in one line that begins with the place of the fault."""
    runs = tuple(_read(text, f"--run {number}") for number, text in enumerate(texts, 1))
    labels: dict[str, str] = {}
    for run in runs:
        if run.label.lower() in labels:
            raise UsageError(
                f"{run.where}: LABEL={run.label} is that of {labels[run.label.lower()]} too: results need two"
            )
        labels[run.label.lower()] = run.where
    minutes = sum(run.tune_minutes for run in runs)
    if minutes and minutes + reserve_minutes > max_minutes:
        named = ", ".join(f"{run.label} {run.tune_minutes:g}" for run in runs if run.tune_minutes)
        raise UsageError(f"TUNE_MINUTES ({named}) do not fit in --max-minutes {max_minutes:g}: raise it, or tune less")
    return runs


def _read(text: str, where: str) -> RunText:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{where}: {str(error).lower()}: {text}") from None
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(f"{where}: {word!r} is not KEY=VALUE; quote a value that has blanks")
        if name in values:
            raise UsageError(f"{where}: {name} stands there twice")
        if _SECRET.search(name):
            raise UsageError(f"{where}: {name} looks like a secret, and this is written down: --pass-env {name}")
        values[name] = value
    label = values.get("LABEL", "")
    if not _LABEL.fullmatch(label) or label.lower() in TAKEN or label.lower().startswith("model-"):
        given = f"LABEL={label} is no name of a result folder" if label else "it has no LABEL"
        raise UsageError(f"{where}: {given}: give one of letters, digits, '.', '_' and '-', like LABEL=moe-default")
    for name in ("RUNS_DIR", "PLAN", "RESUME"):
        if name in values:
            raise UsageError(f"{where}: {name} is the session's own business" + "; see --plan" * (name == "PLAN"))
    if not _VERSION.fullmatch(values.get("VLLM_VERSION", "0.0")):
        raise UsageError(f"{where}: VLLM_VERSION={values['VLLM_VERSION']} is no version; give it like 0.31.0")
    _check_values(values, where)
    return RunText(label, values, where)


def _check_values(values: Mapping[str, str], where: str) -> None:
    """What `slo-bench run` would refuse there is refused here, where it costs nothing."""
    # A search needs the model's layer, which that machine will have.
    is_tuning = values.get("TUNE_MOE", "").strip() == "1"
    machine = MachineFile(engine="simulated") if is_tuning else MachineFile()
    try:
        meant(values, machine)
    except UsageError as error:
        raise UsageError(f"{where}: {str(error).partition('; see slo-bench run')[0]}") from None
