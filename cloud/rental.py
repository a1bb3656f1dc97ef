"""A machine for a session: ordered, launched once, waited for, and ended."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import SecretStr

from cloud.api_key import API_KEY_NAME
from cloud.ending import Claim, EndBounds, Say, end_machines, to_the_end
from cloud.errors import Ambiguous, ApiError, CloudTrouble, CloudUsageError, NotConfirmed
from cloud.machine import Machine, Order, Provider
from cloud.remote import LinkBounds, Login, Remote
from cloud.session_file import RentalFacts, SessionFolder, SessionRecord, State

_NO_CAPACITY = "instance-operations/launch/insufficient-capacity"
_LOST = ("unhealthy", "preempted", "terminating", "terminated")
_REFUSED = (401, 403)


class Rental(Protocol):
    """Where a session's machine comes from. Every method raises CloudTrouble, or a kind of it."""

    @property
    def facts(self) -> RentalFacts:
        """What is written down of it."""
        ...

    @property
    def link(self) -> LinkBounds:
        """How long its links may be silent."""
        ...

    @property
    def watchdog_environment(self) -> Mapping[str, str] | None:
        """What a watchdog needs to end the machine; None where there is nothing to end."""
        ...

    async def acquire(self, folder: SessionFolder, say: Say) -> Login:
        """A machine that answers over SSH. What must not be forgotten is in the folder before it is waited for."""
        ...

    async def regain(self, folder: SessionFolder, say: Say) -> Login:
        """The machine of an earlier process of this session."""
        ...

    async def trouble(self, folder: SessionFolder) -> str | None:
        """Why the machine is lost, as the provider tells; None while it stands, and where the provider is silent."""
        ...

    async def release(self, folder: SessionFolder, say: Say) -> None:
        """End the machine and write down that it is gone. Raises NotConfirmed where that cannot be said."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalBounds:
    """Patience with a machine that begins.

    launch_s: the launch call with its wait for a turn; boot_s: from there to the first command that SSH answers;
    appear_s: how long after a launch a machine may be missing from all answers; look_s: between looks for one whose
    launch had no answer.
    """

    launch_s: float = 200.0
    boot_s: float = 1200.0
    poll_s: float = 5.0
    appear_s: float = 180.0
    look_s: float = 10.0
    probe_s: float = 20.0


_DEFAULT_BOUNDS = RentalBounds()
_DEFAULT_END = EndBounds()
_DEFAULT_LINK = LinkBounds()


class _NoCapacity(Exception):  # noqa: N818 -- the next region may have one
    """That region has none free; nothing was launched."""


class LambdaRental:
    """One machine at Lambda. facts: what is wanted, regions in the order in which they are tried.

    key: handed to the watchdog by its environment. is_loopback_allowed: for tests, whose machine is this one.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        key: SecretStr,
        facts: RentalFacts,
        bounds: RentalBounds = _DEFAULT_BOUNDS,
        end: EndBounds = _DEFAULT_END,
        link: LinkBounds = _DEFAULT_LINK,
        user_data: str | None = None,
        is_loopback_allowed: bool = False,
    ) -> None:
        if facts.api is None:
            raise CloudUsageError("a rented machine needs an API to end it")
        self._provider = provider
        self._key = key
        self._facts = facts
        self._api = facts.api
        self._bounds = bounds
        self._end = end
        self._link = link
        self._user_data = user_data
        self._is_loopback_allowed = is_loopback_allowed

    @property
    def facts(self) -> RentalFacts:
        """What is written down of it."""
        return self._facts

    @property
    def link(self) -> LinkBounds:
        """How long its links may be silent."""
        return self._link

    @property
    def watchdog_environment(self) -> Mapping[str, str]:
        """The key, which is in no file of the session."""
        return {API_KEY_NAME: self._key.get_secret_value()}

    async def acquire(self, folder: SessionFolder, say: Say) -> Login:
        """Launch in the first region that has one, then wait."""
        for region in self._facts.regions:
            order = self._order(folder, region)
            say(f"launching {order.type_name} in {region} as {order.name}")
            try:
                # A launch that was cut off would leave a machine whose id nobody knows.
                await to_the_end(self._launched(order, folder))
                break
            except _NoCapacity:
                say(f"no {order.type_name} in {region}")
            except Ambiguous as error:
                say(f"{error}: looking for it under its name and tags, never launching again")
                await self._appeared(order, folder)
                break
        else:
            raise CloudTrouble(
                f"no {self._facts.type_name} is free in {', '.join(self._facts.regions) or 'any region'}: try later"
            )
        ids = folder.record.machine_ids
        if len(ids) != 1:
            raise CloudTrouble(f"the launch was answered with {len(ids)} machines instead of one: ending all")
        say(f"machine {ids[0]} is launched")
        return await self._ready(folder, say)

    async def regain(self, folder: SessionFolder, say: Say) -> Login:
        """Look for the machine of this session by its ids and tags, then wait as after a launch."""
        if not folder.record.machine_ids:
            found = [each for each in await self._provider.machines() if claim_of(folder.record).owns(each)]
            folder.change(machine_ids=tuple(each.id for each in found))
        if len(folder.record.machine_ids) != 1:
            raise CloudTrouble(
                f"{folder.record.name} has {len(folder.record.machine_ids)} machines: nothing to go on with"
            )
        return await self._ready(folder, say)

    async def trouble(self, folder: SessionFolder) -> str | None:
        """Ask for the machine's status; an API that does not answer says nothing of the machine."""
        for machine_id in folder.record.machine_ids:
            try:
                machine = await self._provider.machine(machine_id)
            except CloudTrouble as error:
                if isinstance(error, ApiError) and error.status in _REFUSED:
                    return f"the API refuses the key while machine {machine_id} is billed ({error})"
                folder.log(f"status of {machine_id}: {error}")
                continue
            if (why := _why_lost(machine, machine_id)) is not None:
                return why
        return None

    async def release(self, folder: SessionFolder, say: Say) -> None:
        """Nothing to end where nothing was launched."""
        await release_machines(self._provider, folder, self._end, say)

    def _order(self, folder: SessionFolder, region: str) -> Order:
        return Order(
            type_name=self._facts.type_name,
            region=region,
            ssh_key_name=self._facts.ssh_key_name,
            name=folder.record.name,
            tags=folder.record.tags,
            image_family=self._facts.image_family,
            user_data=self._user_data,
        )

    async def _launched(self, order: Order, folder: SessionFolder) -> None:
        """Launch, and write down what came of it, before and after."""
        until_utc = time.time() + self._bounds.launch_s + self._bounds.appear_s
        folder.change(state=State.LAUNCHING, region=order.region, appear_until_utc=until_utc)
        try:
            ids = await self._provider.launch(order)
        except Ambiguous:
            folder.change(appear_until_utc=time.time() + self._bounds.appear_s)
            raise
        except CloudTrouble as error:
            folder.change(state=State.PREPARING, appear_until_utc=None)
            if isinstance(error, ApiError) and error.code == _NO_CAPACITY:
                raise _NoCapacity from None
            raise
        until_utc = time.time() + self._bounds.appear_s
        folder.change(state=State.BOOTING, machine_ids=tuple(ids), appear_until_utc=until_utc)

    async def _appeared(self, order: Order, folder: SessionFolder) -> None:
        """Write down the machine that a launch without an answer made, once the lists have it."""
        until_utc = folder.record.appear_until_utc or 0.0
        claim = claim_of(folder.record)
        while True:
            try:
                ours = [each for each in await self._provider.machines() if claim.owns(each) and each.is_alive]
            except CloudTrouble as error:
                folder.log(f"looking for {order.name}: {error}")
                ours = []
            if ours:
                # Whatever they are, they are ours to end.
                folder.change(state=State.BOOTING, machine_ids=tuple(each.id for each in ours))
                _refuse_what_differs(ours, order)
                return
            if time.time() >= until_utc:
                # Whoever ends the session looks on for as long again: now it costs nothing to be patient.
                folder.change(appear_until_utc=time.time() + self._bounds.appear_s)
                raise CloudTrouble(
                    f"the launch was not answered and no machine called {order.name} has appeared within "
                    f"{self._bounds.appear_s:g} s: not launching again"
                )
            await asyncio.sleep(self._bounds.look_s)

    async def _ready(self, folder: SessionFolder, say: Say) -> Login:
        """Active, an address, and a command that SSH answers, all before one deadline."""
        machine_id = folder.record.machine_ids[0]
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        waiting_for = "the API"
        try:
            async with asyncio.timeout_at(begun_s + self._bounds.boot_s):
                while True:
                    may_be_unlisted = loop.time() - begun_s < self._bounds.appear_s
                    told, machine = waiting_for, await self._look(machine_id, folder)
                    if machine is not None and machine.status and folder.record.appear_until_utc is not None:
                        folder.change(appear_until_utc=None)
                    if machine is None and may_be_unlisted:
                        waiting_for = "a machine that the API knows"
                    elif (why := _why_lost(machine, machine_id)) is not None:
                        raise CloudTrouble(why)
                    elif machine is not None:
                        waiting_for = self._lacks(machine)
                        if waiting_for == "SSH" and await self._answers(machine, folder):
                            say(f"machine {machine_id} answers after {loop.time() - begun_s:.0f} s")
                            assert folder.login is not None  # noqa: S101 -- it has just answered there
                            return folder.login
                    if waiting_for != told:
                        say(f"machine {machine_id}: waiting for {waiting_for}")
                    await asyncio.sleep(self._bounds.poll_s)
        except TimeoutError:
            within = f"within {self._bounds.boot_s / 60:.3g} min"
            raise CloudTrouble(
                f"machine {machine_id} was not ready {within} (still waiting for {waiting_for}): ending it"
            ) from None

    async def _look(self, machine_id: str, folder: SessionFolder) -> Machine | None:
        """The machine, also while the API is silent: as it was then, which is nothing that could be used."""
        try:
            return await self._provider.machine(machine_id)
        except ApiError:
            raise
        except CloudTrouble as error:
            folder.log(f"waiting for {machine_id}: {error}")
            return Machine(machine_id, "", "", None, {}, "", "")

    def _lacks(self, machine: Machine) -> str:
        if not machine.status:
            return "the API"
        if machine.status != "active":
            return f"it to be active (now: {machine.status})"
        if machine.host is None:
            return "its address"
        try:
            address = ipaddress.ip_address(machine.host)
        except ValueError:
            return f"an address that can be read (now: {machine.host})"
        if not address.is_global and not (self._is_loopback_allowed and address.is_loopback):
            return f"a public address (now: {machine.host})"
        return "SSH"

    async def _answers(self, machine: Machine, folder: SessionFolder) -> bool:
        if machine.host is not None and machine.host != folder.record.rental.login.host:
            folder.set_host(machine.host)
        assert folder.login is not None  # noqa: S101 -- it has just got its host
        return await Remote(folder.login, self._link).probe(self._bounds.probe_s)


