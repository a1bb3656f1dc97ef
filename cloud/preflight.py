"""What is looked at before anything costs money. Every look is free, and the first that fails ends the session."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloud.budget import Budget
from cloud.errors import ApiError, CloudTrouble, CloudUsageError
from cloud.machine import Image, InstanceType, Provider
from cloud.reap import describe, rented
from cloud.ssh_keys import KeyPair, find_key

_PROGRAMS = ("ssh", "rsync", "ssh-keygen")
_TAG_KEY = re.compile(r"[a-z][a-z0-9:-]{1,54}")
_LONGEST_NAME = 64
_LONGEST_TAG = 128
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is wanted. regions: in order of preference, all where empty; home: where results will come.

    max_skew_s: how far this clock may be from the provider's, as ours is what ends the session.
    """

    type_name: str
    ssh_key: str
    image_family: str
    max_minutes: float
    max_usd: float | None = None
    reserve_s: float = 240.0
    regions: tuple[str, ...] = ()
    home: Path
    min_free_bytes: int = 5 << 30
    are_others_allowed: bool = False
    max_skew_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Ready:
    """What a session may be made of. regions: those with a free machine and the image, in the order to try them."""

    type: InstanceType
    regions: tuple[str, ...]
    key: KeyPair
    budget: Budget

    @property
    def ceiling(self) -> str:
        """One line to be confirmed: what it can cost at most."""
        hourly = self.type.price_cents_per_hour / 100
        return (
            f"{self.type.name} in {', '.join(self.regions)} at ${hourly:.2f}/h: ends after "
            f"{self.budget.whole_s / 60:.0f} min at the latest, ${self.budget.ceiling_usd:.2f} at most"
        )


async def preflight(
    provider: Provider, wish: Wish, *, now_utc: Callable[[], float] = time.time, ssh_home: Path | None = None
) -> Ready:
    """Look at all of it. Raises CloudUsageError for what the user must change, CloudTrouble for what may pass."""
    check_here(wish.home, wish.min_free_bytes)
    try:
        types = await provider.instance_types()
    except ApiError as error:
        if error.status in _REFUSED:
            raise CloudUsageError(f"the API refuses the key: {error}") from None
        raise
    _check_clock(provider, wish.max_skew_s, now_utc())
    kind = _type_of(types, wish.type_name)
    budget = Budget(
        price_cents_per_hour=kind.price_cents_per_hour,
        max_minutes=wish.max_minutes,
        max_usd=wish.max_usd,
        reserve_s=wish.reserve_s,
    )
    key = await find_key(wish.ssh_key, await provider.ssh_keys(), home=ssh_home)
    images = _images_of(await provider.images(), wish.image_family, kind)
    if not wish.are_others_allowed and (living := await rented(provider)):
        told = "; ".join(describe(each, now_utc()) for each in living)
        raise CloudUsageError(f"there is a machine of ours already: {told}: resume or reap it, or allow others")
    return Ready(kind, _regions(wish, kind, types, {each.region for each in images}), key, budget)


def check_here(home: Path, min_free_bytes: int) -> None:
    """The programs and the disk of this computer."""
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            raise CloudUsageError(f"{program} is not installed here: install it (openssh-client, rsync)")
    place = next(each for each in (home.absolute(), *home.absolute().parents) if each.exists())
    free = shutil.disk_usage(place).free
    if free < min_free_bytes:
        raise CloudUsageError(
            f"{place} has {free / 1e9:.1f} GB free and results may need {min_free_bytes / 1e9:.1f} GB: free some space"
        )


def check_labels(name: str, tags: Sequence[tuple[str, str]]) -> None:
    """The provider's rules for names and tags: one bad key would refuse the whole launch."""
    if not 0 < len(name) <= _LONGEST_NAME:
        raise CloudUsageError(f"{name!r} is no name for a machine: 1 to {_LONGEST_NAME} signs")
    for key, value in tags:
        if not _TAG_KEY.fullmatch(key) or len(value) > _LONGEST_TAG:
            raise CloudUsageError(f"the provider refuses the tag {key!r}: small letters, digits, dashes and colons")


def _check_clock(provider: Provider, max_skew_s: float, now_utc: float) -> None:
    if (date := provider.server_date_utc) is None:
        return
    skew_s = now_utc - date.timestamp()
    if abs(skew_s) > max_skew_s:
        raise CloudUsageError(
            f"this computer's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the provider's, "
            "and it is what ends the session: set it right"
        )


def _type_of(types: Sequence[InstanceType], name: str) -> InstanceType:
    for each in types:
        if each.name == name:
            return each
    listed = ", ".join(f"{each.name} (${each.price_cents_per_hour / 100:.2f}/h)" for each in types)
    raise CloudUsageError(f"there is no type {name}: {listed or 'the account sees none'}")


def _images_of(images: Sequence[Image], family: str, kind: InstanceType) -> list[Image]:
    fitting = [each for each in images if each.architecture == kind.architecture]
    if found := [each for each in fitting if each.family == family]:
        return found
    families = ", ".join(sorted({each.family for each in fitting}))
    raise CloudUsageError(f"no image family {family} for {kind.architecture}: {families or 'none at all'}")


def _regions(wish: Wish, kind: InstanceType, types: Sequence[InstanceType], with_image: set[str]) -> tuple[str, ...]:
    free = [each for each in (wish.regions or kind.regions) if each in kind.regions]
    if not free:
        where = f" in {', '.join(wish.regions)}" if wish.regions and kind.regions else ""
        others = ", ".join(each.name for each in types if each.regions) or "nothing"
        raise CloudTrouble(f"no {kind.name} is free{where} now; free are: {others}")
    regions = tuple(each for each in free if each in with_image)
    if not regions:
        raise CloudUsageError(f"the image family {wish.image_family} is not in {', '.join(free)}")
    return regions
