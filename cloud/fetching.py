"""What a job left comes home: its log as it grows, its results with their checksums."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from cloud.ending import Say
from cloud.errors import CloudTrouble, LinkLost
from cloud.jobs import Job, Jobs, JobState, Look
from cloud.session_file import JobRecord, SessionFolder

Drain = Callable[[str], Awaitable[None]]

_HIDDEN = "[secret]"
_STARS = "*"


def without(secrets: Iterable[SecretStr]) -> Callable[[str], str]:
    """Cuts secrets out of a text."""
    words = sorted((word for each in secrets if (word := each.get_secret_value())), key=len, reverse=True)

    def cut(text: str) -> str:
        for word in words:
            text = text.replace(word, _HIDDEN)
            if _STARS in text:  # its end was overwritten on the machine between two looks at a line
                for length in range(len(word) - 1, 0, -1):
                    text = text.replace(word[:length] + "*" * (len(word) - length), _HIDDEN)
        return text

    return cut


class LogCopy:
    """A job's log here. Only whole lines are written, so that no secret stands in two halves. last: the last line."""

    def __init__(self, path: Path, cut: Callable[[str], str]) -> None:
        self._path = path
        self._cut = cut
        self._rest = b""
        self.offset = 0
        self.last = ""
        path.unlink(missing_ok=True)  # of an earlier process: read again from the start

    def add(self, more: bytes) -> None:
        """What came from `offset` on."""
        self.offset += len(more)
        lines, end, self._rest = (self._rest + more).rpartition(b"\n")
        self._write(lines + end)

    def close(self) -> None:
        """The last line may have no end."""
        self._write(self._rest)
        self._rest = b""

    def _write(self, text: bytes) -> None:
        if text:
            readable = self._cut(text.decode(errors="replace"))
            self.last = ([line.strip() for line in readable.splitlines() if line.strip()] or [self.last])[-1]
            try:
                with self._path.open("a", encoding="utf-8") as log:
                    log.write(readable)
            except OSError as error:
                raise CloudTrouble(f"cannot write {self._path}: {(error.strerror or str(error)).lower()}") from error


async def bring_home(
    folder: SessionFolder, jobs: Jobs, job: Job, *, timeout_s: float, tries: int = 1, pause_s: float = 0.0
) -> bool:
    """Fetch a job's results; whether they are here, whole. LinkLost is tried again, everything else is told."""
    for attempt in range(1, tries + 1):
        try:
            if await jobs.fetch(job, folder.path / job.name, timeout_s):
                return True
        except LinkLost as error:
            folder.log(f"fetching {job.name}: {error}")
            if attempt == tries:
                raise
        if attempt < tries:
            await asyncio.sleep(pause_s)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFetch:
    """Bounds of the fetch before a machine ends. limit_s: in all; pause_s: before a lost link is tried again."""

    limit_s: float
    stop_grace_s: float
    pause_s: float


async def last_fetch(
    folder: SessionFolder, jobs: Jobs, bounds: LastFetch, say: Say, drain: Drain | None = None
) -> None:
    """Whatever can be saved in time, finished results first; never raises for the machine, the link or the disk.

    drain: brings the rest of a job's log.
    """
    left = [each for each in folder.record.jobs if each.state in ("running", "ended") and not each.is_home]
    left.sort(key=lambda each: each.state == "running")
    if not left:
        return
    say(f"fetching what is not home yet: {', '.join(each.name for each in left)}")
    try:
        async with asyncio.timeout(bounds.limit_s):
            for each in left:
                await _saved(folder, jobs, each, bounds, say=say, drain=drain)
    except TimeoutError:
        say(f"the last fetch was not done within {bounds.limit_s:g} s")


async def _saved(
    folder: SessionFolder, jobs: Jobs, each: JobRecord, bounds: LastFetch, *, say: Say, drain: Drain | None
) -> None:
    job = Job(name=each.name, command=("true",), limit_s=each.limit_s, results=each.results)
    while True:
        try:
            if each.state == "running":
                await jobs.stop(job.name, bounds.stop_grace_s)
            if drain is not None:
                await drain(job.name)
            is_home = await jobs.fetch(job, folder.path / job.name, bounds.limit_s)
            seen = await jobs.look(job.name)
            folder.change_job(job.name, **ended_fields(seen, is_home=is_home))
        except LinkLost as error:
            folder.log(f"last fetch of {job.name}: {error}")
            await asyncio.sleep(bounds.pause_s)
            continue
        except (CloudTrouble, OSError) as error:
            say(f"last fetch of {job.name}: {error}")
        return


def ended_fields(seen: Look, *, is_home: bool) -> dict[str, object]:
    """What is written down of a job that is over."""
    if seen.completion is None:
        reason = "it was killed, or the machine was" if seen.state is JobState.DEAD else f"it is {seen.state.value}"
        return {"state": "ended", "rc": None, "reason": reason, "is_home": False}
    done = seen.completion
    why = done.reason or (None if done.rc == 0 else f"it ended with {done.rc}")
    if why is None and not is_home:
        why = "its results did not come home whole"
    return {"state": "ended", "rc": done.rc, "reason": why, "is_home": is_home}
