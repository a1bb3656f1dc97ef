"""A machine over SSH: short commands on fresh connections, and transfers that go on where they broke off.

ssh ends with 255 for a refused login, a cut link, a frozen one and a command that a signal killed, so its code is never
believed: a command's own code comes in a last line of ours, and where that line is missing the link was lost.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloud.errors import CloudTrouble, CloudUsageError, HostKeyChanged, LinkLost
from cloud.ssh import (
    CHANGED_KEY,
    PARTIAL_DIR,
    LinkBounds,
    Login,
    Output,
    output_of,
    remote_place,
    rsync_command,
    ssh_command,
)

__all__ = ["PARTIAL_DIR", "LinkBounds", "Login", "Ran", "Remote", "shell_word"]

READ_BYTES = 4 << 20
"""What one read of a file brings at most."""

_DEFAULT_BOUNDS = LinkBounds()
_SAFE_PATH = re.compile(r"(?:~|~?/[A-Za-z0-9._/+@=,:~-]*)")
_VANISHED = 24
_NO_PROGRAM = 127
_LINK_CODES = (10, 12, 30, 35, 255)
"""Of rsync: sockets, the stream of the protocol, time-outs, and what ssh gives."""

_FULL = "No space left on device"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command on the machine wrote, and its own exit code: 128 + n where signal n ended it."""

    rc: int
    stdout: str
    stderr: str


