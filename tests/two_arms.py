"""Two arms of scripted servers, to be compared under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines import Act, Scripted, ScriptedHost, answer

from gates.block_order import Order
from gates.slo import parse_objective
from gates.validity import MEASURED
from reports.effect_document import EffectDocument
from slo_bench.bench import Load
from slo_bench.compare.comparison import run_comparison
from slo_bench.compare.earlier import EarlierPart
from slo_bench.compare.plan import ComparisonPlan
from slo_bench.compare.servers import BlockPlan, CompareArm
from slo_bench.hosts import EngineFacts, Host, RunningHost
from traffic.records import Flight, Request
from traffic.server_facts import Look, ServerSample
from traffic.virtual_time import run_virtual
from traffic.workload import fixed_lengths

SLO = (parse_objective("ttft:p99:2000"), parse_objective("tpot:p99:500"))
LOAD = Load(fixed_lengths(20, 4), 1.0, 0, SLO, 1.0, MEASURED)
BLOCK = BlockPlan(LOAD, 5.0, None, 4.0, 1.0, warm_block_s=2.0, warm_blocks=2)
PLAN = ComparisonPlan(BLOCK, "coresident", 1, 3, Order.ABBA)


@dataclass
class Seen:
    """What a view was told."""

    bracket: str = ""
    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, *_: object) -> None:
        pass


@dataclass
class Scene:
    """Two arms of scripted servers, and what happened to them in order."""

    acts: dict[str, Act]
    model: dict[str, str] = field(default_factory=dict)
    sample: Callable[[str], ServerSample | None] = lambda _: None
    events: list[str] = field(default_factory=list)
    hosts: list[ScriptedHost] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)

    def arm(self, label: str) -> CompareArm:
        def host(start: int, log_path: Path, own_pids: Callable[[], Collection[int]]) -> Host:
            del log_path, own_pids
            return self._host(label, start)

        return CompareArm(label, "attached", (), host)

    @asynccontextmanager
    async def _host(self, label: str, start: int) -> AsyncIterator[RunningHost]:
        number = sum(event.startswith(f"up {label}") for event in self.events)
        name = f"{label}{number}"
        act = self.acts[label]

        async def answer_told(request: Request, flight: Flight) -> None:
            if request.index == 0:
                self.events.append(f"load {name}")
            await act(request, flight)

        facts = EngineFacts("attached", self.model.get(label, "m"), None, None, start=start)
        made = _Looking(Scripted(answer_told), facts)
        made.shown = lambda: self.sample(label)
        self.hosts.append(made)
        self.events.append(f"up {name}")
        try:
            yield made  # type: ignore[misc] - a stand-in has what the port asks for
        finally:
            self.events.append(f"down {name}")

    def run(self, directory: Path, plan: ComparisonPlan = PLAN, earlier: EarlierPart | None = None) -> EffectDocument:
        """Compare them. earlier: what an earlier run into the directory left."""
        arms = (self.arm("A"), self.arm("B"))
        return run_virtual(run_comparison(plan, arms, directory, self.seen, earlier=earlier))

    @property
    def blocks(self) -> str:
        """The servers in the order in which load began on them, warm-up included."""
        return " ".join(event.removeprefix("load ") for event in self.events if event.startswith("load "))


@dataclass
class _Looking(ScriptedHost):
    """A scripted host that shows counts of its server."""

    shown: Callable[[], ServerSample | None] = lambda: None

    def look(self) -> Look | None:
        if self.shown() is None:
            return None

        async def look() -> ServerSample | None:
            loop = asyncio.get_running_loop()
            sample = self.shown()
            utc_s = loop.time() + 946684800.0
            return None if sample is None else replace(sample, moment_s=loop.time(), utc_s=utc_s)

        return look


def scene(**more: Any) -> Scene:
    return Scene({"A": answer(0.1, 0.010), "B": answer(0.1, 0.009)}, **more)
