"""The end of a rented machine: asked for until the provider says that it is gone, or until nobody can be reached."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cloud.api_key import API_KEY_NAME
from cloud.errors import ApiError, CloudTrouble, NotConfirmed
from cloud.lambda_api import DEFAULT_BASE
from cloud.machine import Machine, Provider

Say = Callable[[str], None]

_T = TypeVar("_T")

_KEY_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBounds:
    """Patience with an ending. confirm_s: in all; poll_s: between looks; again_s: before terminate is asked again.

    longest_again_s: what that grows to; refusals: how often in a row the key may be refused before we give up.
    """

    confirm_s: float = 900.0
    poll_s: float = 5.0
    again_s: float = 15.0
    longest_again_s: float = 60.0
    refusals: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is ours: machines by the ids that our launch was answered with, and those that carry all of our tags.

    appear_until_utc: until then a machine of this launch may be missing from the answers; None where it was seen.
    """

    session: str
    tags: Mapping[str, str]
    ids: tuple[str, ...] = ()
    appear_until_utc: float | None = None
    api_base: str = DEFAULT_BASE

    def owns(self, machine: Machine) -> bool:
        """Whether a machine is ours beyond doubt. Names can be changed by anybody, tags only at launch."""
        return machine.id in self.ids or (
            bool(self.tags) and all(machine.tags.get(key) == value for key, value in self.tags.items())
        )


def rescue_command(claim: Claim, ids: tuple[str, ...]) -> str:
    """One line for a shell that ends what may be left: by our command, and without us where that fails."""
    base = "" if claim.api_base == DEFAULT_BASE else f" --api-base {shlex.quote(claim.api_base)}"
    if not ids:
        return f"slo-bench cloud reap --session {claim.session} --yes{base}"
    url = shlex.quote(f"{claim.api_base}/instance-operations/terminate")
    curl = f"curl -sS -X POST {url} -H \"Authorization: Bearer ${API_KEY_NAME}\" -H 'Content-Type: application/json'"
    bodies = ((each, shlex.quote(f'{{"instance_ids": ["{each}"]}}')) for each in ids)
    return "; ".join(
        f"slo-bench cloud reap --instance {shlex.quote(each)} --yes{base} || {curl} -d {body}" for each, body in bodies
    )


async def to_the_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end whatever cancels us meanwhile; the cancellation goes on after it. Give only work that ends.

    Where the work fails, its error comes first and the cancellation with the next wait: neither is lost.
    """
    task, caller = asyncio.ensure_future(work), asyncio.current_task()
    was_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled and not task.cancelled() and task.exception() is not None and caller is not None:
        caller.cancel()
    result = task.result()
    if was_cancelled:
        raise asyncio.CancelledError
    return result


async def end_machines(
    provider: Provider, claim: Claim, bounds: EndBounds, say: Say, now_utc: Callable[[], float] = time.time
) -> tuple[str, ...]:
    """End every machine of a claim; the ids that are confirmed gone. Raises NotConfirmed with the rescue command."""
    return await _Ending(provider, claim, bounds, say, now_utc).confirmed()


@dataclass(slots=True)
class _Ending:
    """One attempt. living: ids that are ours and not known to be gone; seen: those that an answer has named."""

    provider: Provider
    claim: Claim
    bounds: EndBounds
    say: Say
    now_utc: Callable[[], float]
    living: dict[str, None] = field(init=False)
    gone: dict[str, None] = field(init=False, default_factory=dict)
    seen: set[str] = field(init=False, default_factory=set)
    refusals: int = field(init=False, default=0)
    trouble: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.living = dict.fromkeys(self.claim.ids)

    async def confirmed(self) -> tuple[str, ...]:
        loop = asyncio.get_running_loop()
        deadline_s, ask_s, pause_s = loop.time() + self.bounds.confirm_s, loop.time(), self.bounds.again_s
        while loop.time() < deadline_s and self.refusals < self.bounds.refusals:
            try:
                async with asyncio.timeout_at(deadline_s):
                    if self.living and loop.time() >= ask_s:
                        await self._ask()
                        ask_s, pause_s = loop.time() + pause_s, min(2 * pause_s, self.bounds.longest_again_s)
                    if await self._is_over():
                        return tuple(self.gone)
            except TimeoutError:
                self.trouble = self.trouble or "the API did not answer in time"
                break
            await asyncio.sleep(min(self.bounds.poll_s, max(deadline_s - loop.time(), 0.0)))
        raise self._not_confirmed()

    def _not_confirmed(self) -> NotConfirmed:
        ids = tuple(self.living) or tuple(self.gone)  # gone by its id, while no list could be read that proves it
        what = f"machine {', '.join(ids)} is" if len(ids) == 1 else f"{len(ids) or 'any'} machines are"
        why = f" ({self.trouble})" if self.trouble else ""
        return NotConfirmed(
            f"nobody confirmed that {what} gone, so it may still be billed{why}; end it with the command below",
            rescue=rescue_command(self.claim, ids),
        )

    async def _ask(self) -> None:
        """One by one: where one of several is refused, the others may be refused with it."""
        for each in tuple(self.living):
            try:
                self.seen.update(await self.provider.terminate((each,)))
            except CloudTrouble as error:  # one that is on its way out already may answer so too: the looks decide
                self._tell(f"terminate: {error}", error)

    async def _is_over(self) -> bool:
        """Whether every id is gone and a list that could be read has nothing of ours."""
        try:
            for each in tuple(self.living):
                machine = await self.provider.machine(each)
                if machine is not None:
                    self.seen.add(each)
                if machine is not None and machine.is_alive:
                    continue
                if each in self.seen or not self._may_appear():
                    self.living.pop(each)
                    self.gone[each] = None
            for machine in await self.provider.machines():
                if self.claim.owns(machine) and machine.is_alive:
                    self.seen.add(machine.id)
                    self.gone.pop(machine.id, None)
                    self.living[machine.id] = None
        except CloudTrouble as error:
            self._tell(str(error), error)
            return False
        self.refusals, self.trouble = 0, "still there" if self.living else ""
        return not self.living and (bool(self.gone) or not self._may_appear())

    def _may_appear(self) -> bool:
        until_utc = self.claim.appear_until_utc
        return until_utc is not None and self.now_utc() < until_utc

    def _tell(self, text: str, error: CloudTrouble) -> None:
        if isinstance(error, ApiError) and error.status in _KEY_REFUSED:
            self.refusals += 1
        if text != self.trouble:
            self.trouble = text
            self.say(text)