class Remote:
    """One machine. Every call opens its own connection, ends within its time, and leaves no program of ours behind.

    A command that lost its link may go on running on the machine, so what must happen once only is made so there.
    """

    def __init__(self, login: Login, bounds: LinkBounds = _DEFAULT_BOUNDS) -> None:
        self.login = login
        self.bounds = bounds
        self._home: str | None = None

    async def run(self, command: str, *, timeout_s: float, stdin: bytes | None = None) -> Ran:
        """Run a command line of sh. Raises LinkLost or HostKeyChanged, never for the command's own exit code."""
        rc, stdout, stderr = await self._run(command, timeout_s=timeout_s, stdin=stdin)
        return Ran(rc, stdout.decode(errors="replace"), stderr.decode(errors="replace"))

    async def probe(self, timeout_s: float | None = None) -> bool:
        """Whether a command runs there now. Raises HostKeyChanged."""
        limit_s = self.bounds.probe_s if timeout_s is None else timeout_s
        try:
            rc, _, _ = await self._run("true", timeout_s=limit_s, stdin=None)
        except LinkLost:
            return False
        return rc == 0

    async def wait_until_it_answers(self, deadline_s: float) -> None:
        """Try until a command runs there. deadline_s: on the monotonic clock. Raises LinkLost then, with a reason."""
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                await self._run("true", timeout_s=max(min(self.bounds.probe_s, left_s), 0.1), stdin=None)
            except LinkLost:
                if time.monotonic() + self.bounds.retry_s >= deadline_s:
                    raise
                await asyncio.sleep(self.bounds.retry_s)
            else:
                return

    async def push(self, local: Path, remote: str, timeout_s: float) -> None:
        """Bring a folder's content into a folder there, or a file to a path there. Links are followed here."""
        _check_path(remote)
        end_s = time.monotonic() + timeout_s
        is_folder = local.is_dir()  # noqa: ASYNC240 -- one look at a local disk
        folder = remote if is_folder else remote.rpartition("/")[0]
        home = await self._home_after(f"mkdir -p -- {shell_word(folder)}", timeout_s)
        source, target = (f"{local}/", f"{remote}/") if is_folder else (str(local), remote)
        there = remote_place(self.login, _absolute(target, home))
        await self._transfer(["--copy-links"], source, there, end_s - time.monotonic(), receiver="the machine")

    async def pull(
        self, remote: str, local: Path, timeout_s: float, exclude: Sequence[str] = (), *, is_compared: bool = False
    ) -> None:
        """Bring a folder's content into a folder here, or a file to a path here. Files that vanish meanwhile are none.

        is_compared: files of the same size and time are compared by their bytes too. Raises CloudTrouble where there
        is no such folder or file.
        """
        _check_path(remote)
        end_s = time.monotonic() + timeout_s
        word = shell_word(remote)
        kind = f"if [ -d {word} ]; then printf d; elif [ -e {word} ]; then printf f; else printf n; fi"
        told = await self._home_after(kind, timeout_s)
        kind, home = told[:1], told[1:]
        if kind == "n":
            raise CloudTrouble(f"there is no {remote} on the machine")
        source, target = (f"{remote}/", f"{local}/") if kind == "d" else (remote, str(local))
        (local if kind == "d" else local.parent).mkdir(parents=True, exist_ok=True)
        words = [f"--exclude={pattern}" for pattern in (PARTIAL_DIR, *exclude)]
        if is_compared:
            words.append("--checksum")
        there = remote_place(self.login, _absolute(source, home))
        await self._transfer(words, there, target, end_s - time.monotonic(), receiver="this computer")

    async def read_from(self, path: str, offset: int, timeout_s: float) -> bytes:
        """What a file holds from a byte on, 4 MiB at most; nothing where there is no file yet."""
        word = shell_word(path)
        command = f"[ ! -e {word} ] || tail -c +{offset + 1} -- {word} | head -c {READ_BYTES}"
        rc, stdout, stderr = await self._run(command, timeout_s=timeout_s, stdin=None)
        if rc:
            raise CloudTrouble(f"cannot read {path} on the machine: {_last_line(stderr)}")
        return stdout

    async def _home_after(self, command: str, timeout_s: float) -> str:
        """What a command wrote, and the home folder: not every rsync leaves `~/` to a shell."""
        rc, stdout, stderr = await self._run(f'{command} && printf %s "$HOME"', timeout_s=timeout_s, stdin=None)
        if rc:
            raise CloudTrouble(_said_full(stderr, "the machine") or f"the machine refused: {_last_line(stderr)}")
        return stdout.decode(errors="replace")

    async def _run(self, command: str, *, timeout_s: float, stdin: bytes | None) -> tuple[int, bytes, bytes]:
        token = secrets.token_hex(8)
        line = f"sh -c {shlex.quote(command)}; printf '\\n{token} %d\\n' $? >&2"
        words = ssh_command(self.login, self.bounds, f"sh -c {shlex.quote(line)}")
        output = await self._output(words, timeout_s=timeout_s, stdin=stdin)
        before, mark, after = output.stderr.rpartition(f"\n{token} ".encode())
        if not mark or not after.strip().isdigit():
            raise await self._trouble(output, timeout_s)
        return int(after), output.stdout, before

    async def _transfer(
        self, words: Sequence[str], source: str, target: str, timeout_s: float, *, receiver: str
    ) -> None:
        command = rsync_command(self.login, self.bounds, words, source=source, target=target)
        output = await self._output(command, timeout_s=timeout_s, stdin=None)
        if output.rc in (0, _VANISHED):
            return
        if full := _said_full(output.stderr, receiver):
            raise CloudTrouble(full)
        if (
            output.rc == _NO_PROGRAM
            or b"rsync: command not found" in output.stderr
            or b"rsync: not found" in output.stderr
        ):
            raise CloudTrouble("the machine has no rsync: install it there")
        if output.rc is None or output.rc in _LINK_CODES or output.rc < 0:
            raise await self._trouble(output, timeout_s)
        raise CloudTrouble(f"rsync could not bring {source} to {target}: {_first_line(output.stderr)}")

    async def _output(self, words: Sequence[str], *, timeout_s: float, stdin: bytes | None) -> Output:
        self.login.known_hosts.parent.mkdir(parents=True, exist_ok=True)
        return await output_of(words, stdin=stdin, timeout_s=max(timeout_s, 0.0), kill_s=self.bounds.kill_s)

    async def _trouble(self, output: Output, timeout_s: float) -> CloudTrouble:
        """Why no code came. What ssh wrote is mixed with the machine's words, so a changed key is probed."""
        where = self.login.destination
        if output.rc is None:
            return LinkLost(f"{where} did not answer within {timeout_s:.3g} s")
        if CHANGED_KEY.encode() in output.stderr and await self._shows_another_key():
            return HostKeyChanged(
                f"{where} shows another host key than at first contact ({self.login.known_hosts}): "
                "nothing more is sent to it; find out what answers there"
            )
        return LinkLost(f"the link to {where} was lost: {_last_line(output.stderr)}")

    async def _shows_another_key(self) -> bool:
        words = ssh_command(self.login, self.bounds, "true")
        output = await self._output(words, timeout_s=self.bounds.probe_s, stdin=None)
        return output.rc not in (0, None) and CHANGED_KEY.encode() in output.stderr


def shell_word(path: str) -> str:
    """A path as a word of sh there: a `~/` at its start is the machine's home, all else stands for itself."""
    if path == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _absolute(path: str, home: str) -> str:
    return f"{home}{path[1:]}" if path.startswith("~") else path


def _check_path(path: str) -> None:
    """Paths of a transfer go through shells and programs of several ages, each with its own quoting."""
    if not _SAFE_PATH.fullmatch(path):
        raise CloudUsageError(f"{path!r} is no path for a transfer: begin with / or ~/, and use no blanks or signs")


def _said_full(stderr: bytes, where: str) -> str | None:
    return f"the disk of {where} is full: free some space there" if _FULL.encode() in stderr else None


def _lines(stderr: bytes) -> list[str]:
    return [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]


def _last_line(stderr: bytes) -> str:
    return (_lines(stderr) or ["no word came"])[-1]


def _first_line(stderr: bytes) -> str:
    return (_lines(stderr) or ["no word came"])[0]
