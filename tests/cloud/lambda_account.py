"""An account at a made-up Lambda: its machines, what it refuses, and how it goes wrong. Nothing here knows of sockets.

Time is counted in looks: a machine gets on when it is looked at, so that no test waits for it. A Fault says which call
goes wrong, how, from when on and how often; several are combined by giving several.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from typing import Any

from lambda_faults import CUTS, Answer, Fault, data, page, refusal
from lambda_machines import Life, RentedMachine
from lambda_shapes import (
    API_KEY,
    FAMILIES,
    REFUSALS,
    REGIONS,
    TYPES,
    image_json,
    region_json,
    type_json,
)

__all__ = ["Account", "Fault", "Life", "Seen", "Settings"]

LAUNCH_FIELDS = frozenset(
    "region_name instance_type_name ssh_key_names name hostname file_system_names file_system_mounts image user_data "
    "tags firewall_rulesets".split()
)
LONGEST_NAME, LONGEST_TAG_KEY, LONGEST_TAG_VALUE, LONGEST_USER_DATA = 64, 55, 128, 1_000_000
TAG_KEY = re.compile(r"[a-z][a-z0-9\-:]+")


@dataclass(slots=True)
class Settings:
    """Rates are off (0) unless a test sets them. capacity: the regions that have one free, by type."""

    life: Life = field(default_factory=Life)
    calls_every_s: float = 0.0
    launch_every_s: float = 0.0
    date_skew_s: float = 0.0
    hold_s: float = 60.0
    capacity: dict[str, list[str]] = field(
        default_factory=lambda: {name: ["us-east-1", "us-west-1"] if "8x" not in name else [] for name in TYPES}
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """One request. call: its name in Fault; status: of the answer, None where there was none."""

    call: str
    method: str
    path: str
    body: Any
    user_agent: str
    status: int | None
    at_s: float


class Account:
    """Everything behind the API. Its methods may be called from any thread."""

    def __init__(self, *, api_key: str = API_KEY) -> None:
        self.api_key = api_key
        self.settings = Settings()
        self.machines: list[RentedMachine] = []
        self.requests: list[Seen] = []
        self.ssh_keys: list[dict[str, str]] = []
        self.unknown_fields: set[str] = set()
        self.lock = threading.RLock()
        self._faults: list[tuple[Fault, list[int]]] = []
        self._last_s = {"call": -1e9, "launch": -1e9}

    def add_fault(self, fault: Fault) -> None:
        with self.lock:
            self._faults.append((fault, [0, 0]))

    def clear_faults(self) -> None:
        with self.lock:
            self._faults.clear()

    def add_ssh_key(self, name: str, public_key: str) -> None:
        with self.lock:
            self.ssh_keys.append({"id": uuid.uuid4().hex, "name": name, "public_key": public_key})

    def add_machine(
        self,
        name: str = "",
        *,
        tags: Mapping[str, str] | None = None,
        status: str | None = "active",
        type_name: str = "gpu_1x_h100_sxm5",
        region: str = "us-east-1",
    ) -> str:
        """One that was there before, or that somebody else rents; status None: it boots as others do."""
        listed = [{"key": key, "value": value} for key, value in (tags or {}).items()]
        machine = RentedMachine(
            uuid.uuid4().hex, name, type_name, region, listed, self.settings.life, [], forced=status
        )
        with self.lock:
            self.machines.append(machine)
        return machine.id

    def find(self, machine_id: str) -> RentedMachine:
        with self.lock:
            return next(machine for machine in self.machines if machine.id == machine_id)

    def alive(self) -> list[str]:
        """The ids of the machines that nobody has ended."""
        with self.lock:
            return [machine.id for machine in self.machines if machine.is_alive]

    def seen(self, call: str | None = None) -> list[Seen]:
        with self.lock:
            return [each for each in self.requests if call in (None, each.call)]

    def count(self, call: str | None = None) -> int:
        return len(self.seen(call))

    def state(self) -> dict[str, Any]:
        """Everything, as JSON: what a test in another process asks for."""
        with self.lock:
            machines = [
                {"id": m.id, "name": m.name, "status": m.status, "is_alive": m.is_alive, "region": m.region,
                 "tags": {tag["key"]: tag["value"] for tag in m.tags}, "type_name": m.type_name}
                for m in self.machines
            ]  # fmt: skip
            return {
                "machines": machines,
                "alive": self.alive(),
                "requests": [asdict(each) for each in self.requests],
                "unknown_fields": sorted(self.unknown_fields),
            }

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """What the API says to one request, which is written down."""
        with self.lock:
            call, machine_id = named(method, path)
            told = _json(body)
            answer = self._answer(call, machine_id, headers, told)
            status = None if answer.cut in ("hang", "close", "reset") else answer.status
            agent = headers.get("User-Agent", "")
            self.requests.append(Seen(call, method, path, told, agent, status, time.monotonic()))
            return answer

    def _answer(self, call: str, machine_id: str, headers: Mapping[str, str], told: Any) -> Answer:
        fault = self._due_fault(call)
        if fault is None:
            return self._gate(call, headers) or self._do(call, machine_id, told)
        if fault.kind in ("no-ids", "two-ids"):
            return self._odd_launch(fault.kind, told)
        if fault.kind == "stuck":
            return self._stuck(told)
        if fault.is_done and fault.kind not in ("truncate", "dribble"):
            self._do(call, machine_id, told)
        if fault.kind == "empty-list":
            return data([] if call == "instances" else {"terminated_instances": []})
        if fault.kind in CUTS:
            whole = self._do(call, machine_id, told) if fault.kind in ("truncate", "dribble") else Answer(200, b"")
            return replace(whole, cut=fault.kind)
        return refusal(fault.kind) if fault.kind in REFUSALS else page(fault.kind)

    def _odd_launch(self, kind: str, told: Any) -> Answer:
        """One machine of which nothing is said, or two."""
        before = len(self.machines)
        answers = [self._launch(told) for _ in range(1 if kind == "no-ids" else 2)]
        if any(answer.status != HTTPStatus.OK for answer in answers):
            return answers[0]
        return data({"instance_ids": [each.id for each in self.machines[before:]] if kind == "two-ids" else []})

    def _stuck(self, told: Any) -> Answer:
        for machine in self.machines:
            if machine.id in told["instance_ids"]:
                machine.life = replace(machine.life, terminating_looks=None)
        return self._terminate(told)

    def _due_fault(self, call: str) -> Fault | None:
        due = None
        before = {each.call for each in self.requests}
        for fault, counts in self._faults:
            seen, used = counts
            if fault.call not in (call, "*") or (fault.since is not None and fault.since not in before):
                continue
            counts[0] = seen + 1
            if due is None and seen >= fault.after and (fault.times is None or used < fault.times):
                counts[1] = used + 1
                due = fault
        return due

    def _gate(self, call: str, headers: Mapping[str, str]) -> Answer | None:
        """What stands before every call: the proxy's taste, the rates, the key."""
        agent = headers.get("User-Agent", "")
        if not agent or agent.startswith(("Python-urllib", "python-httpx")):
            return page("cloudflare")
        now_s = time.monotonic()
        limits = {"call": self.settings.calls_every_s, "launch": self.settings.launch_every_s}
        for kind in ("call", "launch") if call == "launch" else ("call",):
            if now_s - self._last_s[kind] < limits[kind]:
                return page("429")
            self._last_s[kind] = now_s
        return None if headers.get("Authorization") == f"Bearer {self.api_key}" else refusal("bad-key")

    def _do(self, call: str, machine_id: str, told: Any) -> Answer:
        if call == "instance":
            return self._one(machine_id)
        if call in ("launch", "terminate"):
            return self._launch(told) if call == "launch" else self._terminate(told)
        listed = self._list(call)
        return refusal("not-found") if listed is None else data(listed)

    def _list(self, call: str) -> Any:
        if call == "instances":
            return [machine.looked_at() for machine in self.machines if _is_listed(machine)]
        if call == "instance-types":
            return {name: self._offer(name) for name in TYPES}
        if call == "images":
            makes = ("x86_64", "arm64")
            return [image_json(family, make, region) for family in FAMILIES for make in makes for region in REGIONS]
        if call == "regions":
            return [region_json(name) for name in REGIONS]
        return self.ssh_keys if call == "ssh-keys" else None

    def _offer(self, name: str) -> dict[str, Any]:
        regions = [region_json(region) for region in self.settings.capacity.get(name, [])]
        return {"instance_type": type_json(name), "regions_with_capacity_available": regions}

    def _one(self, machine_id: str) -> Answer:
        machine = next((each for each in self.machines if each.id == machine_id), None)
        return refusal("not-exist") if machine is None or machine.is_absent else data(machine.looked_at())

    def _launch(self, told: Any) -> Answer:
        self.unknown_fields |= set(told) - LAUNCH_FIELDS
        if (kind := self._launch_refusal(told)) is not None:
            return refusal(kind)
        machine = RentedMachine(
            uuid.uuid4().hex,
            told.get("name", ""),
            told["instance_type_name"],
            told["region_name"],
            told.get("tags", []),
            self.settings.life,
            told["ssh_key_names"],
            told.get("user_data"),
        )
        self.machines.append(machine)
        return data({"instance_ids": [machine.id]})

    def _launch_refusal(self, told: Mapping[str, Any]) -> str | None:
        keys = told.get("ssh_key_names")
        if not isinstance(keys, list) or len(keys) != 1 or set(told) - LAUNCH_FIELDS:
            return "invalid-parameters"
        if len(told.get("name", "")) > LONGEST_NAME or not all(map(_is_tag, told.get("tags", []))):
            return "invalid-parameters"
        if len(told.get("user_data", "")) > LONGEST_USER_DATA:
            return "invalid-parameters"
        family = told.get("image", {}).get("family", next(iter(FAMILIES)))
        is_known = told.get("instance_type_name") in TYPES and told.get("region_name") in REGIONS and family in FAMILIES
        if not is_known or keys[0] not in {key["name"] for key in self.ssh_keys}:
            return "not-exist-400"
        return (
            None if told["region_name"] in self.settings.capacity.get(told["instance_type_name"], []) else "no-capacity"
        )

    def _terminate(self, told: Any) -> Answer:
        wanted: Sequence[str] = told["instance_ids"]
        there = {machine.id: machine for machine in self.machines if not machine.is_absent}
        if not wanted or any(each not in there for each in wanted):
            return refusal("not-exist" if wanted else "invalid-parameters")
        if any(there[each].terminating is not None for each in wanted):
            return refusal("unknown")
        for each in wanted:
            there[each].terminating = 0
        return data({"terminated_instances": [there[each].json() for each in wanted]})


def named(method: str, path: str) -> tuple[str, str]:
    """A call's name in Fault, and the machine that it is about."""
    words = path.partition("?")[0].removeprefix("/api/v1/").split("/")
    if method == "GET" and words[0] == "instances" and len(words) == 2:
        return "instance", words[1]
    if method == "GET" and len(words) == 1:
        return words[0], ""
    if method == "POST" and words[0] == "instance-operations" and len(words) == 2:
        return words[1], ""
    return path, ""


def _is_listed(machine: RentedMachine) -> bool:
    machine.lists += 1
    return machine.lists > machine.life.hidden_lists and not machine.is_absent


def _is_tag(tag: Mapping[str, str]) -> bool:
    key, value = tag["key"], tag["value"]
    return bool(TAG_KEY.fullmatch(key)) and len(key) <= LONGEST_TAG_KEY and len(value) <= LONGEST_TAG_VALUE


def _json(body: bytes) -> Any:
    return json.loads(body) if body else None
