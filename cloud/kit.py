"""What a session is given: what is to be done on the machine, within which limits; and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue, SecretStr

from cloud.errors import CloudUsageError
from cloud.jobs import Job, JobBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What a machine must have before anything is sent there. min_driver: as nvidia-smi writes it."""

    min_driver: str | None = None
    min_free_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What is to be done on the machine, in this order: checks, uploads, set-up jobs, runs.

    uploads: a file or folder here and its place there. secrets: cut out of all that is said and logged here.
    Raises CloudUsageError where two jobs have one name.
    """

    uploads: tuple[tuple[Path, str], ...] = ()
    setup: tuple[Job, ...] = ()
    runs: tuple[Job, ...] = ()
    checks: Checks = field(default_factory=Checks)
    secrets: tuple[SecretStr, ...] = ()

    def __post_init__(self) -> None:
        """Names are folders here and there."""
        names = [job.name.lower() for job in (*self.setup, *self.runs)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise CloudUsageError(f"two jobs are called {twice[0]}: give each its own name")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBounds:
    """How often a session looks, and how long it has patience.

    command_s: one short command on the machine; patience_s: without any answer over SSH; status_s: between two
    questions to the provider whether the machine still stands; last_fetch_s: for all that is fetched at the end.
    """

    poll_s: float = 5.0
    sync_s: float = 30.0
    say_s: float = 60.0
    beat_s: float = 5.0
    status_s: float = 60.0
    retry_s: float = 5.0
    patience_s: float = 600.0
    command_s: float = 60.0
    upload_s: float = 900.0
    fetch_s: float = 300.0
    fetch_tries: int = 3
    last_fetch_s: float = 120.0
    stop_grace_s: float = 15.0
    arm_s: float = 30.0
    jobs: JobBounds = field(default_factory=JobBounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """One session. home: its folder, which must be new; max_usd: None is no cap in dollars.

    request: what was asked for, without secrets; it is saved, so that `resume` can make the kit again.
    """

    name: str
    home: Path
    max_minutes: float
    max_usd: float | None = None
    reserve_s: float = 240.0
    fail_fast: bool = False
    bounds: SessionBounds = field(default_factory=SessionBounds)
    request: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a job ended. rc: None where it did not; reason: why it failed; is_home: its results are here, whole."""

    name: str
    rc: int | None
    reason: str | None
    is_home: bool

    @property
    def is_done(self) -> bool:
        """Whether it ended well and its results are here."""
        return self.rc == 0 and self.is_home


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """What came of a session. trouble: what ended it early; usd: an estimate, the provider's invoice decides."""

    runs: tuple[RunOutcome, ...]
    trouble: str | None
    is_confirmed_gone: bool
    minutes: float
    usd: float
