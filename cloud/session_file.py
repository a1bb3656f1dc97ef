"""A session's folder: what is known of its machine, on disk before anything costs money, and who holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from cloud.errors import CloudTrouble, CloudUsageError
from cloud.ssh import Login

SESSION_TAG: Final = "slo-bench:session"
EXPIRES_TAG: Final = "slo-bench:expires"

_RECORD = "session.json"
_TAKE_LOCK_S = 2.0


class State(StrEnum):
    """Where a session is. UNCONFIRMED: nobody said that the machine is gone; OVER: of a machine that is not rented."""

    PREPARING = "preparing"
    LAUNCHING = "launching"
    BOOTING = "booting"
    WORKING = "working"
    ENDING = "ending"
    GONE = "gone"
    UNCONFIRMED = "unconfirmed"
    OVER = "over"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class ApiFacts(_Model):
    """How the API is asked; the key is not among it."""

    base_url: str
    calls_per_s: float = 1.0
    launch_every_s: float = 12.0
    lock_file: Path
    timeout_s: float = 30.0


class LoginFacts(_Model):
    """How the machine is reached, as `Login`. host: None until it has an address."""

    user: str | None
    host: str | None = None
    port: int | None = 22
    key: Path | None = None
    trusted: tuple[Path, ...] = ()
    is_trusted: bool = False
    config: Path | None = None


class WatchdogFacts(_Model):
    """When the watchdog acts. persist_s: how long it goes on asking an API that does not end the machine."""

    interval_s: float = 1.0
    stale_s: float = 300.0
    grace_s: float = 120.0
    last_fetch_s: float = 120.0
    confirm_s: float = 900.0
    poll_s: float = 5.0
    again_s: float = 60.0
    persist_s: float = 86_400.0


class RentalFacts(_Model):
    """What was rented, and from whom; api: None for a machine that is not rented."""

    api: ApiFacts | None = None
    type_name: str = ""
    regions: tuple[str, ...] = ()
    image_family: str = ""
    ssh_key_name: str = ""
    price_cents_per_hour: int = 0
    login: LoginFacts
    watchdog: WatchdogFacts = Field(default_factory=WatchdogFacts)


class JobRecord(_Model):
    """A job of the session. results: its folder on the machine; is_home: what it left there is here, whole."""

    name: str
    kind: Literal["setup", "run"]
    results: str | None
    limit_s: float
    state: Literal["waiting", "running", "ended", "skipped"] = "waiting"
    rc: int | None = None
    reason: str | None = None
    is_home: bool = False


class SessionRecord(_Model):
    """`session.json`. appear_until_utc: until then a launch without an answer may still show a machine."""

    schema_version: Literal[1] = 1
    name: str
    state: State
    rental: RentalFacts
    tags: Mapping[str, str] = Field(default_factory=dict)
    region: str | None = None
    machine_ids: tuple[str, ...] = ()
    appear_until_utc: float | None = None
    max_minutes: float
    max_usd: float | None
    reserve_s: float
    fail_fast: bool
    started_utc: float
    deadline_utc: float
    ended_utc: float | None = None
    jobs_folder: str
    is_set_up: bool = False
    jobs: tuple[JobRecord, ...] = ()
    trouble: str | None = None
    request: Mapping[str, JsonValue] = Field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left to end."""
        return self.state in (State.GONE, State.OVER)

    @property
    def may_have_machines(self) -> bool:
        """Whether there may be a machine: an id, or a launch whose answer is not known."""
        return not self.is_over and (bool(self.machine_ids) or self.appear_until_utc is not None)


def new_session_name(now_utc: float | None = None) -> str:
    """A name that no other session has: the machine is known by it."""
    moment = datetime.fromtimestamp(time.time() if now_utc is None else now_utc, UTC)
    return f"slob-{moment:%Y%m%dt%H%M%Sz}-{secrets.token_hex(4)}"


