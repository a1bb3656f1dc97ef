"""A machine that the user owns: nothing is launched, nothing is terminated, all else is the same."""

from __future__ import annotations

import time
from collections.abc import Mapping

from cloud.ending import Say
from cloud.errors import CloudTrouble, CloudUsageError
from cloud.remote import LinkBounds, Login, Remote
from cloud.session_file import LoginFacts, RentalFacts, SessionFolder, State

_DEFAULT_LINK = LinkBounds()


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
        """Wait until it answers."""
        login = folder.login
        if login is None:
            raise CloudUsageError("a machine of your own needs its address: --host user@machine")
        await Remote(login, self._link).wait_until_it_answers(time.monotonic() + self._answer_s)
        say(f"{login.destination} answers")
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
