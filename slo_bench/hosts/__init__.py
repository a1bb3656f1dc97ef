"""Hosts: async context managers that give a running engine and its facts.

    async with host as running:
        await running.engine.generate(request, flight)

Entering starts or finds the engine and has one real request answered; leaving stops what was started, on every way out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gates.cause import UNKNOWN_LIMITS, ServerLimits
from traffic.engine import Engine
from traffic.recipe import EngineRecipe
from traffic.records import Message
from traffic.server_facts import Look


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of an engine once it answers.

    max_model_len: context limit in tokens, None where the server does not say. takes_forced_length: the server honours
    min_tokens and ignore_eos. limits: what the engine may do at once, where it is known. start: what prompts depend on:
    how many servers this run started before this one, plus a salt where somebody else runs the server
    (`slo_bench.engines.text_salt`). details: further facts for engine.json (version, command, times to ready, simulated
    settings).
    """

    kind: Literal["simulated", "attached", "vllm"]
    model: str
    max_model_len: int | None
    version: str | None
    takes_forced_length: bool = True
    start: int = 0
    limits: ServerLimits = UNKNOWN_LIMITS
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_simulated(self) -> bool:
        """Whether every output must say SIMULATED."""
        return self.kind == "simulated"


class RunningHost(Protocol):
    """An engine that answers."""

    @property
    def engine(self) -> Engine:
        """Where requests go."""
        ...

    @property
    def facts(self) -> EngineFacts:
        """What is known of it."""
        ...

    @property
    def recipe(self) -> EngineRecipe | None:
        """How other processes make the same engine; None where they cannot."""
        ...

    @property
    def needs_text(self) -> bool:
        """Whether requests must carry messages; a simulated engine needs lengths only."""
        ...

    async def count_tokens(self, messages: Sequence[Message]) -> int | None:
        """The server's own count of a prompt, chat template included; None where it cannot say."""
        ...

    def check(self) -> None:
        """Raise EngineError, with the cause, when the engine is known to be dead."""
        ...

    def look(self) -> Look | None:
        """How to look at the server's own counts; None where it shows none."""
        ...

    def compilations(self) -> tuple[str, ...] | None:
        """What the engine told of compiling, autotuning and capturing graphs since the last call; None if it cannot."""
        ...

    async def wait_idle(self, limit_s: float) -> None:
        """Return when nothing is queued or running; EngineError after limit_s."""
        ...


Host = AbstractAsyncContextManager[RunningHost]
