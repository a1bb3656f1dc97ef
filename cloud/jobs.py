"""Jobs on a machine that outlive every connection: each poll is a fresh one, and a lost link is never a result."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from cloud.blotting import blot_folder, words_of
from cloud.errors import CloudTrouble, CloudUsageError, LinkLost
from cloud.remote import Remote

__all__ = ["Completion", "Job", "JobBounds", "JobState", "Jobs", "Look", "mismatches"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RUN_TOLD = (
    "import json, sys; told = json.load(sys.stdin); names = {'__name__': 'job_script'}; "
    "exec(told['script'], names); names['main'](told)"
)
_NO_PROGRAM = 127


class JobState(Enum):
    """What is known of a job. DEAD: nobody looks after it and it left no record: killed, or the machine restarted."""

    ABSENT = "absent"
    RUNNING = "running"
    ENDED = "ended"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command on the machine. A word or value that begins with `~/` means the machine's home.

    limit_s: then the machine ends it by itself. results: the folder there that belongs to this job alone.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    limit_s: float
    results: str | None = None

    def __post_init__(self) -> None:
        """Refuse what would be a path, a lost variable or an endless job."""
        if not _NAME.fullmatch(self.name):
            raise CloudUsageError(
                f"{self.name!r} is no name for a job: up to 64 letters, digits, dots, dashes and underscores, "
                "a letter or digit first"
            )
        if not self.command or not 0 < self.limit_s < math.inf:
            raise CloudUsageError(f"the job {self.name} needs a command and a time limit above zero")
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                raise CloudUsageError(f"{name!r} is no name of a variable (job {self.name})")
        if any("\0" in word for word in (*self.command, *self.env.values())):
            raise CloudUsageError(f"the job {self.name} has a word with a zero byte")


class Completion(BaseModel):
    """How a job ended; the machine writes it last. rc: 128 + n where signal n ended it. reason: what rc does not say.

    files: the sha256 of every file by its path inside the job's results.
    """

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[1] = 1
    rc: int
    reason: str | None = None
    started_utc: str
    ended_utc: str
    files: Mapping[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What one connection saw of a job. log: what it wrote from the asked byte on, 1 MiB at most."""

    state: JobState
    completion: Completion | None
    log: bytes
    has_results: bool
    disk_free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBounds:
    """How long each step may take. kill_after_s: between SIGTERM and SIGKILL on the machine."""

    connection_s: float = 60.0
    start_s: float = 20.0
    kill_after_s: float = 30.0
    record_s: float = 120.0
    poll_s: float = 1.0
    tries: int = 3
    log_bytes: int = 1 << 20


_DEFAULT_BOUNDS = JobBounds()


