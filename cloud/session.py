"""A session from its first file to the confirmed end of its machine, and the same again after a death of ours.

Every way out goes through one `finally`: a bounded last fetch, then the end of the machine. SIGINT, SIGTERM and SIGHUP
arrive as a cancellation of the caller's task; what comes while that is being done waits until it is done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cloud.arming import arm
from cloud.budget import Budget, cost_usd
from cloud.ending import Say, to_the_end
from cloud.errors import CloudError, CloudTrouble, CloudUsageError
from cloud.fetching import LastFetch, last_fetch, without
from cloud.kit import Checks, Kit, RunOutcome, SessionBounds, SessionOutcome, SessionPlan
from cloud.preflight import check_labels
from cloud.rental import Rental
from cloud.session_file import (
    EXPIRES_TAG,
    SESSION_TAG,
    JobRecord,
    SessionFolder,
    SessionRecord,
    State,
    new_session_name,
)
from cloud.work import Work

__all__ = [
    "Checks",
    "Kit",
    "RunOutcome",
    "SessionBounds",
    "SessionOutcome",
    "SessionPlan",
    "budget_of",
    "jobs_folder",
    "new_session_name",
    "resume_session",
    "run_session",
]

_DEFAULT_BOUNDS = SessionBounds()


def budget_of(plan: SessionPlan, price_cents_per_hour: int) -> Budget:
    """The caps of a plan at a price. Raises CloudUsageError where they leave no time for work."""
    return Budget(
        price_cents_per_hour=price_cents_per_hour,
        max_minutes=plan.max_minutes,
        max_usd=plan.max_usd,
        reserve_s=plan.reserve_s,
    )


def jobs_folder(name: str) -> str:
    """Where the jobs of a session are kept on its machine."""
    return f"~/slo-bench/{name}/jobs"


async def run_session(plan: SessionPlan, kit: Kit, rental: Rental, say: Say) -> SessionOutcome:
    """Do a kit on a new machine and end it.

    Raises CloudUsageError before anything is done, NotConfirmed where the machine may be left. All other trouble is in
    the outcome. Cancelled, it ends the machine first.
    """
    budget = budget_of(plan, rental.facts.price_cents_per_hour)
    started_utc = time.time()
    deadline_utc = started_utc + budget.whole_s
    is_rented = rental.watchdog_environment is not None
    tags = {SESSION_TAG: plan.name, EXPIRES_TAG: str(int(deadline_utc))} if is_rented else {}
    check_labels(plan.name, tuple(tags.items()))
    record = SessionRecord(
        name=plan.name,
        state=State.PREPARING,
        rental=rental.facts,
        tags=tags,
        max_minutes=plan.max_minutes,
        max_usd=plan.max_usd,
        reserve_s=plan.reserve_s,
        fail_fast=plan.fail_fast,
        started_utc=started_utc,
        deadline_utc=deadline_utc,
        jobs_folder=jobs_folder(plan.name),
        jobs=tuple(
            JobRecord(name=job.name, kind=kind, results=job.results, limit_s=job.limit_s)
            for kind, jobs in (("setup", kit.setup), ("run", kit.runs))
            for job in jobs
        ),
        request=dict(plan.request),
    )
    folder = SessionFolder.create(plan.home, record)
    with folder.held():
        return await _Session(folder, kit, rental, plan.bounds, say, is_new=True).outcome()


async def resume_session(
    home: Path, kit: Kit, rental: Rental, say: Say, bounds: SessionBounds = _DEFAULT_BOUNDS
) -> SessionOutcome:
    """Go on with a session whose process died: its deadline stays, running jobs are found again, the rest is started.

    The watchdog gives a grace period for that (`WatchdogFacts.grace_s`); after it the machine is gone. kit: the same as
    at first. Raises as `run_session`.
    """
    folder = SessionFolder.open(home)
    with folder.held():
        record = folder.reread()
        if record.is_over:
            raise CloudUsageError(over(record))
        given = [job.name for job in (*kit.setup, *kit.runs)]
        if given != [job.name for job in record.jobs]:
            raise CloudUsageError(
                f"{record.name} has other jobs than those given: {', '.join(j.name for j in record.jobs)}"
            )
        return await _Session(folder, kit, rental, bounds, say, is_new=False).outcome()


def over(record: SessionRecord) -> str:
    """That nothing is left to go on with, in words."""
    rented = ": its machine is not there any more" if record.rental.api is not None else ""
    return f"{record.name} is over ({record.state.value}){rented}"


class _Session:
    """One process of a session."""

    def __init__(
        self, folder: SessionFolder, kit: Kit, rental: Rental, bounds: SessionBounds, say: Say, *, is_new: bool
    ) -> None:
        cut = without(kit.secrets)

        def said(text: str) -> None:
            line = cut(text)
            folder.log(line)
            with suppress(OSError):  # a terminal that was closed keeps nothing from its end
                say(line)

        self._folder = folder
        self._rental = rental
        self._bounds = bounds
        self._say: Say = said
        self._is_new = is_new
        self._trouble: str | None = None
        self._work = Work(folder, kit, bounds, rental.link, left_s=self._left_s, spent_s=self._spent_s, say=said)

    async def outcome(self) -> SessionOutcome:
        beating = asyncio.ensure_future(self._beat())
        try:
            try:
                if (environment := self._rental.watchdog_environment) is not None and not self._folder.is_watched:
                    await arm(self._folder, environment, self._bounds.arm_s)
                await self._guarded()
            except (CloudError, OSError) as error:
                self._trouble = str(error)
                self._say(self._trouble)
            except asyncio.CancelledError:
                self._trouble = "stopped by a signal"
                self._say("stopping: results come home, then the machine ends")
                raise
            finally:
                await to_the_end(self._end())
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating
        return self._told()

    async def _guarded(self) -> None:
        """The work, until it is done, or the guard says that it must end."""
        tasks = [asyncio.create_task(work) for work in (self._whole(), self._guard(), self._look())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await to_the_end(_cancelled(tasks))
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _whole(self) -> None:
        rental, folder = self._rental, self._folder
        is_rented = rental.watchdog_environment is not None
        if self._is_new or (is_rented and not folder.record.may_have_machines):
            login = await rental.acquire(folder, self._say)
        else:
            if (known := folder.login) is not None:
                self._work.reach(known)
            if folder.record.state in (State.ENDING, State.UNCONFIRMED):
                return
            login = await rental.regain(folder, self._say)
        await self._work.do(login)

    async def _guard(self) -> None:
        """Returns never; raises what must end the work: the deadline, no watchdog."""
        while True:
            if self._left_s() <= 0:
                raise CloudTrouble(
                    f"the time for work is over ({self._spent_s() / 60:.1f} min, ${self._usd():.2f}): ending here"
                )
            if (environment := self._rental.watchdog_environment) is not None and not self._folder.is_watched:
                self._say("the watchdog is gone: starting another")
                await arm(self._folder, environment, self._bounds.arm_s)
            await asyncio.sleep(min(self._bounds.beat_s, max(self._left_s(), 0.01)))

    async def _look(self) -> None:
        """Returns never; raises when the provider says that the machine is lost."""
        while True:
            await asyncio.sleep(self._bounds.status_s)
            is_working = self._folder.record.state is State.WORKING
            if is_working and (why := await self._rental.trouble(self._folder)) is not None:
                raise CloudTrouble(why)

    async def _end(self) -> None:
        """Every way out. Whatever happens to the fetch, the machine ends."""
        try:
            if self._work.jobs is not None:
                bounds = LastFetch(
                    limit_s=self._bounds.last_fetch_s,
                    stop_grace_s=self._bounds.stop_grace_s,
                    pause_s=self._bounds.retry_s,
                )
                await last_fetch(self._folder, self._work.jobs, bounds, self._say, self._work.drain)
        finally:
            try:
                self._write_down()
            finally:
                await self._rental.release(self._folder, self._say)

    def _write_down(self) -> None:
        """What the runs came to."""
        jobs = tuple(
            each.model_copy(update={"state": "skipped", "reason": f"not started: {self._trouble or 'no time'}"})
            if each.state == "waiting"
            else each
            for each in self._folder.record.jobs
        )
        try:
            self._folder.change(jobs=jobs, trouble=self._trouble)
        except CloudTrouble as error:
            self._say(str(error))

    async def _beat(self) -> None:
        while True:
            self._folder.beat()
            await asyncio.sleep(self._bounds.beat_s)

    def _told(self) -> SessionOutcome:
        record = self._folder.record
        outcome = SessionOutcome(
            runs=tuple(
                RunOutcome(each.name, each.rc, each.reason, each.is_home) for each in record.jobs if each.kind == "run"
            ),
            trouble=self._trouble,
            is_confirmed_gone=record.state is State.GONE,
            minutes=self._spent_s() / 60,
            usd=self._usd(),
        )
        price = f", about ${outcome.usd:.2f}; the provider's invoice is authoritative"
        self._say(f"{record.name}: {outcome.minutes:.1f} min{price if record.rental.api is not None else ''}")
        return outcome

    def _spent_s(self) -> float:
        record = self._folder.record
        return (time.time() if record.ended_utc is None else record.ended_utc) - record.started_utc

    def _usd(self) -> float:
        return cost_usd(self._folder.record.rental.price_cents_per_hour, self._spent_s())

    def _left_s(self) -> float:
        return self._folder.record.deadline_utc - self._folder.record.reserve_s - time.time()


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
