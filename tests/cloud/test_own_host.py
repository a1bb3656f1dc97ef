"""A session on a machine of one's own: nothing is rented or ended, all else is the same; a real sshd is the machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from plan_of_two import PLAN
from real_sshd import LOOPBACK, MISSING, QUICK, RealSshd

from cloud.errors import CloudTrouble, HostKeyChanged
from cloud.own_host import with_known_hosts
from cloud.remote import Login, Remote
from cloud.session_file import SessionFolder, State, read_record
from reports.run_directory import RunDocument, read_document

pytestmark = [pytest.mark.cloud, pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")]

PROGRAM = Path(sys.executable).with_name("slo-bench")
MODEL = "MODEL=Qwen/Qwen3-30B-A3B-FP8"


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

    @property
    def known_hosts(self) -> Path:
        """The user's own, as `config` names it: ssh looks for its default in the real home, whatever HOME is."""
        return self.home / "known hosts"

    @property
    def config(self) -> Path:
        path = self.home / "ssh_config"
        path.write_text(f'Host box\n  HostName {LOOPBACK}\nHost *\n  UserKnownHostsFile "{self.known_hosts}"\n')
        return path

    def knows(self, public_key: Path, name: str | None = None) -> None:
        """The user has met the machine, and its key was this one."""
        kind, key = public_key.read_text().split()[:2]
        with self.known_hosts.open("a") as file:
            file.write(f"{name or f'[{LOOPBACK}]:{self.machine.port}'} {kind} {key}\n")

    def session(self, *words: str, config: Path | str = "none") -> Session:
        host = ["--host", f"{self.machine.user}@{LOOPBACK}", "--ssh-port", str(self.machine.port)]
        link = ["--ssh-config", str(config), "--ssh-key", str(self.machine.key), "--poll-s", "0.2"]
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


HOST_KEY = "host_key.pub"


def answers(desk: Desk, **more: object) -> Login:
    """One command on the machine with what the user's known hosts say; how it was reached."""
    own = replace(desk.machine.login(desk.home / "of-the-session"), config=desk.config, **more)  # type: ignore[arg-type]

    async def ask() -> Login:
        login = await with_known_hosts(own, QUICK)
        assert await Remote(login, QUICK).probe()
        return login

    return asyncio.run(ask())


def test_a_machine_that_the_user_knows_is_held_against_that_key_and_no_other_is_learnt(desk: Desk) -> None:
    with desk.machine:
        desk.knows(desk.machine.folder / HOST_KEY)
        session = desk.session("--run", f"{MODEL} LABEL=a MODE=smoke", config=desk.config)
    assert session.rc == 0, session.said
    assert "not known here before" not in session.said
    folder = SessionFolder.open(session.folder)
    assert folder.known_hosts.read_text() == ""
    assert folder.login is not None
    assert folder.login.is_trusted
    assert desk.known_hosts in folder.login.trusted


def test_a_machine_whose_key_is_another_than_the_user_knows_is_refused_in_one_line_and_gets_nothing(desk: Desk) -> None:
    with desk.machine:
        desk.knows(desk.machine.folder / HOST_KEY)
        known = desk.known_hosts.read_text()
        desk.machine.stop_listening()
        desk.machine.listen(with_new_host_key=True)
        session = desk.session("--run", f"{MODEL} LABEL=a MODE=smoke", config=desk.config)
        assert not (desk.machine.home / "slo-bench").exists()
    assert session.rc == 4, session.said
    (line,) = (line for line in session.said.splitlines() if line.startswith("trouble: "))
    assert "shows another host key than your known_hosts has" in line
    assert str(desk.known_hosts) in line
    assert SessionFolder.open(session.folder).known_hosts.read_text() == ""
    assert desk.known_hosts.read_text() == known


@pytest.mark.parametrize("mark", ["", "@cert-authority "], ids=["another kind", "an authority"])
def test_where_the_user_knows_another_kind_of_key_or_an_authority_a_plain_key_is_no_new_one(
    desk: Desk, mark: str
) -> None:
    with desk.machine:
        other = desk.home / "other"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(other)], check=True)  # noqa: S607 - of this system
        desk.knows(other.with_suffix(".pub"), f"{mark}[{LOOPBACK}]:{desk.machine.port}")
        with pytest.raises(HostKeyChanged):
            answers(desk)


def test_a_machine_that_the_user_never_met_is_learnt_at_first_contact_and_not_written_among_the_users(
    desk: Desk,
) -> None:
    with desk.machine:
        desk.knows(desk.machine.folder / HOST_KEY, "another.example")
        known = desk.known_hosts.read_text()
        login = answers(desk)
    assert not login.is_trusted
    assert login.is_known
    assert desk.known_hosts.read_text() == known


def test_names_are_looked_up_as_ssh_does_hashed_and_behind_a_short_name(desk: Desk) -> None:
    with desk.machine:
        desk.knows(desk.machine.folder / HOST_KEY)
        subprocess.run(["ssh-keygen", "-H", "-f", str(desk.known_hosts)], check=True, capture_output=True)  # noqa: S607 - of this system
        assert LOOPBACK not in desk.known_hosts.read_text()
        assert answers(desk, host="box").is_trusted
        desk.machine.stop_listening()
        desk.machine.listen(with_new_host_key=True)
        with pytest.raises(HostKeyChanged):
            answers(desk, host="box")


def test_a_configuration_that_ssh_cannot_read_is_told_in_one_line(desk: Desk) -> None:
    with desk.machine:
        (desk.home / "broken").write_text("NoSuchWord yes\n")
        own = replace(desk.machine.login(desk.home / "of-the-session"), config=desk.home / "broken")
        with pytest.raises(CloudTrouble, match="ssh cannot read its configuration for") as told:
            asyncio.run(with_known_hosts(own, QUICK))
    assert "\n" not in str(told.value)
