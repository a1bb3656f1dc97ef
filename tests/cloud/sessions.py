"""Whole sessions for tests: the made-up API, a real sshd as the machine, and bounds of fractions of seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from cloud.ending import EndBounds
from cloud.jobs import Job, JobBounds
from cloud.kit import Kit, SessionBounds, SessionOutcome, SessionPlan
from cloud.lambda_api import LambdaApi
from cloud.pacing import Pacing
from cloud.remote import LinkBounds
from cloud.rental import LambdaRental, RentalBounds
from cloud.session import resume_session, run_session
from cloud.session_file import ApiFacts, LoginFacts, RentalFacts, SessionRecord, WatchdogFacts, read_record

TYPE = "gpu_1x_h100_sxm5"
FAMILY = "lambda-stack-24-04"
KEY_NAME = "laptop"

SESSION = SessionBounds(
    poll_s=0.1,
    sync_s=0.4,
    say_s=0.5,
    beat_s=0.1,
    status_s=0.3,
    retry_s=0.1,
    patience_s=2.0,
    command_s=5.0,
    upload_s=10.0,
    fetch_s=10.0,
    fetch_tries=2,
    last_fetch_s=6.0,
    stop_grace_s=0.5,
    arm_s=30.0,
    jobs=JobBounds(connection_s=5.0, start_s=5.0, kill_after_s=1.0, record_s=2.0, poll_s=0.05, tries=2),
)
RENTAL = RentalBounds(launch_s=2.0, boot_s=4.0, poll_s=0.05, appear_s=0.6, look_s=0.05, probe_s=3.0)
END = EndBounds(confirm_s=4.0, poll_s=0.05, again_s=0.1, longest_again_s=0.3, refusals=3)
LINK = LinkBounds(
    connect_s=1, alive_interval_s=1, alive_count=1, transfer_silence_s=10, probe_s=3.0, retry_s=0.1, kill_s=0.5
)
WATCHDOG = WatchdogFacts(
    interval_s=0.1,
    stale_s=2.0,
    grace_s=0.5,
    last_fetch_s=5.0,
    confirm_s=3.0,
    poll_s=0.05,
    again_s=0.2,
    persist_s=3600.0,
)


def writes(name: str, text: str = "", *, before: str = "", after: str = "", limit_s: float = 60.0) -> Job:
    """A job that leaves one file, `number`, after `before` and ahead of `after`."""
    folder = f"$HOME/runs/{name}"
    line = (
        f"{before or ':'}; mkdir -p {folder}; echo {text or name} > {folder}/number; echo {name} wrote; {after or ':'}"
    )
    return Job(name=name, command=("sh", "-c", line), limit_s=limit_s, results=f"~/runs/{name}")


def two_runs() -> Kit:
    return Kit(setup=(Job(name="prepare", command=("true",), limit_s=20.0),), runs=(writes("first"), writes("second")))


def held_up(*, seconds: float = 60.0) -> Kit:
    """The first run ends at once; the second has written its file and holds on."""
    return Kit(runs=(writes("first"), writes("second", after=f"sleep {seconds}")))


@dataclass
class Place:
    """Where a test's session is: its API, its machine, its folder, and everything that was said."""

    folder: Path
    fake: Any
    machine: Any
    said: list[str] = field(default_factory=list)
    session: SessionBounds = SESSION
    rental: RentalBounds = RENTAL
    end: EndBounds = END
    watchdog: WatchdogFacts = WATCHDOG
    api_timeout_s: float = 1.0
    max_minutes: float = 5.0
    reserve_s: float = 10.0
    fail_fast: bool = False
    request: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    regions: tuple[str, ...] = ("us-east-1", "us-west-1")

    @property
    def home(self) -> Path:
        return self.folder / "slob-test"

    @property
    def record(self) -> SessionRecord:
        return read_record(self.home)

    def facts(self) -> RentalFacts:
        api = ApiFacts(
            base_url=self.fake.base_url,
            calls_per_s=500.0,
            launch_every_s=0.01,
            lock_file=self.folder / "pacing",
            timeout_s=self.api_timeout_s,
        )
        machine = self.machine
        login = (
            LoginFacts(user="nobody")
            if machine is None
            else LoginFacts(user=machine.user, port=machine.port, key=machine.key, config=Path("none"))
        )
        return RentalFacts(
            api=api,
            type_name=TYPE,
            regions=self.regions,
            image_family=FAMILY,
            ssh_key_name=KEY_NAME,
            price_cents_per_hour=429,
            login=login,
            watchdog=self.watchdog,
        )

    def api(self) -> LambdaApi:
        return LambdaApi(
            SecretStr(self.key or self.fake.account.api_key),
            pacing=Pacing(500.0, 0.01, lock_file=self.folder / "pacing"),
            base_url=self.fake.base_url,
            timeout_s=self.api_timeout_s,
            launch_timeout_s=self.api_timeout_s,
            connect_s=1.0,
            patience_s=0.5,
            backoff_s=0.05,
            longest_backoff_s=0.1,
        )

    def rented(self, api: LambdaApi) -> LambdaRental:
        return LambdaRental(
            api,
            key=SecretStr(self.key or self.fake.account.api_key),
            facts=self.facts(),
            bounds=self.rental,
            end=self.end,
            link=LINK,
            is_loopback_allowed=True,
        )

    def plan(self) -> SessionPlan:
        return SessionPlan(
            name=self.home.name,
            home=self.home,
            max_minutes=self.max_minutes,
            reserve_s=self.reserve_s,
            fail_fast=self.fail_fast,
            bounds=self.session,
            request=self.request,
        )

    async def run(self, kit: Kit) -> SessionOutcome:
        async with self.api() as api:
            return await run_session(self.plan(), kit, self.rented(api), self.said.append)

    async def resume(self, kit: Kit) -> SessionOutcome:
        async with self.api() as api:
            return await resume_session(self.home, kit, self.rented(api), self.said.append, self.session)

    def result(self, name: str) -> str | None:
        with suppress(OSError):
            return (self.home / name / "number").read_text().strip()
        return None

    def drivers(self, line: str, rc: int = 0) -> None:
        """What nvidia-smi says on the machine."""
        folder = self.machine.home / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{line}'\nexit {rc}\n")
        (folder / "nvidia-smi").chmod(0o755)
        (self.machine.home / ".bashrc").write_text('PATH="$HOME/bin:$PATH"\n')

    def kept(self) -> dict[str, Any]:
        """All that another process needs to make the same place."""
        machine = self.machine
        return {
            "folder": str(self.folder),
            "base_url": self.fake.base_url,
            "key": self.key or self.fake.account.api_key,
            "machine": {"user": machine.user, "port": machine.port, "key": str(machine.key)},
            "watchdog": self.watchdog.model_dump(),
            "request": self.request,
        }

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 15.0) -> None:
        wait_for(condition, limit_s, lambda: f"{self.said} {_log(self.home)}")

    def is_watched(self) -> bool:
        return bool(self.watchdogs())

    def watchdogs(self) -> list[int]:
        """The processes that watch this session."""
        return watchdogs(self.home)

    def stop_watchdogs(self) -> None:
        stop_watchdogs(self.home)


