"""The command itself on a computer at home: the made-up API, and a real sshd as the machine that it rents."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_lambda import FakeLambda
from real_sshd import RealSshd
from sessions import KEY_NAME, TYPE, stop_watchdogs

from cloud.session_file import SessionRecord, read_record


@dataclass
class Laptop:
    """The command line at home, a made-up API, and a machine whose own file sets the simulated engine.

    before: lines of sh that every run there begins with, before its own program.
    """

    home: Path
    fake: Any
    machine: Any
    before: str = ":"
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.home / ".ssh").mkdir(parents=True)
        (self.home / "tmp").mkdir()
        self.fake.add_ssh_key(KEY_NAME, self.machine.public_key)
        for suffix, text in (("", self.machine.key.read_text()), (".pub", self.machine.public_key)):
            (self.home / ".ssh" / f"id_ed25519{suffix}").write_text(text)
            (self.home / ".ssh" / f"id_ed25519{suffix}").chmod(0o600)
        own, interpreter = self.machine.home / ".config" / "slo-bench", self.machine.home / "interpreter"
        own.mkdir(parents=True)
        (own / "machine.toml").write_text(f'engine = "simulated"\npython = "{interpreter}"\n')
        begins = f'if [ "$2 $3" = "slo_bench run" ]; then\n{self.before}\nfi\n'
        interpreter.write_text(f'#!/bin/sh\n{begins}exec {sys.executable} "$@"\n')
        interpreter.chmod(0o755)

    @property
    def session(self) -> Path:
        """The folder of its only session."""
        (found,) = (self.home / "runs").glob("slob-*")
        return found

    @property
    def record(self) -> SessionRecord:
        return read_record(self.session)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`slo-bench cloud WORDS`, leader of its own process group."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLO_BENCH_")}
        pace = {"SLO_BENCH_CALLS_PER_S": "100", "SLO_BENCH_LAUNCH_EVERY_S": "0.1", "SLO_BENCH_POLL_S": "0.2"}
        api = {"LAMBDA_API_BASE": self.fake.base_url, "LAMBDA_API_KEY": self.fake.api_key}
        here = {"HOME": str(self.home), "TMPDIR": str(self.home / "tmp")}
        made = subprocess.Popen(
            [str(Path(sys.executable).with_name("slo-bench")), "cloud", *words],
            cwd=self.home,
            env={**kept, **pace, **api, **here, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(made)
        return made

    def rented(self) -> tuple[str, ...]:
        """The words that rent the machine."""
        link = ("--ssh-user", self.machine.user, "--ssh-port", str(self.machine.port), "--ssh-config", "none")
        return ("session", "--ssh-key", KEY_NAME, "--type", TYPE, "--max-minutes", "30", "--yes", *link)

    def owned(self) -> tuple[str, ...]:
        """The words that take the machine as one's own."""
        link = ("--ssh-port", str(self.machine.port), "--ssh-config", "none", "--ssh-key", str(self.machine.key))
        return ("session", "--host", f"{self.machine.user}@127.0.0.1", *link)


@contextmanager
def at_home(folder: Path, *, before: str = ":") -> Iterator[Laptop]:
    """A laptop with an account of its own and the machine that it rents out; at the end nothing runs any more."""
    with FakeLambda(api_key=f"secret_{secrets.token_hex(16)}") as fake, RealSshd(folder) as machine:
        laptop = Laptop(folder / "laptop", fake, machine, before)
        try:
            yield laptop
        finally:
            for process in laptop.started:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            stop_watchdogs(folder)
