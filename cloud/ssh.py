"""The option lists of ssh and rsync, and programs of ours that end within their time."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloud.api_key import API_KEY_NAME
from cloud.errors import CloudTrouble, CloudUsageError

SSH_PORT = 22
PARTIAL_DIR = ".rsync-partial"
"""Where rsync keeps what has come of a file, so that no reader takes it for the file."""

CHANGED_KEY = "Host key verification failed."

_WORD = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.%:+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How a machine is reached.

    user, port: None leaves them to the ssh configuration. key: None leaves it to the configuration and the agent.
    known_hosts: the session's own file, which learns the machine's key at first contact. trusted: files of keys that
    are believed too. is_trusted: they have a key of this machine, so no other is learnt. config: for `ssh -F`; None is
    the user's own.
    """

    user: str | None
    host: str
    port: int | None = SSH_PORT
    key: Path | None = None
    known_hosts: Path
    trusted: tuple[Path, ...] = ()
    is_trusted: bool = False
    config: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what a program would take for an option or for several words."""
        for word in (self.host, self.user):
            if word is not None and not _WORD.fullmatch(word):
                raise CloudUsageError(f"{word!r} is no name of a machine or a user")

    @property
    def destination(self) -> str:
        """user@host, or the host alone."""
        return self.host if self.user is None else f"{self.user}@{self.host}"

    @property
    def is_known(self) -> bool:
        """Whether the session's file has a key of this machine."""
        name = self.host if self.port in (None, SSH_PORT) else f"[{self.host}]:{self.port}"
        with suppress(OSError):
            lines = self.known_hosts.read_text(errors="replace").splitlines()
            return any(name in line.split(" ", 1)[0].split(",") for line in lines)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBounds:
    """How long a link may be silent. kill_s: the patience with our own program after each signal."""

    connect_s: int = 10
    alive_interval_s: int = 15
    alive_count: int = 4
    transfer_silence_s: int = 90
    probe_s: float = 30.0
    retry_s: float = 5.0
    kill_s: float = 3.0


def ssh_options(login: Login, bounds: LinkBounds) -> tuple[str, ...]:
    """The options of every connection, up to the destination. Of an option given twice, ssh takes the first."""
    known = " ".join(_quoted(path) for path in (login.known_hosts, *login.trusted))
    settings = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes" if login.is_trusted or login.is_known else "accept-new",
        "UserKnownHostsFile": known,
        "GlobalKnownHostsFile": "/dev/null",
        "HashKnownHosts": "no",
        "UpdateHostKeys": "no",
        "ConnectTimeout": bounds.connect_s,
        "ConnectionAttempts": 1,
        "ServerAliveInterval": bounds.alive_interval_s,
        "ServerAliveCountMax": bounds.alive_count,
        "ControlMaster": "no",  # one frozen master blocks all that share it, and holds our pipes open
        "ControlPath": "none",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "RemoteCommand": "none",
        "LogLevel": "ERROR",
    }
    options = ["-T", *(() if login.config is None else ("-F", str(login.config)))]
    for name, value in settings.items():
        options += ["-o", f"{name}={value}"]
    if login.key is not None:
        options += ["-o", "IdentitiesOnly=yes", "-i", str(login.key)]
    if login.port is not None:
        options += ["-p", str(login.port)]
    return tuple(options)


def configuration_command(login: Login) -> tuple[str, ...]:
    """The argument list that prints what ssh's configuration says of the machine; nothing is connected."""
    config = () if login.config is None else ("-F", str(login.config))
    port = () if login.port is None else ("-p", str(login.port))
    return ("ssh", *config, *port, "-G", "--", login.destination)


def ssh_command(login: Login, bounds: LinkBounds, command: str) -> tuple[str, ...]:
    """The argument list that runs a command line on the machine."""
    return ("ssh", *ssh_options(login, bounds), "--", login.destination, command)


def rsync_command(
    login: Login, bounds: LinkBounds, words: Sequence[str], *, source: str, target: str
) -> tuple[str, ...]:
    """The argument list of a transfer; source or target is what `remote_place` gives.

    Owners, devices and links of the machine have no meaning here, so only files and their times are taken.
    """
    return (
        "rsync",
        "--recursive",
        "--times",
        f"--partial-dir={PARTIAL_DIR}",
        f"--timeout={bounds.transfer_silence_s}",
        f"--rsh={shlex.join(('ssh', *ssh_options(login, bounds)))}",
        *words,
        "--",
        source,
        target,
    )


def remote_place(login: Login, path: str) -> str:
    """A path on the machine as rsync writes it."""
    host = f"[{login.host}]" if ":" in login.host else login.host
    return f"{host}:{path}" if login.user is None else f"{login.user}@{host}:{path}"


@dataclass(frozen=True, slots=True)
class Output:
    """What a program of ours wrote and how it ended; rc is None where its time was over."""

    rc: int | None
    stdout: bytes
    stderr: bytes


async def output_of(command: Sequence[str], *, stdin: bytes | None, timeout_s: float, kill_s: float) -> Output:
    """Run a program in a session of its own, and end it when its time is over or we are cancelled.

    Its own session keeps a Ctrl-C in our terminal from a transfer that saves results.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(os.environ),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CloudUsageError(f"{command[0]} is not installed here: install it") from None
    except OSError as error:
        raise CloudTrouble(f"cannot start {command[0]}: {(error.strerror or str(error)).lower()}") from None
    talking = asyncio.ensure_future(process.communicate(stdin))
    try:
        await asyncio.wait({talking}, timeout=timeout_s)
        if not talking.done():
            return Output(None, b"", b"")
        stdout, stderr = talking.result()
        return Output(process.returncode, stdout, stderr)
    finally:
        await asyncio.shield(asyncio.ensure_future(_ended(process, talking, kill_s)))


async def _ended(
    process: asyncio.subprocess.Process, talking: asyncio.Future[tuple[bytes, bytes]], kill_s: float
) -> None:
    """SIGTERM first: rsync then keeps what has come of a file."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if talking.done():
            break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await asyncio.wait({talking}, timeout=kill_s)
    if not talking.done():
        talking.cancel()
    await asyncio.wait({talking})
    if not talking.cancelled():
        talking.exception()


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Ours without what changes a program's words or its language, and without the key, which `SendEnv` could send."""
    kept = {name: value for name, value in ours.items() if not name.startswith(("RSYNC_", "LC_", API_KEY_NAME))}
    return {**kept, "LC_ALL": "C"}


def _quoted(path: Path) -> str:
    """A path in a list of paths of ssh, which splits at blanks and expands %."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text
