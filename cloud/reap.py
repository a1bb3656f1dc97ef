"""Our machines on an account: listed with their sessions, and ended when their time is over."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.ending import Claim, EndBounds, Say, end_machines
from cloud.errors import CloudUsageError
from cloud.lambda_api import DEFAULT_BASE
from cloud.machine import Machine, Provider
from cloud.session_file import EXPIRES_TAG, SESSION_TAG

_DEFAULT_END = EndBounds()


@dataclass(frozen=True, slots=True)
class Rented:
    """A living machine with our full set of tags. expires_utc: when its session's time is over."""

    machine: Machine
    session: str
    expires_utc: float

    def is_expired(self, now_utc: float) -> bool:
        """Whether its session's time is over."""
        return now_utc >= self.expires_utc


@dataclass(frozen=True, slots=True)
class Reaped:
    """What was done: the machines meant, and of them those that are confirmed gone."""

    meant: tuple[Rented, ...]
    gone: tuple[str, ...]


async def rented(provider: Provider) -> tuple[Rented, ...]:
    """Every living machine that is ours beyond doubt. Raises CloudTrouble where the list cannot be read."""
    return tuple(ours for each in await provider.machines() if each.is_alive and (ours := _ours(each)) is not None)


async def reap(
    provider: Provider,
    *,
    now_utc: float,
    say: Say,
    instance: str | None = None,
    session: str | None = None,
    is_dry: bool = True,
    bounds: EndBounds = _DEFAULT_END,
    api_base: str = DEFAULT_BASE,
) -> Reaped:
    """End our machines: one instance, or those of a session, or all whose time is over. is_dry: only say which.

    Raises CloudUsageError for an instance that is there and not ours, NotConfirmed where one may be left.
    """
    if instance is not None:
        meant = await _one(provider, instance, session, say)
    else:
        found = await rented(provider)
        meant = (
            tuple(each for each in found if each.session == session)
            if session is not None
            else tuple(each for each in found if each.is_expired(now_utc))
        )
    for each in meant:
        say(f"{'would end' if is_dry else 'ending'} {describe(each, now_utc)}")
    if not meant:
        say("nothing of ours is to be ended")
    if is_dry or not meant:
        return Reaped(meant, ())
    ids = tuple(each.machine.id for each in meant)  # these, and none besides them, and none waits for another
    claim = Claim(session=session or meant[0].session, tags={}, ids=ids, api_base=api_base)
    gone = await end_machines(provider, claim, bounds, say)
    say(f"confirmed gone: {', '.join(gone)}")
    return Reaped(meant, gone)


def describe(each: Rented, now_utc: float) -> str:
    """One line for a list."""
    left_min = (each.expires_utc - now_utc) / 60
    when = f"{left_min:.0f} min left" if left_min > 0 else f"expired {-left_min:.0f} min ago"
    machine = each.machine
    return f"{machine.id} {machine.status} {machine.type_name} {machine.region} session {each.session} ({when})"


async def _one(provider: Provider, instance: str, session: str | None, say: Say) -> tuple[Rented, ...]:
    machine = await provider.machine(instance)
    if machine is None or not machine.is_alive:
        say(f"machine {instance} is gone already")
        return ()
    ours = _ours(machine)
    if ours is None or (session is not None and ours.session != session):
        raise CloudUsageError(
            f"machine {instance} does not carry the tags of {session or 'a session of ours'}: not touched"
        )
    return (ours,)


def _ours(machine: Machine) -> Rented | None:
    name, expires = machine.tags.get(SESSION_TAG), machine.tags.get(EXPIRES_TAG, "")
    if not name or not expires.isascii() or not expires.isdigit():
        return None
    return Rented(machine, name, float(expires))
