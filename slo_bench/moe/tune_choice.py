"""The end of a search at one batch size: finalists and default in turn, a choice, and the choice timed once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slo_bench.moe.choice import Final, Judged, judged, ranked
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tune_lane import Lane
from slo_bench.moe.tune_search import Search, finals_of
from slo_bench.moe.tuning_journal import FinalLine
from traffic.errors import EngineError

FINALISTS = 12
"""Of a batch size, in one wave."""

_WAVES = 3
"""Where a wave has no one to choose, the next fastest get their turn."""

_CONFIRMATIONS = 3
"""Choices of a wave that are timed once more before the default stays."""


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """What a file gets for one batch size, and why.

    before, after: the default's and the chosen one's times, in turn, made after the choice, so that luck in choosing is
    not in them; the same where the default stays. judged: the two compared; None where the default stays. default_rank:
    of the default among all that were tried, by their latest times under the first routing; None where it was not timed
    on a ladder. finalists: how many were timed against it at the end.
    """

    tokens: int
    before: Final
    after: Final
    judged: Judged | None
    default_rank: int | None
    tried: int
    finalists: int

    @property
    def config(self) -> KernelConfig:
        """The chosen one."""
        return self.after.config


async def choose(lane: Lane, search: Search, size: int, record: Callable[[FinalLine], None]) -> SizeChoice:
    """Time the finalists of a size and choose. record: keeps each result before the next is measured.

    What the journal has already is not timed again. Raises EngineError where the default fails.
    """
    ladder = search.ladders[size]
    timed: list[KernelConfig] = []

    async def in_turn(configs: Sequence[KernelConfig], *, is_confirmation: bool) -> tuple[Final, ...]:
        line = search.timed_before(size, configs, is_confirmation=is_confirmation)
        if line is None:
            rows = await lane.compare(size, configs, search.space.routings, is_checked=not is_confirmation)
            line = FinalLine(tokens=size, is_confirmation=is_confirmation, rows=rows)
            record(line)
        return tuple(finals_of(line))

    def chosen(before: Final, after: Final, found: Judged | None) -> SizeChoice:
        return SizeChoice(size, before, after, found, ladder.rank(ladder.default), ladder.tried, len(timed))

    default = None
    for _ in range(_WAVES):
        wave = ladder.finalists(FINALISTS, without=timed)
        if not wave and default is not None:
            break
        timed += wave
        default, *others = await in_turn((ladder.default, *wave), is_confirmation=False)
        if not all(default.times_s.values()):
            raise EngineError(
                f"vLLM's default for {size} tokens failed at the end of the search: see whether the GPU is well"
            )
        for each in ranked(default, others)[:_CONFIRMATIONS]:
            before, after = await in_turn((ladder.default, each.config), is_confirmation=True)
            found = judged(before, after)
            if found is not None and found.is_better:
                return chosen(before, after, found)
        for config in wave:
            ladder.refuses(config)
    assert default is not None  # noqa: S101 - the first wave timed it
    return chosen(default, default, None)
