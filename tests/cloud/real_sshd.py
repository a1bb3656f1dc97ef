"""A machine for tests: a real sshd on a free loopback port, whose home is a folder of the test.

Its sessions can be cut and frozen, its listener stopped and started again, with the same host key or another one. It
needs no rights: whoever runs the tests logs in. `HOME` of every command is the machine's own folder, so nothing is
written to the real one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from typing import Self

from cloud.remote import LinkBounds, Login, Remote

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
MISSING = [
    name
    for name, path in (("sshd", SSHD), *((each, shutil.which(each)) for each in ("ssh", "ssh-keygen", "rsync")))
    if path is None
]
LOOPBACK = "127.0.0.1"
QUICK = LinkBounds(connect_s=2, alive_interval_s=1, alive_count=2, transfer_silence_s=20, probe_s=5.0, retry_s=0.1)
"""Bounds that find a dead link within about four seconds."""

_READY_S = 10.0
_END_S = 5.0
_POLL_S = 0.01
_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 50:30:100
MaxSessions 50
LogLevel VERBOSE
Subsystem sftp internal-sftp
SetEnv HOME={home} {mark}
ForceCommand cd; eval "$SSH_ORIGINAL_COMMAND"
"""


class RealSshd:
    """A machine that answers from `with` on; at the end everything that ran on it is ended.

    folder: where keys, logs and the home are kept; its path must have no blanks. home: another place for the machine's
    home, like a small disk. user: who logs in; by default whoever runs the tests.
    """

    def __init__(self, folder: Path, *, home: Path | None = None, port: int | None = None) -> None:
        self.folder = folder / "machine"
        self.home = home or self.folder / "home"
        self.port = port or _free_port()
        self.user = getuser()
        self.key = self.folder / "client_key"
        self._mark = f"SLOB_TEST_MACHINE={secrets.token_hex(16)}"
        self._listener: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []
        self._older: list[int] = []

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        _make_key(self.key)
        _make_key(self.folder / "host_key")
        shutil.copy(self.key.with_suffix(".pub"), self.folder / "authorized_keys")
        with suppress(PermissionError):
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # asked for by an sshd of root
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.switch_off()

    @property
    def public_key(self) -> str:
        """The client's public key, as an account would know it."""
        return self.key.with_suffix(".pub").read_text().strip()

    def login(self, known_hosts: Path | None = None) -> Login:
        """How it is reached, with a file of known hosts that learns its key at first contact."""
        return Login(
            user=self.user,
            host=LOOPBACK,
            port=self.port,
            key=self.key,
            known_hosts=known_hosts or self.folder / "known_hosts",
            config=Path("none"),
        )

    def remote(self, bounds: LinkBounds = QUICK) -> Remote:
        """The machine through our own door."""
        return Remote(self.login(), bounds)

    def listen(self, *, with_new_host_key: bool = False) -> None:
        """Start the listener; with another host key it is another machine at the same address."""
        assert SSHD is not None
        if with_new_host_key:
            _make_key(self.folder / "host_key")
        config = self.folder / "sshd_config"
        config.write_text(
            _CONFIG.format(port=self.port, address=LOOPBACK, folder=self.folder, home=self.home, mark=self._mark)
        )
        with (self.folder / "sshd.log").open("ab") as log:
            self._listener = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        _wait_for(
            self._shows_a_banner, _READY_S, "sshd does not answer: " + (self.folder / "sshd.log").read_text()[-500:]
        )

    def stop_listening(self) -> None:
        """Refuse new connections; those that are open stay open."""
        if self._listener is not None:
            self._older = self.sessions()
            self._listener.terminate()
            self._listener.wait(_END_S)
            self._listener = None

    def sessions(self) -> list[int]:
        """The processes of sshd that serve open connections."""
        found = [pid for pid in self._older if _name(pid).startswith("sshd")]
        todo = [] if self._listener is None else [self._listener.pid]
        while todo:
            served = [pid for pid in _children(todo.pop()) if _name(pid).startswith("sshd")]
            found += served
            todo += served
        return found

    def cut(self) -> int:
        """Cut every open connection, and say how many processes served them; what they started lives on."""
        sessions = self.sessions()
        for pid in sessions:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(sessions)

    def freeze(self) -> int:
        """Let every open connection hang, as when packets go nowhere; how many processes served them."""
        sessions = self.sessions()
        for pid in sessions:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._frozen.append(pid)
        return len(sessions)

    def thaw(self) -> None:
        """Let the frozen connections go on."""
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen.clear()

    def processes(self) -> list[int]:
        """Everything that a command started here and that still lives."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def switch_off(self) -> None:
        """End the sessions, the listener and whatever runs, as a terminated machine does; nothing of it is left."""
        self.thaw()
        self.cut()
        self.stop_listening()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_for(lambda: not self.processes(), _END_S, "a process of the machine does not end")

    def _shows_a_banner(self) -> bool:
        with suppress(OSError), socket.create_connection((LOOPBACK, self.port), timeout=1.0) as connection:
            return connection.recv(8).startswith(b"SSH-2.0-")
        return False


def _make_key(path: Path) -> None:
    for each in (path, path.with_suffix(".pub")):
        each.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)  # noqa: S607


def _free_port() -> int:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        return int(holder.getsockname()[1])


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


def _wait_for(condition: Callable[[], bool], limit_s: float, trouble: str) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= end_s:
            raise TimeoutError(trouble)
        time.sleep(_POLL_S)
