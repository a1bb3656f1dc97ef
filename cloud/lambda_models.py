"""What the Lambda API answers, checked, and made into our own words.

Fields that we do not need are not read, and those that a live answer may lack have defaults. jupyter_token and
jupyter_url are among the fields that are not read: nothing behind this module can show them. For the same reason no
error tells what was found, only where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cloud.machine import Image, InstanceType, Machine, Order, SshKey

NO_CAPACITY = "instance-operations/launch/insufficient-capacity"
QUOTA_EXCEEDED = "global/quota-exceeded"
INVALID_KEY = "global/invalid-api-key"
DOES_NOT_EXIST = "global/object-does-not-exist"

_UNDECIDED = ("global/internal-error", "global/unknown")
_UPSTREAM = "provider/"

_T = TypeVar("_T")


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class _Named(_Row):
    name: str


class _Specs(_Row):
    gpus: int = Field(ge=0)
    storage_gib: int = Field(ge=0)


class _InstanceType(_Row):
    name: str
    description: str = ""
    price_cents_per_hour: int = Field(ge=0)
    specs: _Specs
    architecture: str = "x86_64"  # the live API tells it, its document does not have it


class _Offer(_Row):
    instance_type: _InstanceType
    regions_with_capacity_available: tuple[_Named, ...]


class _Image(_Row):
    id: str
    family: str
    version: str
    architecture: str
    region: _Named


class _SshKey(_Row):
    id: str
    name: str
    public_key: str


class _Tag(_Row):
    key: str
    value: str


class _Instance(_Row):
    """Only what says which machine it is and how it is must be there: a machine that cannot be read costs money."""

    id: str
    status: str
    name: str | None = None
    ip: str | None = None
    tags: tuple[_Tag, ...] | None = None
    instance_type: _Named | None = None
    region: _Named | None = None


class _Id(_Row):
    id: str


class _Launched(_Row):
    instance_ids: tuple[str, ...]


class _Terminated(_Row):
    terminated_instances: tuple[_Id, ...]


class _Data(_Row, Generic[_T]):
    data: _T


class Refusal(_Row):
    """Why the API did not do what was asked. Only the code is to be branched on."""

    code: str
    message: str = ""
    suggestion: str | None = None

    @property
    def is_definitive(self) -> bool:
        """Whether the code itself leaves no doubt that nothing was done."""
        return self.code not in _UNDECIDED and not self.code.startswith(_UPSTREAM)


class _Error(_Row):
    error: Refusal


def read_refusal(body: bytes) -> Refusal | None:
    """The API's error; None where the body is none of the API's, as those of a proxy before it are."""
    try:
        return _Error.model_validate_json(body).error
    except ValidationError:
        return None


def read_instance_types(body: bytes) -> tuple[InstanceType, ...]:
    """Raises ValidationError, as all readers here do."""
    offers = _Data[dict[str, _Offer]].model_validate_json(body).data.values()
    return tuple(
        InstanceType(
            name=offer.instance_type.name,
            description=offer.instance_type.description,
            price_cents_per_hour=offer.instance_type.price_cents_per_hour,
            gpus=offer.instance_type.specs.gpus,
            storage_gib=offer.instance_type.specs.storage_gib,
            architecture=offer.instance_type.architecture,
            regions=tuple(region.name for region in offer.regions_with_capacity_available),
        )
        for offer in offers
    )


def read_images(body: bytes) -> tuple[Image, ...]:
    """One for each image and region."""
    rows = _Data[tuple[_Image, ...]].model_validate_json(body).data
    return tuple(Image(row.id, row.family, row.version, row.architecture, row.region.name) for row in rows)


def read_ssh_keys(body: bytes) -> tuple[SshKey, ...]:
    """The keys that the account holds."""
    rows = _Data[tuple[_SshKey, ...]].model_validate_json(body).data
    return tuple(SshKey(row.id, row.name, row.public_key) for row in rows)


def read_machines(body: bytes) -> tuple[Machine, ...]:
    """Every machine of a list."""
    return tuple(_machine(row) for row in _Data[tuple[_Instance, ...]].model_validate_json(body).data)


def read_machine(body: bytes) -> Machine:
    """The one machine that was asked for."""
    return _machine(_Data[_Instance].model_validate_json(body).data)


def read_launched(body: bytes) -> tuple[str, ...]:
    """The ids of what was launched."""
    return _Data[_Launched].model_validate_json(body).data.instance_ids


def read_terminated(body: bytes) -> tuple[str, ...]:
    """The ids of what is being terminated."""
    return tuple(row.id for row in _Data[_Terminated].model_validate_json(body).data.terminated_instances)


def launch_body(order: Order) -> Mapping[str, Any]:
    """What is sent to launch one machine. There is no field for how many: the API refuses more than one."""
    body: dict[str, Any] = {
        "region_name": order.region,
        "instance_type_name": order.type_name,
        "ssh_key_names": [order.ssh_key_name],
        "name": order.name,
        "image": {"family": order.image_family},
        "tags": [{"key": key, "value": value} for key, value in order.tags.items()],
    }
    return body if order.user_data is None else {**body, "user_data": order.user_data}


def what_is_wrong(error: ValidationError) -> tuple[str, bool]:
    """Where the first unreadable thing is and what is wrong there, never the thing itself; and whether it is JSON."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole"
    return f"{where}: {first['type']}", first["type"] != "json_invalid"


def _machine(row: _Instance) -> Machine:
    return Machine(
        id=row.id,
        status=row.status,
        name=row.name or "",
        host=row.ip or None,
        tags={tag.key: tag.value for tag in row.tags or ()},
        type_name=row.instance_type.name if row.instance_type else "",
        region=row.region.name if row.region else "",
    )