def watchdogs(under: Path) -> list[int]:
    """The processes that watch a session in this folder, or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"cloud.watchdog" in words and any(Path(os.fsdecode(word)).is_relative_to(under) for word in words):
                found.append(int(entry.name))
    return found


def stop_watchdogs(under: Path) -> None:
    for pid in watchdogs(under):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], limit_s: float, told: Callable[[], str]) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, told()
        time.sleep(0.02)


def _log(home: Path) -> str:
    return "\n".join(each.read_text() for each in (home / "session.log", home / "watchdog.log") if each.exists())


def copied(home: Path) -> dict[str, bytes]:
    """Every file that a session wrote here."""
    return {str(each.relative_to(home)): each.read_bytes() for each in home.rglob("*") if each.is_file()}


@dataclass
class Tool:
    """A session in a process of its own, with the signals of the command line."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, place: Place, kit: str, *, action: str = "run", env: Mapping[str, str] | None = None) -> Tool:
        """kit: the name of a function of this module."""
        told = {**place.kept(), "kit": kit, "action": action, "max_minutes": place.max_minutes}
        return cls(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("session_tool.py")), json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **(env or {})},
                start_new_session=True,
            )
        )

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def end(self, limit_s: float = 40.0) -> tuple[int, str]:
        """Its exit code and all that it wrote."""
        try:
            text, _ = self.process.communicate(timeout=limit_s)
        finally:
            self.process.kill()
        return self.process.returncode, text
