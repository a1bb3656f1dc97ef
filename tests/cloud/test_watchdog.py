"""The watchdog as a process of its own: when it ends a machine, when it leaves it alone, and when it goes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sessions import SESSION, Place, two_runs, wait_for

from cloud.api_key import API_KEY_NAME
from cloud.arming import ARMED, arm
from cloud.errors import CloudTrouble
from cloud.session_file import EXPIRES_TAG, SESSION_TAG, JobRecord, SessionFolder, SessionRecord, State, WatchdogFacts

pytestmark = pytest.mark.cloud

SOON = WatchdogFacts(
    interval_s=0.05,
    stale_s=1.5,
    grace_s=1.0,
    last_fetch_s=2.0,
    confirm_s=1.0,
    poll_s=0.05,
    again_s=0.2,
    persist_s=60.0,
)
OWNER = """\
import sys, time
from pathlib import Path
from cloud.session_file import SessionFolder
from cloud.errors import CloudUsageError
folder = SessionFolder.open(Path(sys.argv[1]))
print("waits", flush=True)
while True:
    try:
        with folder.held():
            print("owned", flush=True)
            while True:
                folder.beat()
                time.sleep(0.05)
    except CloudUsageError:
        pass
"""
"""A session's process, as far as its watchdog sees it: it owns the folder once that is free, and its heart beats."""


