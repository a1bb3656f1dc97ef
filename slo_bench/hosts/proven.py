"""A vLLM host that reads its server's log once it answers: what it really runs, and whether that was meant."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self

from gates.cause import ServerLimits
from slo_bench.hosts.log_facts import LogFacts, log_facts
from slo_bench.hosts.moe_proof import moe_faults
from slo_bench.hosts.vllm import VllmHost
from traffic.errors import InvalidMeasurement

Expected = Path | Literal["default"] | None
"""The MoE configuration that every worker must use: a file, vLLM's own default, or whatever it takes."""


class ProvenHost(VllmHost):
    """`VllmHost`, with the log's facts in `facts` (details["log"], limits).

    expected: see `Expected`. Entering raises InvalidMeasurement, with every mismatch, when the server runs something
    else: an arm that did not run what its label says must not be measured.
    """

    def __init__(self, model: str, *, expected: Expected = None, **settings: Any) -> None:
        """settings: those of `VllmHost`."""
        super().__init__(model, **settings)
        self._expected = expected

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            self._read_log()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    def _read_log(self) -> None:
        # Once, before any load: access lines push the start of a long log out of what is kept of it.
        seen = log_facts(self.log_text())
        if self._expected is not None:
            faults = moe_faults(self._expected, seen, self._env)
            if faults:
                raise InvalidMeasurement(f"the server does not run the MoE configuration meant: {'; '.join(faults)}")
        before = self.facts
        self._facts = replace(
            before,
            version=before.version or seen.version,
            limits=ServerLimits(seen.max_num_seqs, seen.max_num_batched_tokens),
            details={**before.details, "log": as_json(seen)},
        )


def as_json(seen: LogFacts) -> dict[str, object]:
    """The log's facts as engine.json holds them; compilations come later, so they are not among them."""
    values = {name: value for name, value in asdict(seen).items() if name != "compilations"}
    made: dict[str, object] = json.loads(json.dumps(values, default=str))
    return made
