"""What goes back from the made-up Lambda, rightly or wrongly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lambda_shapes import PAGES, REFUSALS

CUTS = frozenset({"hang", "close", "reset", "truncate", "dribble"})
OWN_KINDS: dict[str, frozenset[str]] = {
    "launch": frozenset({"no-ids", "two-ids"}),
    "terminate": frozenset({"empty-list", "stuck"}),
    "instances": frozenset({"empty-list"}),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to go wrong: calls of this name ("*": all) are answered as `kind` says.

    after: how many are answered well before; times: how many are not then, None for ever. since: only calls after the
    first one of that name count. is_done: a launch or a terminate is carried out all the same, and only its answer
    goes wrong (one that is truncated or sent slowly always is).
    """

    call: str
    kind: str
    after: int = 0
    times: int | None = 1
    since: str | None = None
    is_done: bool = False

    def __post_init__(self) -> None:
        own = OWN_KINDS.get(self.call, frozenset())
        if self.kind not in REFUSALS and self.kind not in PAGES and self.kind not in CUTS | own:
            raise ValueError(f"no fault of {self.call} is called {self.kind}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back; cut: how it goes wrong on its way."""

    status: int
    body: bytes
    content_type: str = "application/json"
    cut: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def data(told: Any) -> Answer:
    return Answer(200, json.dumps({"data": told}).encode())


def refusal(kind: str) -> Answer:
    status, code = REFUSALS[kind]
    told = {"code": code, "message": f"made-up message of {kind}", "suggestion": "made-up advice", "request_id": "1"}
    return Answer(status, json.dumps({"error": told}).encode())


def page(kind: str) -> Answer:
    """What is none of the API's own: a proxy's, or a broken one."""
    status, content_type, text = PAGES[kind]
    where = {"Location": "/api/v1/instances"} if kind == "redirect" else {}
    return Answer(status, text.encode(), content_type, headers=where)
