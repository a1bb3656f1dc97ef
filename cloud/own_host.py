"""A machine that the user owns: nothing is launched, nothing is terminated, all else is the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cloud.ending import Say
from cloud.errors import CloudTrouble, CloudUsageError, HostKeyChanged
from cloud.remote import LinkBounds, Login, Remote
from cloud.session_file import LoginFacts, RentalFacts, SessionFolder, State
from cloud.ssh import SSH_PORT, configuration_command, output_of

_DEFAULT_LINK = LinkBounds()
_REVOKED = "@revoked"


class OwnHost:
    """`--host user@machine`. facts: as `own_host_facts` makes them; answer_s: how long it may take to answer."""

    def __init__(self, facts: RentalFacts, *, answer_s: float = 120.0, link: LinkBounds = _DEFAULT_LINK) -> None:
        self._facts = facts
        self._answer_s = answer_s
        self._link = link

    @property
    def facts(self) -> RentalFacts:
        """What is written down of it."""
        return self._facts

    @property
    def link(self) -> LinkBounds:
        """How long its links may be silent."""
        return self._link

    @property
    def watchdog_environment(self) -> Mapping[str, str] | None:
        """None: there is nothing to end, and a job that goes on without us is what its owner wants."""
        return None

    async def acquire(self, folder: SessionFolder, say: Say) -> Login:
        """Wait until it answers. What the user's own files of known hosts say of its key is binding."""
        login = folder.login
        if login is None:
            raise CloudUsageError("a machine of your own needs its address: --host user@machine")
        login = await with_known_hosts(login, self._link)
        is_new = not (login.is_trusted or login.is_known)
        facts = folder.record.rental.login.model_copy(update={"trusted": login.trusted, "is_trusted": login.is_trusted})
        folder.change(rental=folder.record.rental.model_copy(update={"login": facts}))
        try:
            await Remote(login, self._link).wait_until_it_answers(time.monotonic() + self._answer_s)
        except HostKeyChanged:
            if not login.is_trusted:
                raise
            raise HostKeyChanged(
                f"{login.destination} shows another host key than your known_hosts has "
                f"({', '.join(map(str, login.trusted))}): nothing is sent to it; find out what answers there"
            ) from None
        say(f"{login.destination} answers{'; its host key was not known here before' if is_new else ''}")
        return login

    async def regain(self, folder: SessionFolder, say: Say) -> Login:
        """As at first."""
        return await self.acquire(folder, say)

    async def trouble(self, folder: SessionFolder) -> str | None:  # noqa: ARG002 -- nobody could tell
        """Nobody but SSH knows of it."""
        return None

    async def release(self, folder: SessionFolder, say: Say) -> None:
        """Write down that the session is over; the machine stays as it is."""
        try:
            folder.change(state=State.OVER, ended_utc=time.time())
        except CloudTrouble as error:
            say(str(error))


def own_host_facts(place: str, login: LoginFacts | None = None) -> RentalFacts:
    """What is known of `user@machine`, or of a name that the ssh configuration has; login: port, key and config."""
    user, at, host = place.rpartition("@")
    if not host or (at and not user):
        raise CloudUsageError(f"{place!r} is no machine: --host user@machine")
    given = LoginFacts(user=None, port=None) if login is None else login
    return RentalFacts(login=given.model_copy(update={"user": user or None, "host": host}))


async def with_known_hosts(login: Login, bounds: LinkBounds) -> Login:
    """The login with the user's and the computer's files of known hosts, as ssh's configuration names them.

    Raises CloudTrouble where ssh cannot read its configuration.
    """
    told = await _configured(login, bounds)
    named = f"{told.get('userknownhostsfile', '')} {told.get('globalknownhostsfile', '')}"
    files = _files(named.split())
    host, port = told.get("hostname", login.host), told.get("port", str(SSH_PORT))
    name = told.get("hostkeyalias") or (host if port == str(SSH_PORT) else f"[{host}]:{port}")
    knowing = [path for path in files if await _knows(path, name, bounds)]
    return replace(login, trusted=files, is_trusted=bool(knowing))


async def _configured(login: Login, bounds: LinkBounds) -> dict[str, str]:
    output = await output_of(configuration_command(login), stdin=None, timeout_s=bounds.probe_s, kill_s=bounds.kill_s)
    if output.rc != 0:
        lines = output.stderr.decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "no word came")
        raise CloudTrouble(f"ssh cannot read its configuration for {login.destination}: {said}")
    pairs = (line.partition(" ") for line in output.stdout.decode(errors="replace").splitlines())
    return {name: value for name, _, value in pairs}


async def _knows(path: Path, name: str, bounds: LinkBounds) -> bool:
    """Whether a file has a key of a machine, hashed or not; one that is revoked is none."""
    command = ("ssh-keygen", "-F", name, "-f", str(path))
    output = await output_of(command, stdin=None, timeout_s=bounds.probe_s, kill_s=bounds.kill_s)
    lines = output.stdout.decode(errors="replace").splitlines()
    return any(line and not line.startswith(("#", _REVOKED)) for line in lines)


def _files(words: Sequence[str]) -> tuple[Path, ...]:
    """The files of a list that are there. ssh prints it without quotes, so several words may be one path."""
    found: list[Path] = []
    while words:
        lengths = range(len(words), 0, -1)
        length = next((each for each in lengths if Path(" ".join(words[:each])).is_file()), 0)
        found += [Path(" ".join(words[:length]))] if length else []
        words = words[length or 1 :]
    return tuple(found)
