"""The tool is killed, and `slo-bench cloud resume` goes on: nothing is begun twice, and the deadline stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lambda_account import Fault, Life
from laptop import Laptop, at_home
from real_sshd import MISSING
from sessions import KEY_NAME, TYPE, WATCHDOG, Place, Tool, wait_for, watchdogs

from cloud.session_file import SessionFolder, State
from reports.run_directory import RunDocument, read_document
from slo_bench.renting.options import SessionOptions

pytestmark = [pytest.mark.cloud, pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")]

MODEL = "MODEL=Qwen/Qwen3-30B-A3B-FP8 MODE=smoke"
HOLDS = """\
echo "$LABEL begins as $$"
echo "$$" >> "$HOME/begun-$LABEL"
while [ -e "$HOME/hold-$LABEL" ]; do sleep 0.1; done
if [ "$LABEL" != measured ]; then mkdir -p "$RUNS_DIR/$LABEL"; echo "$LABEL" > "$RUNS_DIR/$LABEL/number"; exit 0; fi
"""
"""What each run begins with; all but `measured` leave a file and end there."""
PATIENT = WATCHDOG.model_copy(update={"grace_s": 60.0})
"""A watchdog that leaves as much time for a resume as a loaded computer needs."""


@dataclass
class Command:
    """`slo-bench cloud` of a laptop, whose first run holds until it is let go."""

    laptop: Laptop

    def said_at_home(self, word: str) -> bool:
        return any(word in log.read_text() for log in (self.laptop.home / "runs").glob("slob-*/session.log"))

    def wait_until_said(self, word: str) -> None:
        wait_for(lambda: self.said_at_home(word), 100.0, lambda: f"nobody said: {word}")

    def job(self, name: str) -> dict[str, str]:
        """What the machine has of a job that must not change when it is found again."""
        (folder,) = self.laptop.machine.home.glob(f"slo-bench/slob-*/jobs/{name}")
        return {each: (folder / each).read_text() for each in ("pid", "started", "job.json")}

    def out_log(self, name: str) -> str:
        (file,) = self.laptop.machine.home.glob(f"slo-bench/slob-*/jobs/{name}/out.log")
        return str(file.read_text())

    def resume(self) -> subprocess.Popen[str]:
        return self.laptop.start("resume", f"runs/{self.laptop.session.name}")

    def refused(self) -> str:
        """The one line of a resume that cannot be; its exit code is 2."""
        tool = self.resume()
        said, _ = tool.communicate(timeout=60)
        assert tool.returncode == 2, said
        (line,) = said.splitlines()
        return line


def killed_and_resumed(command: Command, label: str, *words: str) -> tuple[int, str]:
    """Kill the whole process group of a session in its first run, then resume it: exit code and words of that."""
    laptop = command.laptop
    hold = laptop.machine.home / f"hold-{label}"
    hold.touch()
    tool = laptop.start(*words)
    command.wait_until_said(f"{label} runs")
    before, job = laptop.record, command.job(label)
    watching = watchdogs(laptop.session)
    os.killpg(tool.pid, signal.SIGKILL)
    tool.communicate(timeout=20)
    assert watchdogs(laptop.session) == watching
    resumed = command.resume()
    command.wait_until_said(f"{label} was started before: going on with it")
    assert command.job(label) == job
    assert int(job["pid"].split()[0]) in laptop.machine.processes()
    hold.unlink()
    said, _ = resumed.communicate(timeout=100)
    print(said)
    after = laptop.record
    same = ("deadline_utc", "started_utc", "max_minutes", "tags", "machine_ids")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert command.job(label) == job
    assert command.out_log(label).count(f"{label} begins as") == 1
    assert len((laptop.machine.home / f"begun-{label}").read_text().split()) == 1
    assert (laptop.session / "logs" / f"{label}.log").read_text() == command.out_log(label)
    return resumed.returncode, said


def test_a_killed_session_goes_on_with_its_running_job_and_ends_with_no_machine(tmp_path: Path) -> None:
    with at_home(tmp_path, before=HOLDS) as laptop:
        command = Command(laptop)
        runs = [word for label in ("measured", "next") for word in ("--run", f"{MODEL} LABEL={label}")]
        rc, said = killed_and_resumed(command, "measured", *laptop.rented(), *runs)
        assert rc == 0, said
        assert read_document(laptop.session / "measured" / "run.json", RunDocument).status == "done"
        assert (laptop.session / "next" / "number").read_text() == "next\n"
        assert "SIMULATED" in (laptop.session / "note.md").read_text()
        assert "2 of 2 runs done" in said
        assert laptop.fake.alive() == []
        assert laptop.fake.count("launch") == 1
        wait_for(lambda: not watchdogs(laptop.session), 10.0, lambda: "the watchdog does not go")
        asked = laptop.fake.count()
        assert "is over (gone)" in command.refused()
        assert laptop.fake.count() == asked


def test_a_killed_session_on_a_machine_of_ones_own_goes_on_too(tmp_path: Path) -> None:
    with at_home(tmp_path, before=HOLDS) as laptop:
        command = Command(laptop)
        rc, said = killed_and_resumed(command, "short", *laptop.owned(), "--run", f"{MODEL} LABEL=short")
        assert rc == 0, said
        assert (laptop.session / "short" / "number").read_text() == "short\n"
        assert "1 of 1 runs done" in said
        assert "is over (over)" in command.refused()
        assert laptop.fake.count() == 0


@pytest.fixture
def request_of_resume() -> dict[str, object]:
    """What a session of the command line would have kept."""
    return SessionOptions(run=["MODEL=m LABEL=first"], type=TYPE, ssh_key=KEY_NAME, max_minutes=5.0).request()


def is_in_second(place: Place) -> bool:
    return bool((place.machine.home / "runs" / "second" / "number").exists())


def killed(place: Place, kit: str, moment: Callable[[], bool]) -> None:
    """Start a session with short bounds, and kill it at a moment."""
    tool = Tool.start(place, kit)
    wait_for(lambda: moment() or tool.process.poll() is not None, 60.0, lambda: "the moment never came")
    tool.send(signal.SIGKILL)
    rc, said = tool.end()
    assert rc == -signal.SIGKILL, said


def test_a_resume_of_a_session_that_lives_or_that_the_watchdog_has_ended_says_so_in_one_line(
    place: Place, request_of_resume: dict[str, object]
) -> None:
    place.request = request_of_resume
    tool = Tool.start(place, "held_up")
    place.wait_for(lambda: is_in_second(place), 60.0)
    alive = refusal(place)
    tool.send(signal.SIGKILL)
    tool.end()
    place.wait_for(lambda: place.record.is_over and not place.is_watched())
    assert alive == "slo-bench: slob-test is in use by another process, or is being ended\n"
    assert place.fake.alive() == []
    assert (place.result("first"), place.result("second")) == ("first", "second")
    asked = place.fake.count()
    assert refusal(place) == "slo-bench: slob-test is over (gone): its machine is not there any more\n"
    assert place.fake.count() == asked


def refusal(place: Place) -> str:
    """What a resume that cannot be writes; its exit code is 2."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("slo-bench")), "cloud", "resume", str(place.home)],
        env={**os.environ, "LAMBDA_API_KEY": place.fake.api_key},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return done.stderr