def claim_of(record: SessionRecord) -> Claim:
    """What is ours of a session."""
    api = record.rental.api
    return Claim(
        session=record.name,
        tags=record.tags,
        ids=record.machine_ids,
        appear_until_utc=record.appear_until_utc,
        **({} if api is None else {"api_base": api.base_url}),
    )


async def release_machines(provider: Provider, folder: SessionFolder, bounds: EndBounds, say: Say) -> None:
    """End what a session may have, and write down how that went; a full disk here keeps nothing from it."""
    if not folder.record.may_have_machines:
        _write_down(folder, say, state=State.GONE, ended_utc=time.time())
        return
    _write_down(folder, say, state=State.ENDING)
    try:
        gone = await end_machines(provider, claim_of(folder.record), bounds, say)
    except NotConfirmed:
        _write_down(folder, say, state=State.UNCONFIRMED)
        raise
    ids = tuple(dict.fromkeys((*folder.record.machine_ids, *gone)))
    _write_down(folder, say, state=State.GONE, machine_ids=ids, ended_utc=time.time())
    say(f"confirmed gone: {', '.join(ids)}" if ids else "confirmed: the launch left no machine")


def _write_down(folder: SessionFolder, say: Say, **fields: object) -> None:
    try:
        folder.change(**fields)
    except CloudTrouble as error:
        say(str(error))


def _refuse_what_differs(ours: Sequence[Machine], order: Order) -> None:
    wanted = (order.name, order.type_name, order.region)
    for each in ours:
        if (each.name, each.type_name, each.region) != wanted:
            what = f"{each.name or 'unnamed'}, {each.type_name} in {each.region}"
            raise CloudTrouble(f"machine {each.id} has our tags but is {what}: ending it")


def _why_lost(machine: Machine | None, machine_id: str) -> str | None:
    if machine is None:
        return f"machine {machine_id} does not exist any more"
    return f"machine {machine_id} is {machine.status}" if machine.status in _LOST else None
