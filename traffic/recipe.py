"""What another process needs to know to be the same engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from traffic.http_client import Bounds, BuildClient


@dataclass(frozen=True, slots=True)
class EndpointRecipe:
    """The arguments of an `Endpoint`. It can be pickled where `client` can.

    It holds the secrets themselves, so it travels as a message between processes alone: never in arguments,
    environments or texts.
    """

    url: str
    api_key: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    ca_file: Path | None
    bounds: Bounds
    client: BuildClient


@dataclass(frozen=True, slots=True)
class EngineRecipe:
    """The arguments of an `HttpEngine`."""

    endpoint: EndpointRecipe
    model: str
    extra_body: Mapping[str, object]
    forces_length: bool
    continuous_usage: bool
