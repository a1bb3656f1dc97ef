"""Machines of the made-up Lambda, which get on when they are looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lambda_shapes import JUPYTER_SECRET, region_json, type_json


@dataclass(frozen=True, slots=True)
class Life:
    """How machines get on, in looks: by a list or by id, each look counts.

    hidden_lists: lists that do not have it yet. becomes: what follows booting ("booting": never ends). active_looks:
    after so many it becomes `then`; None: it stays. terminating_looks: None is for ever; it is absent after that, or
    shown as terminated for good.
    """

    hidden_lists: int = 0
    looks_without_ip: int = 1
    looks_booting: int = 1
    ip: str | None = "127.0.0.1"
    becomes: str = "active"
    active_looks: int | None = None
    then: str = "preempted"
    terminating_looks: int | None = 1
    is_shown_terminated: bool = False


@dataclass(slots=True)
class RentedMachine:
    """One machine, as the account knows it. forced: a status that a test has set."""

    id: str
    name: str
    type_name: str
    region: str
    tags: list[dict[str, str]]
    life: Life
    ssh_key_names: list[str]
    user_data: str | None = None
    lists: int = 0
    looks: int = 0
    terminating: int | None = None
    forced: str | None = None

    @property
    def status(self) -> str:
        if self.terminating is not None:
            limit = self.life.terminating_looks
            return "terminating" if limit is None or self.terminating < limit else "terminated"
        if self.forced is not None:
            return self.forced
        over = self.looks - self.life.looks_without_ip - self.life.looks_booting
        if over < 0:
            return "booting"
        limit = self.life.active_looks
        return self.life.becomes if limit is None or over < limit else self.life.then

    @property
    def is_absent(self) -> bool:
        return self.status == "terminated" and not self.life.is_shown_terminated

    @property
    def is_alive(self) -> bool:
        """Whether it would cost money for ever: one that is on its way out does not."""
        return self.forced != "terminated" and (self.terminating is None or self.life.terminating_looks is None)

    def looked_at(self) -> dict[str, Any]:
        """As the API shows it; the next look finds it one look older."""
        shown = self.json()
        if self.terminating is not None:
            self.terminating += 1
        else:
            self.looks += 1
        return shown

    def json(self) -> dict[str, Any]:
        status, life = self.status, self.life
        has_ip = life.ip is not None and (self.looks >= life.looks_without_ip or self.forced is not None)
        is_up = status == "active"
        way_out = {"available": True} if is_up else {"available": False, "reason_code": "vm-has-not-launched"}
        return {
            "id": self.id,
            "status": status,
            **({"name": self.name} if self.name else {}),
            **({"ip": life.ip, "hostname": life.ip} if has_ip else {}),
            **({"private_ip": "10.0.2.100"} if is_up else {}),
            "ssh_key_names": self.ssh_key_names,
            "file_system_names": [],
            "region": region_json(self.region),
            "instance_type": type_json(self.type_name),
            "jupyter_token": f"{JUPYTER_SECRET}-{self.id}",
            "jupyter_url": f"https://jupyter.invalid/?token={JUPYTER_SECRET}-{self.id}",
            "is_reserved": False,
            "workspace_id": "made-up-workspace",
            "actions": dict.fromkeys(("migrate", "rebuild", "restart", "cold_reboot", "terminate"), way_out),
            **({"tags": self.tags} if self.tags else {}),
        }