class Jobs:
    """The jobs of a session on its machine.

    folder: where they are kept there, like `~/slo-bench/SESSION/jobs`. secrets: what a job writes of them is
    overwritten, there when it has ended and in all that is fetched; a job is told only those that its environment has.
    """

    def __init__(
        self, remote: Remote, folder: str, bounds: JobBounds = _DEFAULT_BOUNDS, secrets: Iterable[SecretStr] = ()
    ) -> None:
        self._remote = remote
        self._folder = folder
        self._bounds = bounds
        self._secrets = words_of(secrets)

    async def start(self, job: Job) -> bool:
        """Start a job, once only: False where it was started before. After a LinkLost this may be called again."""
        told = await self._ask(
            "start",
            job.name,
            timeout_s=self._bounds.connection_s + self._bounds.start_s,
            command=job.command,
            env=dict(job.env),
            limit_s=job.limit_s,
            results=job.results,
            secrets=[word for word in self._secrets if word in job.env.values()],
            kill_after_s=self._bounds.kill_after_s,
            start_s=self._bounds.start_s,
        )
        match told["outcome"]:
            case "started":
                return True
            case "already":
                return False
            case "full":
                raise CloudTrouble(f"the disk of the machine is full: the job {job.name} was not started")
        raise CloudTrouble(f"the job {job.name} could not be started: {told['detail'] or 'it gave no sign'}")

    async def look(self, name: str, *, log_offset: int = 0, results: str | None = None) -> Look:
        """All that a poll needs, on one connection."""
        told = await self._ask(
            "look",
            name,
            timeout_s=self._bounds.connection_s,
            log_offset=log_offset,
            log_bytes=self._bounds.log_bytes,
            results=results,
        )
        try:
            record = told["completion"]
            completion = None if record is None else Completion.model_validate_json(record)
        except ValidationError as error:
            raise CloudTrouble(f"the record of the job {name} cannot be read: {error.errors()[0]['msg']}") from None
        log = base64.b64decode(told["log"])
        return Look(JobState(told["state"]), completion, log, told["has_results"], told["disk_free_bytes"])

    async def state(self, name: str) -> JobState:
        """Where a job is now."""
        return (await self.look(name)).state

    async def completion(self, name: str) -> Completion | None:
        """How a job ended; None while it runs, and for ever where it is dead."""
        return (await self.look(name)).completion

    async def log_from(self, name: str, offset: int) -> bytes:
        """What a job wrote from a byte on, 1 MiB at most: ask again from where that ends."""
        return (await self.look(name, log_offset=offset)).log

    async def stop(self, name: str, grace_s: float) -> None:
        """End a job and all that it started, and wait until nothing runs; one that does not run is left as it is."""
        spare_s = self._bounds.connection_s + self._bounds.start_s
        await self._ask("stop", name, timeout_s=spare_s + grace_s, grace_s=grace_s)
        end_s = time.monotonic() + grace_s + self._bounds.kill_after_s + self._bounds.record_s
        while await self.state(name) is JobState.RUNNING:
            if time.monotonic() >= end_s:
                raise CloudTrouble(f"the job {name} still runs on the machine, {grace_s:g} s after it was told to end")
            await asyncio.sleep(self._bounds.poll_s)

    async def fetch(self, job: Job, home: Path, timeout_s: float) -> bool:
        """Bring a job's results to the folder `home`: True when every checksum of its record holds here.

        While the job runs, or when it is dead, what is there comes and the answer is False. Raises LinkLost when the
        link did not last for any of the tries.
        """
        end_s = time.monotonic() + timeout_s
        tries = self._bounds.tries
        for attempt in range(1, tries + 1):
            try:
                is_whole = await self._fetch(job, home, end_s, is_compared=attempt > 1)
            except LinkLost:
                if attempt == tries or time.monotonic() >= end_s:
                    raise
                continue
            if is_whole is not None:
                return is_whole
        return False

    async def _fetch(self, job: Job, home: Path, end_s: float, *, is_compared: bool) -> bool | None:
        """One try: None where files here differ from the record."""
        seen = await self.look(job.name, results=job.results)
        if job.results is not None and seen.has_results:
            left_s = end_s - time.monotonic()
            await self._remote.pull(job.results, home, left_s, is_compared=is_compared)
        try:
            if seen.completion is None:
                return False
            return True if not await asyncio.to_thread(mismatches, seen.completion, home) else None
        finally:
            await asyncio.to_thread(blot_folder, home, self._secrets)

    async def _ask(self, action: str, name: str, *, timeout_s: float, **told: Any) -> dict[str, Any]:
        if not _NAME.fullmatch(name):
            raise CloudUsageError(f"{name!r} is no name of a job")
        script = files("cloud").joinpath("job_script.py").read_text(encoding="utf-8")
        told = {**told, "action": action, "name": name, "folder": self._folder, "script": script}
        command = f"exec python3 -c {shlex.quote(_RUN_TOLD)}"
        ran = await self._remote.run(command, timeout_s=timeout_s, stdin=json.dumps(told).encode())
        if ran.rc == _NO_PROGRAM:
            raise CloudTrouble("the machine has no python3: install it there")
        try:
            answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])  # start files there may print too
        except (ValueError, IndexError):
            said = (ran.stderr.strip().splitlines() or ["no word came"])[-1]
            raise CloudTrouble(f"the machine could not {action} the job {name}: {said}") from None
        return answer


def mismatches(completion: Completion, home: Path) -> tuple[str, ...]:
    """The files of a record that are not here, or have other bytes."""
    return tuple(path for path, digest in completion.files.items() if _sha256(home, path) != digest)


def _sha256(home: Path, path: str) -> str | None:
    """None for a file that is not there, and for a path that leads elsewhere."""
    place = home / path
    if not place.resolve().is_relative_to(home.resolve()) or not place.is_file():
        return None
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
