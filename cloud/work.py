"""What a session does on its machine: checks, uploads, set-up, then run after run, each on its own there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from cloud.budget import cost_usd
from cloud.ending import Say
from cloud.errors import CloudTrouble, LinkLost
from cloud.fetching import LogCopy, bring_home, ended_fields, without
from cloud.jobs import Job, Jobs, JobState, Look
from cloud.kit import Kit, SessionBounds
from cloud.remote import LinkBounds, Login, Remote
from cloud.session_file import SessionFolder, State

_T = TypeVar("_T")

_GIB = 1 << 30
_LONGEST_LINE = 120


class Work:
    """The work of one session. left_s: how much time for work there is; jobs: None before the machine was reached."""

    def __init__(
        self,
        folder: SessionFolder,
        kit: Kit,
        bounds: SessionBounds,
        link: LinkBounds,
        *,
        left_s: Callable[[], float],
        spent_s: Callable[[], float],
        say: Say,
    ) -> None:
        self.jobs: Jobs | None = None
        self._folder = folder
        self._kit = kit
        self._bounds = bounds
        self._link = link
        self._left_s = left_s
        self._spent_s = spent_s
        self._say = say
        self._cut = without(kit.secrets)
        self._logs: dict[str, LogCopy] = {}

    def reach(self, login: Login) -> tuple[Remote, Jobs]:
        """Where the jobs are; nothing is sent."""
        remote = Remote(login, self._link)
        self.jobs = Jobs(remote, self._folder.record.jobs_folder, self._bounds.jobs, self._kit.secrets)
        return remote, self.jobs

    async def do(self, login: Login) -> None:
        """All of it. Raises CloudTrouble where the session cannot go on; a failed run is no reason for that."""
        remote, jobs = self.reach(login)
        self._folder.change(state=State.WORKING)
        if not self._folder.record.is_set_up:
            await self._check(remote)
            for local, there in self._kit.uploads:
                self._say(f"uploading {local.name} to {there}")
                await self._patiently(partial(remote.push, local, there, self._bounds.upload_s))
        for job in self._kit.setup:
            if not await self._is_done(jobs, job):
                raise CloudTrouble(f"{job.name}: {self._folder.job(job.name).reason}; nothing was measured")
        self._folder.change(is_set_up=True)
        for job in self._kit.runs:
            if not await self._is_done(jobs, job) and self._folder.record.fail_fast:
                raise CloudTrouble(
                    f"{job.name}: {self._folder.job(job.name).reason}; stopped there, as --fail-fast says"
                )

    async def drain(self, name: str) -> None:
        """Bring the rest of a job's log."""
        if self.jobs is not None:
            log = self._log(name)
            while more := await self.jobs.log_from(name, log.offset):
                log.add(more)
            log.close()

    async def _check(self, remote: Remote) -> None:
        """The driver first: a wrong one is found out within a minute of cost."""
        if (least := self._kit.checks.min_driver) is not None:
            command = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
            ran = await self._patiently(lambda: remote.run(command, timeout_s=self._bounds.command_s))
            said = ((ran.stdout if ran.rc == 0 else ran.stdout + ran.stderr).strip().splitlines() or ["no word came"])[
                0
            ]
            if ran.rc != 0:
                advice = "; it needs a reboot" if "version mismatch" in said else ""
                raise CloudTrouble(f"nvidia-smi on the machine failed: {said}{advice}")
            if _numbers(said) < _numbers(least):
                raise CloudTrouble(
                    f"the machine's driver is {said}, and {least} is needed: choose another image family"
                )
            self._say(f"driver {said}")
        if (least_gib := self._kit.checks.min_free_gib) is not None:
            command = 'df -Pk "$HOME" | tail -n 1'
            ran = await self._patiently(lambda: remote.run(command, timeout_s=self._bounds.command_s))
            fields = ran.stdout.split()
            free_gib = int(fields[3]) * 1024 / _GIB if len(fields) > 3 and fields[3].isdigit() else 0.0  # noqa: PLR2004
            if free_gib < least_gib:
                raise CloudTrouble(f"the machine has {free_gib:.1f} GiB free, and {least_gib:g} GiB are needed")

    async def _is_done(self, jobs: Jobs, job: Job) -> bool:
        """Run a job to its end, here or in an earlier process, and bring its results; whether all of that went well."""
        known = self._folder.job(job.name)
        if known.state != "ended" or (known.rc is not None and not known.is_home):
            seen = await self._ended(jobs, job)
            is_home = seen.completion is not None and (job.results is None or await self._brought(jobs, job))
            self._folder.change_job(job.name, **ended_fields(seen, is_home=is_home))
            if seen.completion is None and job.results is not None:
                await self._brought(jobs, job)  # what a dead job left may say why
            known = self._folder.job(job.name)
            last = self._logs[job.name].last if job.name in self._logs else ""
            if known.rc not in (0, None) and last:
                self._folder.change_job(job.name, reason=f"{known.reason}: {last}"[:500])
            self._say(f"{job.name}: {self._folder.job(job.name).reason or 'done, results are home'}")
        return self._folder.job(job.name).reason is None

    async def _ended(self, jobs: Jobs, job: Job) -> Look:
        limit_s = max(min(job.limit_s, self._left_s()), 1.0)
        self._folder.change_job(job.name, state="running")
        is_new = await self._patiently(lambda: jobs.start(replace(job, limit_s=limit_s)))
        self._say(f"{job.name} {'runs' if is_new else 'was started before: going on with it'}")
        loop = asyncio.get_running_loop()
        sync_s, say_s = loop.time() + self._bounds.sync_s, loop.time() + self._bounds.say_s
        log = self._log(job.name)
        while True:
            seen = await self._patiently(lambda: jobs.look(job.name, log_offset=log.offset))
            log.add(seen.log)
            if seen.state is not JobState.RUNNING:
                if len(seen.log) >= self._bounds.jobs.log_bytes:
                    await self._patiently(lambda: self.drain(job.name))
                log.close()
                return seen
            if loop.time() >= say_s:
                self._say(self._progress(job.name, log.last))
                say_s = loop.time() + self._bounds.say_s
            if loop.time() >= sync_s:
                await self._partial(jobs, job)
                sync_s = loop.time() + self._bounds.sync_s
            await asyncio.sleep(self._bounds.poll_s)

    def _progress(self, name: str, last: str) -> str:
        spent_s, price = self._spent_s(), self._folder.record.rental.price_cents_per_hour
        cost = f", ${cost_usd(price, spent_s):.2f} so far" if price else ""
        return f"{spent_s / 60:.1f} min{cost}: {name}: {last[:_LONGEST_LINE] or 'no word yet'}"

    async def _partial(self, jobs: Jobs, job: Job) -> None:
        """What there is so far; the poll after it finds out what is wrong, if anything is."""
        try:
            await jobs.fetch(job, self._folder.path / job.name, self._bounds.fetch_s)
        except LinkLost as error:
            self._folder.log(f"partial results of {job.name}: {error}")

    async def _brought(self, jobs: Jobs, job: Job) -> bool:
        bounds = self._bounds
        return await self._patiently(
            lambda: bring_home(
                self._folder, jobs, job, timeout_s=bounds.fetch_s, tries=bounds.fetch_tries, pause_s=bounds.retry_s
            )
        )

    def _log(self, name: str) -> LogCopy:
        if name not in self._logs:
            folder = self._folder.path / "logs"
            folder.mkdir(exist_ok=True)
            self._logs[name] = LogCopy(folder / f"{name}.log", self._cut)
        return self._logs[name]

    async def _patiently(self, what: Callable[[], Awaitable[_T]]) -> _T:
        """Try again while the link is lost: the machine works on. Raises CloudTrouble when patience is over."""
        loop = asyncio.get_running_loop()
        lost_s: float | None = None
        while True:
            try:
                result = await what()
            except LinkLost as error:
                if lost_s is None:
                    lost_s = loop.time()
                    self._say(f"{error}; trying again for {self._bounds.patience_s:g} s, the machine works on")
                self._folder.log(str(error))
                if loop.time() - lost_s >= self._bounds.patience_s:
                    raise CloudTrouble(f"no answer over SSH for {self._bounds.patience_s:g} s: {error}") from None
                await asyncio.sleep(self._bounds.retry_s)
            else:
                if lost_s is not None:
                    self._say(f"the link is back after {loop.time() - lost_s:.0f} s")
                return result


def _numbers(version: str) -> tuple[int, ...]:
    """A version by its numbers: as text, 580.105 would come before 580.95."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
