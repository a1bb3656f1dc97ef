"""`python -m cloud.watchdog FOLDER`: ends a session's machine when the session's process cannot.

It acts when that process is dead, when its heartbeat has stood still, or when the session's deadline is over. A dead
process has a grace period (`WatchdogFacts.grace_s`, 120 s unless told), in which `slo-bench cloud resume` may take the
session over; where the end had begun already there is none. Before it ends the machine it makes one bounded fetch, so
that runs that were finished are at home. It does not help against the loss of this computer's power or network: then
`slo-bench cloud reap` from elsewhere does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from cloud.api_key import read_api_key
from cloud.arming import ARMED
from cloud.ending import EndBounds
from cloud.errors import CloudError, CloudUsageError, NotConfirmed
from cloud.fetching import LastFetch, last_fetch
from cloud.jobs import Jobs
from cloud.lambda_api import LambdaApi
from cloud.pacing import Pacing
from cloud.remote import Remote
from cloud.rental import release_machines
from cloud.session_file import ApiFacts, SessionFolder, State, WatchdogFacts

_LOG = "watchdog.log"
_STOP_GRACE_S = 10.0


class Watchdog:
    """What watches one session. Whether the heartbeat stands still is counted while we run: a laptop may sleep."""

    def __init__(self, folder: SessionFolder, environ: Mapping[str, str]) -> None:
        record = folder.record
        if record.rental.api is None:
            raise CloudUsageError(f"{record.name} has no rented machine to watch")
        self._folder = folder
        self._api: ApiFacts = record.rental.api
        self._facts: WatchdogFacts = record.rental.watchdog
        self._key = read_api_key(environ)
        self._beaten_s = self._owned_s = time.monotonic()
        self._beat = 0.0

    async def watch(self) -> None:
        """Until the machine is gone, or for persist_s after the first attempt to end it."""
        first_s: float | None = None
        while True:
            record = self._folder.reread()
            if record.is_over:
                return
            if (why := self._why()) is not None:
                first_s = time.monotonic() if first_s is None else first_s
                if await self._act(why):
                    return
                if time.monotonic() - first_s > self._facts.persist_s:
                    self._say("giving up")
                    return
                await asyncio.sleep(self._facts.again_s)
            else:
                await asyncio.sleep(self._facts.interval_s)

    def _why(self) -> str | None:
        """Why the machine must end now; None while all is well."""
        now_s, record = time.monotonic(), self._folder.record
        if time.time() >= record.deadline_utc:
            return "the deadline is over"
        if not self._folder.is_owned:
            grace_s = 0.0 if record.state in (State.ENDING, State.UNCONFIRMED) else self._facts.grace_s
            if now_s - self._owned_s >= grace_s:
                return f"the session's process is dead, and none has resumed it for {grace_s:g} s"
            return None
        self._owned_s = now_s
        beat = self._folder.heartbeat.stat().st_mtime
        if beat != self._beat:
            self._beat, self._beaten_s = beat, now_s
        if now_s - self._beaten_s >= self._facts.stale_s:
            return f"the session's process gave no sign for {self._facts.stale_s:g} s"
        return None

    async def _act(self, why: str) -> bool:
        """Fetch and end; whether the machine is confirmed gone, or a process has come back for it."""
        with ExitStack() as stack:
            if not self._folder.is_owned:
                try:
                    stack.enter_context(self._folder.held())
                except CloudUsageError:
                    return False  # resumed at this moment
                if self._folder.reread().is_over:
                    return True
            self._say(f"{why}: ending the machine")
            try:
                await self._fetch()
            finally:
                is_gone = await self._released()
        return is_gone

    async def _fetch(self) -> None:
        login = self._folder.login
        if login is None or self._folder.record.state is State.UNCONFIRMED:
            return
        jobs = Jobs(Remote(login), self._folder.record.jobs_folder)
        bounds = LastFetch(limit_s=self._facts.last_fetch_s, stop_grace_s=_STOP_GRACE_S, pause_s=self._facts.poll_s)
        try:
            await last_fetch(self._folder, jobs, bounds, self._say)
        except CloudError as error:
            self._say(f"last fetch: {error}")

    async def _released(self) -> bool:
        pacing = Pacing(self._api.calls_per_s, self._api.launch_every_s, lock_file=self._api.lock_file)
        bounds = EndBounds(confirm_s=self._facts.confirm_s, poll_s=self._facts.poll_s, again_s=3 * self._facts.poll_s)
        async with LambdaApi(
            self._key, pacing=pacing, base_url=self._api.base_url, timeout_s=self._api.timeout_s
        ) as provider:
            try:
                await release_machines(provider, self._folder, bounds, self._say)
            except NotConfirmed as error:
                self._say(f"{error}\n{error.rescue}")
                return False
        return True

    def _say(self, text: str) -> None:
        self._folder.log(text, _LOG)


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Leave whoever started us, take the watchdog's lock, say that we watch, and watch."""
    if len(arguments) != 1:
        sys.stderr.write("python -m cloud.watchdog FOLDER\n")
        return 2
    try:
        folder = SessionFolder.open(Path(arguments[0]))
        watchdog = Watchdog(folder, environ)
    except CloudError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if os.fork():
        return 0
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    try:
        with folder.watched():
            sys.stdout.write(f"{ARMED}\n")
            sys.stdout.flush()
            _leave(folder)
            folder.log(f"watching {folder.record.name} (process {os.getpid()})", _LOG)
            asyncio.run(watchdog.watch())
            folder.log("done", _LOG)
    except CloudError as error:
        sys.stderr.write(f"{error}\n")
        return 4
    return 0


def _leave(folder: SessionFolder) -> None:
    """Let go of the pipe to whoever started us; what Python itself has to say goes to our log."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(folder.path / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (null, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