@dataclass
class Watched:
    """A session's folder with a machine that was launched for it, and what looks after both."""

    place: Place
    folder: SessionFolder
    machine: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def owner(self) -> subprocess.Popen[str]:
        """A process that owns the session."""
        made = self.heir()
        assert _line(made) == "owned\n"
        return made

    def heir(self) -> subprocess.Popen[str]:
        """A process that waits to own it."""
        made = self._started([sys.executable, "-c", OWNER, str(self.folder.path)])
        assert _line(made) == "waits\n"
        return made

    def program(self) -> subprocess.Popen[str]:
        """The watchdog as it is started by hand."""
        environment = {**os.environ, API_KEY_NAME: self.place.fake.api_key}
        return self._started([sys.executable, "-m", "cloud.watchdog", str(self.folder.path)], environment)

    def armed(self) -> int:
        """A watchdog that a session would trust; its process."""
        asyncio.run(arm(self.folder, {API_KEY_NAME: self.place.fake.api_key}, 20.0))
        (pid,) = self.place.watchdogs()
        return pid

    @property
    def state(self) -> State:
        return self.place.record.state

    @property
    def is_alive(self) -> bool:
        return self.machine in self.place.fake.alive()

    def log(self) -> str:
        path = self.folder.path / "watchdog.log"
        return path.read_text() if path.exists() else ""

    def until_it_goes(self, limit_s: float = 15.0) -> None:
        wait_for(lambda: not self.place.watchdogs(), limit_s, self.log)

    def asked(self) -> list[str]:
        """What was asked of the API, in order."""
        return [each.call for each in self.place.fake.seen()]

    def acted_after_s(self, since_s: float) -> float:
        """How long after a moment the first call came. What the watchdog counts from is its last look before that."""
        return self.place.fake.seen()[0].at_s - since_s + 2 * SOON.interval_s

    def _started(self, words: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.processes.append(made)
        return made


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def record_of(place: Place, state: State = State.WORKING) -> SessionRecord:
    now_utc, minutes = time.time(), 5.0
    return SessionRecord(
        name=place.home.name,
        state=state,
        rental=place.facts(),
        tags={SESSION_TAG: place.home.name, EXPIRES_TAG: str(int(now_utc + 60 * minutes))},
        max_minutes=minutes,
        max_usd=None,
        reserve_s=0.0,
        fail_fast=False,
        started_utc=now_utc,
        deadline_utc=now_utc + 60 * minutes,
        jobs_folder="~/jobs",
        jobs=(JobRecord(name="first", kind="run", results="~/runs/first", limit_s=60.0),),
    )


@contextmanager
def watched_at(place: Place, record: SessionRecord) -> Iterator[Watched]:
    machine = place.fake.add_machine(record.name, tags=dict(record.tags))
    folder = SessionFolder.create(place.home, record.model_copy(update={"machine_ids": (machine,)}))
    made = Watched(place, folder, machine)
    try:
        yield made
    finally:
        place.stop_watchdogs()
        for process in made.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def watched(office: Place) -> Iterator[Watched]:
    """Somebody else's machine stands beside ours, and nobody may ever end it."""
    office.watchdog = SOON
    stranger = office.fake.add_machine(office.home.name, tags={SESSION_TAG: "another"})
    with watched_at(office, record_of(office)) as made:
        yield made
    assert stranger in office.fake.alive()


def test_it_says_armed_only_once_it_holds_the_session(watched: Watched) -> None:
    watched.owner()
    with watched.folder.watched():
        said, error = watched.program().communicate(timeout=20)
    assert (said, "has a watchdog already" in error) == ("", True)
    assert not watched.folder.is_watched
    assert _line(watched.program()) == f"{ARMED}\n"
    assert watched.folder.is_watched


@pytest.mark.parametrize(("key", "word"), [("", "no API key"), ("two words", "more than an API key")])
def test_without_a_key_it_does_not_start_and_arming_says_why(
    watched: Watched, tmp_path: Path, key: str, word: str
) -> None:
    environment = {API_KEY_NAME: key, "HOME": str(tmp_path)}
    with pytest.raises(CloudTrouble, match=f"nothing is launched: .*{word}"):
        asyncio.run(arm(watched.folder, environment, 20.0))
    assert watched.place.watchdogs() == []


def test_a_session_whose_watchdog_gives_no_word_launches_nothing(office: Place) -> None:
    office.session = replace(SESSION, arm_s=0.01)
    outcome = asyncio.run(office.run(two_runs()))
    assert "the watchdog did not start, so nothing is launched" in str(outcome.trouble)
    assert office.fake.count("launch") == 0
    office.wait_for(lambda: not office.is_watched())
    office.stop_watchdogs()


def test_while_the_heart_beats_it_asks_nothing_and_ends_nothing(watched: Watched) -> None:
    watched.owner()
    watched.armed()
    time.sleep(2 * SOON.stale_s)
    assert watched.asked() == []
    assert watched.is_alive
    assert watched.place.is_watched()
    assert watched.state is State.WORKING


def test_a_dead_process_has_its_grace_and_then_the_machine_is_ended(watched: Watched) -> None:
    owner = watched.owner()
    watched.armed()
    owner.kill()
    killed_s = time.monotonic()
    watched.until_it_goes()
    assert watched.acted_after_s(killed_s) >= SOON.grace_s
    assert not watched.is_alive
    assert watched.state is State.GONE
    assert "the session's process is dead" in watched.log()
    assert f"confirmed gone: {watched.machine}" in watched.log()
    assert watched.asked()[-1] == "instances"


def test_a_process_that_takes_over_in_the_grace_keeps_the_machine(watched: Watched) -> None:
    owner = watched.owner()
    watched.armed()
    heir = watched.heir()
    owner.kill()
    assert _line(heir) == "owned\n"
    time.sleep(2 * SOON.grace_s)
    assert watched.asked() == []
    assert watched.is_alive


@pytest.mark.parametrize("state", [State.ENDING, State.UNCONFIRMED])
def test_a_process_that_died_in_the_end_has_no_grace(office: Place, state: State) -> None:
    office.watchdog = SOON.model_copy(update={"grace_s": 3600.0})
    with watched_at(office, record_of(office, state)) as watched:
        watched.armed()
        watched.until_it_goes()
        assert not watched.is_alive
        assert watched.state is State.GONE


def test_a_process_that_hangs_is_not_waited_for_longer_than_its_heartbeat_may_stand(watched: Watched) -> None:
    owner = watched.owner()
    watched.armed()
    owner.send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    watched.until_it_goes()
    assert watched.acted_after_s(stopped_s) >= SOON.stale_s
    assert watched.folder.is_owned
    assert not watched.is_alive
    assert watched.state is State.GONE
    assert "gave no sign for 1.5 s" in watched.log()


def test_the_deadline_ends_the_machine_whoever_lives(watched: Watched) -> None:
    watched.owner()
    watched.armed()
    begun_s = time.monotonic()
    watched.folder.change(deadline_utc=time.time() + 1.5)
    watched.until_it_goes()
    assert watched.acted_after_s(begun_s) >= 1.5
    assert not watched.is_alive
    assert "the deadline is over: ending the machine" in watched.log()


@pytest.mark.parametrize("state", [State.GONE, State.OVER])
def test_it_goes_when_the_session_says_that_it_is_over(watched: Watched, state: State) -> None:
    watched.owner()
    watched.armed()
    watched.folder.change(state=state)
    watched.until_it_goes()
    assert watched.asked() == []
    assert watched.log().splitlines()[-1].endswith(" done")


def test_a_launch_whose_answer_died_with_its_process_is_found_by_its_tags_and_ended(office: Place) -> None:
    office.watchdog = SOON
    with watched_at(office, record_of(office, State.LAUNCHING)) as watched:
        watched.folder.change(machine_ids=(), appear_until_utc=time.time() + 3.0)
        watched.armed()
        watched.until_it_goes()
        assert not watched.is_alive
        assert watched.place.record.machine_ids == (watched.machine,)


def test_an_api_that_is_down_is_asked_again_until_the_machine_is_gone(watched: Watched) -> None:
    watched.place.fake.add_fault("terminate", "internal", times=None)
    owner = watched.owner()
    watched.armed()
    owner.kill()
    wait_for(lambda: watched.log().count("slo-bench cloud reap --instance") >= 2, 15.0, watched.log)
    assert watched.is_alive
    assert watched.state is State.UNCONFIRMED
    watched.place.fake.clear_faults()
    watched.until_it_goes()
    assert not watched.is_alive
    assert watched.state is State.GONE


def test_an_api_that_never_comes_back_is_given_up_after_its_time_and_the_session_says_unconfirmed(
    office: Place,
) -> None:
    office.watchdog = SOON.model_copy(update={"persist_s": 1.5, "grace_s": 0.1})
    office.fake.add_fault("*", "502", times=None)
    with watched_at(office, record_of(office)) as watched:
        watched.armed()
        watched.until_it_goes()
        assert "giving up" in watched.log()
        assert watched.state is State.UNCONFIRMED
        assert "slo-bench cloud reap --instance" in watched.log()


def test_a_terminal_that_closes_and_a_ctrl_c_do_not_end_it(watched: Watched) -> None:
    owner = watched.owner()
    pid = watched.armed()
    assert os.getsid(pid) != os.getsid(0)
    for signum in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, signum)
    time.sleep(0.3)
    assert watched.place.watchdogs() == [pid]
    owner.kill()
    watched.until_it_goes()
    assert not watched.is_alive


def test_the_key_is_on_no_disk_and_in_no_command_line(watched: Watched) -> None:
    owner = watched.owner()
    pid = watched.armed()
    key = watched.place.fake.api_key.encode()
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert key in environment
    assert key not in Path(f"/proc/{pid}/cmdline").read_bytes()
    watched.place.fake.add_fault("terminate", "bad-key", times=2)
    owner.kill()
    watched.until_it_goes()
    files = {path.name: path.read_bytes() for path in watched.place.folder.rglob("*") if path.is_file()}
    assert "invalid-api-key" in files["watchdog.log"].decode()
    assert [name for name, text in files.items() if watched.machine.encode() in text] == [
        "session.json",
        "watchdog.log",
    ]
    assert [name for name, text in files.items() if key in text] == []