class SessionFolder:
    """A session's folder and the record in it, which is always whole and on the disk when `change` returns."""

    def __init__(self, path: Path, record: SessionRecord) -> None:
        self.path = path
        self.record = record

    @classmethod
    def create(cls, path: Path, record: SessionRecord) -> SessionFolder:
        """A new folder with its first record. Raises CloudUsageError where it is there already or cannot be made."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            folder = cls(path.resolve(), record)
            folder.heartbeat.touch()
            folder.known_hosts.touch(mode=0o600)
            folder.change()
            _sync_folder(folder.path.parent)
        except OSError as error:
            if isinstance(error, FileExistsError) and os.path.lexists(path):
                raise CloudUsageError(f"{path} is there already: every session has a folder of its own") from None
            raise CloudUsageError(f"cannot write {path}: {_words(error)}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> SessionFolder:
        """The folder of an earlier session. Raises CloudUsageError where it is none."""
        return cls(path.resolve(), read_record(path))

    @property
    def known_hosts(self) -> Path:
        """The machine's key, as learned at first contact."""
        return self.path / "known_hosts"

    @property
    def heartbeat(self) -> Path:
        """A file whose time says when the session process was last alive."""
        return self.path / "heartbeat"

    @property
    def login(self) -> Login | None:
        """How the machine is reached; None before it has an address."""
        facts = self.record.rental.login
        if facts.host is None:
            return None
        return Login(
            user=facts.user,
            host=facts.host,
            port=facts.port,
            key=facts.key,
            known_hosts=self.known_hosts,
            trusted=facts.trusted,
            is_trusted=facts.is_trusted,
            config=facts.config,
        )

    def change(self, **fields: Any) -> None:
        """Change the record, in memory first. Raises CloudTrouble where it cannot be written."""
        self.record = self.record.model_copy(update=fields)
        try:
            _write_durably(self.path / _RECORD, self.record.model_dump_json(indent=2) + "\n")
        except OSError as error:
            raise CloudTrouble(f"cannot write {self.path / _RECORD}: {_words(error)}") from error

    def set_host(self, host: str) -> None:
        """Write down the machine's address."""
        login = self.record.rental.login.model_copy(update={"host": host})
        self.change(rental=self.record.rental.model_copy(update={"login": login}))

    def job(self, name: str) -> JobRecord:
        """What is known of a job."""
        return next(each for each in self.record.jobs if each.name == name)

    def change_job(self, name: str, **fields: Any) -> None:
        """Change what is known of a job."""
        self.change(
            jobs=tuple(each.model_copy(update=fields) if each.name == name else each for each in self.record.jobs)
        )

    def reread(self) -> SessionRecord:
        """Read what another process has written."""
        self.record = read_record(self.path)
        return self.record

    def beat(self) -> None:
        """Say that this process is alive. A full disk does not keep it from that."""
        with suppress(OSError):
            os.utime(self.heartbeat)

    def log(self, text: str, name: str = "session.log") -> None:
        """Append a line; a log that cannot be written stops nothing."""
        with suppress(OSError), (self.path / name).open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}\n")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Own the session; ends with the process, a SIGKILL included. Raises CloudUsageError where another owns it."""
        with held(self.path / "owner.lock", f"{self.path.name} is in use by another process, or is being ended"):
            yield

    @property
    def is_owned(self) -> bool:
        """Whether a process owns the session now."""
        return is_held(self.path / "owner.lock")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Be the session's watchdog."""
        with held(self.path / "watchdog.lock", f"{self.path.name} has a watchdog already"):
            yield

    @property
    def is_watched(self) -> bool:
        """Whether a watchdog lives."""
        return is_held(self.path / "watchdog.lock")


def read_record(path: Path) -> SessionRecord:
    """The record in a session's folder. Raises CloudUsageError where there is none that can be read."""
    file = path / _RECORD
    try:
        return SessionRecord.model_validate_json(file.read_bytes())
    except OSError as error:
        raise CloudUsageError(f"{path} is no session: cannot read {file}: {_words(error)}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise CloudUsageError(f"{file} cannot be read: {where}: {first['msg']}") from None


@contextmanager
def held(path: Path, refusal: str) -> Iterator[None]:
    """A lock of the kernel's: it ends with its process. Whoever only looks has it for a moment, hence a wait."""
    end_s = time.monotonic() + _TAKE_LOCK_S
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not _took(descriptor, path, fcntl.LOCK_EX):
            if time.monotonic() > end_s:
                raise CloudUsageError(refusal)
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _took(descriptor, path, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _took(descriptor: int, path: Path, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise CloudUsageError(
                f"{path.parent} is on a file system without locks, so nothing would notice that this process died: "
                "choose another --runs-dir"
            ) from None
        raise
    return True


def _write_durably(path: Path, text: str) -> None:
    """Whole or not at all, and on the disk on return."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