def test_a_resumed_session_ends_at_the_deadline_that_it_had_at_first(place: Place) -> None:
    place.watchdog = PATIENT
    killed(place, "held_up", lambda: is_in_second(place))
    folder = SessionFolder.open(place.home)
    begun_earlier_s = folder.record.deadline_utc - folder.record.reserve_s - time.time() - 6.0  # 6 s of work are left
    folder.change(
        started_utc=folder.record.started_utc - begun_earlier_s,
        deadline_utc=folder.record.deadline_utc - begun_earlier_s,
    )
    rc, said = Tool.start(place, "held_up", action="resume").end()
    after = place.record
    assert (rc, "the time for work is over" in said) == (4, True)
    assert after.deadline_utc == folder.record.deadline_utc
    assert after.ended_utc is not None
    assert after.deadline_utc - after.reserve_s <= after.ended_utc <= after.deadline_utc
    assert after.state is State.GONE
    assert place.fake.alive() == []
    assert (place.result("first"), place.result("second")) == ("first", "second")


@dataclass(frozen=True, slots=True)
class Moment:
    """When a session is killed that has no job yet. call: of the API, that has come so often."""

    name: str
    call: str
    count: int = 1
    takes_the_watchdog: bool = False
    faults: tuple[Fault, ...] = ()
    life: Life = field(default_factory=Life)


ENDLESS_BOOT = Life(looks_booting=10**6)
MOMENTS = (
    Moment("in the launch", "launch", faults=(Fault("launch", "hang", is_done=True),), life=ENDLESS_BOOT),
    Moment("while it boots, with its watchdog", "instance", 3, takes_the_watchdog=True, life=ENDLESS_BOOT),
)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)
def test_a_session_that_is_killed_before_its_first_run_goes_on_with_the_machine_that_it_launched(
    place: Place, moment: Moment
) -> None:
    place.watchdog = PATIENT
    place.fake.account.settings.life = moment.life
    for fault in moment.faults:
        place.fake.account.add_fault(fault)
    killed(place, "two_runs", lambda: place.fake.count(moment.call) >= moment.count)
    (machine,) = place.fake.alive()
    watching, looks = place.watchdogs(), place.fake.count("instance")
    if moment.takes_the_watchdog:
        place.stop_watchdogs()
        place.wait_for(lambda: not place.is_watched())
    tool = Tool.start(place, "two_runs", action="resume")
    place.wait_for(lambda: place.fake.count("instance") > looks and place.is_watched(), 30.0)
    assert (place.watchdogs() == watching) is not moment.takes_the_watchdog
    place.fake.force(machine, "active")
    rc, said = tool.end()
    assert rc == 0, said
    assert (place.result("first"), place.result("second")) == ("first", "second")
    assert place.record.machine_ids == (machine,)
    assert place.fake.alive() == []
    assert place.fake.count("launch") == 1
