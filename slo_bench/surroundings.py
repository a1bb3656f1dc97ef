"""What stands around a server: where its power is read, its software, its price."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace

from slo_bench.engine_options import EngineOptions
from slo_bench.hosts import EngineFacts
from slo_bench.hosts.levers import Levers
from slo_bench.passport import server_passport
from slo_bench.power.measuring import UNREAD, Power, PowerSource
from slo_bench.power.source import power_source


@dataclass(frozen=True, slots=True)
class Surroundings:
    """passport: asked once the server is up, None where nothing is known of it. usd_per_hour: of the whole machine.

    gpus: how many the server takes by its options, None where they do not say.
    """

    power: PowerSource = UNREAD
    passport: Callable[[], dict[str, object] | None] | None = None
    usd_per_hour: float | None = None
    gpus: int | None = None

    async def facts(self, facts: EngineFacts, power: Power) -> EngineFacts:
        """The engine's facts with its passport, the GPUs that it uses among it."""
        passport = None if self.passport is None else await asyncio.to_thread(self.passport)
        if passport is None:
            return facts
        gpus = {"names": list(power.gpus.values()), "uuids": list(power.gpus)} if power.gpus else None
        return replace(facts, details={**facts.details, "passport": {**passport, "gpus": gpus}})

    def gpu_count(self, power: Power) -> int | None:
        """How many GPUs the server uses: as seen, else by its options."""
        return len(power.gpus) if power.gpus and power.not_measured is None else self.gpus


def surroundings(options: EngineOptions) -> Surroundings:
    """What the options tell of them. Raises UsageError as `power_source` does."""
    is_ours = options.engine_kind() == "vllm"
    levers = Levers(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Levers)})
    return Surroundings(
        power=power_source(options),
        passport=(lambda: server_passport(options)) if is_ours else None,
        usd_per_hour=getattr(options, "usd_per_hour", None),
        gpus=levers.gpus if is_ours and options.server_command is None else None,
    )
