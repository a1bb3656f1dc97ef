"""A rented machine, what is ordered, and what a session asks of whoever rents machines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

GONE = "terminated"


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What can be rented. regions: those that have one free now; gpus, storage: of the whole machine."""

    name: str
    description: str
    price_cents_per_hour: int
    gpus: int
    storage_gib: int
    architecture: str
    regions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is rented. host: its address, None until it has one; name: empty where the owner gave none."""

    id: str
    status: str
    name: str
    host: str | None
    tags: Mapping[str, str]
    type_name: str
    region: str

    @property
    def is_alive(self) -> bool:
        """Whether it may be billed: a status that we do not know is alive, and so is one that is on its way out."""
        return self.status != GONE


@dataclass(frozen=True, slots=True)
class Order:
    """One machine to be launched. user_data: cloud-init; it may carry a private host key, so it is never shown."""

    type_name: str
    region: str
    ssh_key_name: str
    name: str
    tags: Mapping[str, str]
    image_family: str
    user_data: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SshKey:
    """A public key that the account holds; machines are launched with it."""

    id: str
    name: str
    public_key: str


@dataclass(frozen=True, slots=True)
class Image:
    """A disk image, in one region."""

    id: str
    family: str
    version: str
    architecture: str
    region: str


class Provider(Protocol):
    """Who rents machines out. Every call raises CloudTrouble, or one of its kinds, where the provider fails."""

    @property
    def server_date_utc(self) -> datetime | None:
        """The provider's clock at its last answer; None before the first."""
        ...

    async def instance_types(self) -> Sequence[InstanceType]:
        """Every type with its price and the regions that have one free."""
        ...

    async def images(self) -> Sequence[Image]:
        """Every image, once for each region."""
        ...

    async def ssh_keys(self) -> Sequence[SshKey]:
        """The keys that the account holds."""
        ...

    async def launch(self, order: Order) -> tuple[str, ...]:
        """Launch one machine, asking once only; the ids of what was launched, which may be none or several.

        ApiError: surely nothing was launched. Ambiguous: something may have been.
        """
        ...

    async def machines(self) -> Sequence[Machine]:
        """Every machine of the account, other people's too."""
        ...

    async def machine(self, machine_id: str) -> Machine | None:
        """One machine; None where the provider says that there is none of this id."""
        ...

    async def terminate(self, machine_ids: Sequence[str]) -> tuple[str, ...]:
        """End machines; the ids that the provider says it ends, which is not yet to say that they are gone."""
        ...
