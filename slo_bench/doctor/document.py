"""What `slo-bench doctor` found, and where it is kept: doctor.json in the user's cache, an entry per host.

A home directory may be shared by many hosts, and another interpreter or version is another client, so an entry is found
by all that makes the figures; a restart of the machine is not part of it.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from pydantic import Field, ValidationError

import slo_bench
from reports.run_directory import Document, to_json
from slo_bench.doctor.ceiling import Ceiling, Held
from slo_bench.environment import cpu_model
from slo_bench.store import write_text

DOCTOR_VERSION = 1


class Fitness(StrEnum):
    """How fit one thing is to measure with."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


class CheckRow(Document):
    """One finding: what was looked at, how fit it is, a figure, and what to do where something is to be done."""

    name: str
    fitness: Fitness
    figure: str
    remedy: str = ""


class HostKey(Document):
    """Which client an entry is of. cores: how many it may use."""

    host: str
    cpu: str | None
    cores: int
    python: str
    slo_bench: str


class HeldRow(Document):
    """The highest rate held with answers of one length, by all load workers together.

    is_least: the search ended before a rate failed, so the ceiling may be higher. failed_rps: the lowest rate that
    failed, null where none did. send_lag_p99_s and ttft_error_p99_s: at the rate that held; the second is what the
    client read minus what the server did, of single requests.
    """

    rate_rps: float
    output_tokens: int
    failed_rps: float | None
    is_least: bool
    send_lag_p99_s: float
    ttft_error_p99_s: float | None


def ceiling_of(short: HeldRow | None, long: HeldRow | None, *, load_workers: int, cores: int) -> Ceiling | None:
    """What one of so many load workers holds; None where a rate is missing."""
    if short is None or long is None:
        return None
    one = [Held(each.rate_rps / load_workers, each.output_tokens) for each in (short, long)]
    return Ceiling(one[0], one[1], cores)


class DoctorDocument(Document):
    """One host. short and long: the client's ceiling by length of answers, null where no rate was held."""

    schema_version: int = Field(DOCTOR_VERSION, ge=1, le=DOCTOR_VERSION)
    key: HostKey
    measured_utc: str
    load_workers: int
    short: HeldRow | None
    long: HeldRow | None
    checks: list[CheckRow]

    @property
    def is_fit(self) -> bool:
        """Whether this client can measure at all."""
        return all(check.fitness is not Fitness.BAD for check in self.checks)

    @property
    def ceiling(self) -> Ceiling | None:
        """What one load worker holds; None where it was not found."""
        return ceiling_of(self.short, self.long, load_workers=self.load_workers, cores=self.key.cores)


class DoctorFile(Document):
    """doctor.json."""

    schema_version: int = Field(DOCTOR_VERSION, ge=1, le=DOCTOR_VERSION)
    hosts: list[DoctorDocument]


def this_client() -> HostKey:
    """The key of this host and interpreter."""
    return HostKey(
        host=socket.gethostname(),
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        slo_bench=slo_bench.__version__,
    )


def doctor_path(env: Mapping[str, str], home: Path) -> Path:
    """Where doctor.json is: in $XDG_CACHE_HOME, else in ~/.cache. By its standard a relative path does not count."""
    cache = Path(env.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else home / ".cache") / "slo-bench" / "doctor.json"


def _hosts(path: Path) -> list[DoctorDocument]:
    """Every entry; none where there is no file, or one that this version cannot read: it is a cache."""
    try:
        return DoctorFile.model_validate_json(path.read_bytes()).hosts
    except (OSError, ValidationError):
        return []


def find_doctor(path: Path, key: HostKey) -> DoctorDocument | None:
    """The entry of one host."""
    return next((each for each in _hosts(path) if each.key == key), None)


def keep_doctor(path: Path, document: DoctorDocument) -> None:
    """Put an entry in the place of the host's earlier one. Raises UsageError where the folder cannot be written."""
    others = [each for each in _hosts(path) if each.key != document.key]
    write_text(path, to_json(DoctorFile(schema_version=DOCTOR_VERSION, hosts=[*others, document])))
