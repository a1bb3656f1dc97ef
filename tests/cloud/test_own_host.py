"""A session on a machine of one's own: nothing is rented or ended, all else is the same; a real sshd is the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_sshd import LOOPBACK, MISSING, RealSshd

from cloud.session_file import State, read_record
from reports.run_directory import RunDocument, read_document

pytestmark = [pytest.mark.cloud, pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")]

PROGRAM = Path(sys.executable).with_name("slo-bench")
MODEL = "MODEL=Qwen/Qwen3-30B-A3B-FP8"
PLAN = """\
label = "two-arms"
drift = false
[all]
engine = "simulated"
mode = "smoke"
[[arm]]
label = "before"
[[arm]]
label = "after"
simulated = ["step_time_factor=0.9"]
"""


@dataclass
class Session:
    """What came of a session. folder: its own, at home."""

    rc: int
    said: str
    folder: Path

    def status(self, label: str) -> str:
        return read_document(self.folder / label / "run.json", RunDocument).status


@dataclass
class Desk:
    """The computer at home and the machine. untouched: a file that was on the machine before."""

    home: Path
    machine: RealSshd
    untouched: Path

    def session(self, *words: str) -> Session:
        host = ["--host", f"{self.machine.user}@{LOOPBACK}", "--ssh-port", str(self.machine.port)]
        link = ["--ssh-config", "none", "--ssh-key", str(self.machine.key), "--poll-s", "0.2"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLO_BENCH_")}
        done = subprocess.run(
            [str(PROGRAM), "cloud", "session", *host, *link, *words],
            cwd=self.home,
            env={**kept, "HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        said = done.stdout + done.stderr
        print(said)
        assert self.untouched.read_text() == "mine\n"
        assert self.machine.processes() == []
        (folder,) = (self.home / "runs").glob("slob-*")
        record = read_record(folder)
        assert record.state is State.OVER
        assert record.machine_ids == ()
        return Session(done.returncode, said, folder)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """The machine's own file sets the engine, and an interpreter that has all."""
    machine = RealSshd(tmp_path)
    own = machine.home / ".config" / "slo-bench"
    own.mkdir(parents=True)
    (own / "machine.toml").write_text(f'engine = "simulated"\npython = "{sys.executable}"\n')
    (machine.home / "mine.txt").write_text("mine\n")
    home = tmp_path / "laptop"
    home.mkdir()
    return Desk(home, machine, machine.home / "mine.txt")


def test_a_run_ends_with_its_directory_and_the_note_at_home_and_the_machine_goes_on(desk: Desk) -> None:
    with desk.machine:
        session = desk.session("--run", f"{MODEL} LABEL=a MODE=smoke")
        assert desk.machine.remote().login.host == LOOPBACK
        assert {path.name for path in desk.machine.home.iterdir()} >= {".config", "mine.txt"}
    assert session.rc == 0, session.said
    assert session.status("a") == "done"
    assert "SIMULATED" in (session.folder / "note.md").read_text()
    assert f"note: runs/{session.folder.name}/note.md" in session.said
    assert "1 of 1 runs done" in session.said
    assert "the machine is yours and goes on" in session.said
    assert "cost" not in session.said
    assert (session.folder / "logs" / "set-up.log").exists()


def test_a_plan_is_rehearsed_there_and_its_note_comes_home(desk: Desk) -> None:
    (desk.home / "plan.toml").write_text(PLAN)
    with desk.machine:
        session = desk.session("--plan", "plan.toml")
    assert session.rc == 0, session.said
    assert (session.folder / "two-arms" / "experiment.json").exists()
    assert "SIMULATED" in (session.folder / "two-arms" / "note.md").read_text()
    assert f"note: runs/{session.folder.name}/two-arms/note.md" in session.said


def test_a_run_whose_tuned_folder_is_missing_is_skipped_and_the_next_one_runs(desk: Desk) -> None:
    with desk.machine:
        session = desk.session(
            *("--run", f"{MODEL} LABEL=tuned MODE=smoke TUNED_MOE_DIR=~/none"),
            *("--run", f"{MODEL} LABEL=after MODE=smoke"),
        )
    assert session.rc == 6, session.said
    assert not (session.folder / "tuned" / "run.json").exists()
    assert session.status("after") == "done"
    assert "skipped: TUNED_MOE_DIR" in session.said
    assert "1 of 2 runs done" in session.said
    assert (session.folder / "note.md").exists()


def test_fail_fast_stops_after_the_first_run_that_fails(desk: Desk) -> None:
    with desk.machine:
        session = desk.session(
            *("--run", f"{MODEL} LABEL=tuned MODE=smoke TUNED_MOE_DIR=~/none"),
            *("--run", f"{MODEL} LABEL=after MODE=smoke"),
            "--fail-fast",
        )
    assert session.rc == 4, session.said
    assert "stopped there, as --fail-fast says" in session.said
    assert not (session.folder / "after").exists()
    assert "0 of 2 runs done" in session.said
