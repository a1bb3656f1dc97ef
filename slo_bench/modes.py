"""The three modes: how long windows are, how fine the search, how strict the client's bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from gates.capacity import Strategy
from gates.margin import BLOCK_S
from gates.slo import Objective
from gates.validity import MEASURED, SMOKE, Bounds
from traffic.errors import UsageError


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to sweep. percentile: overrides the objectives' own where set (percent)."""

    name: str
    duration_s: float
    ramp_s: float
    resolution_share: float
    repeats: int
    warm_block_s: float
    warm_blocks: int
    bounds: Bounds
    max_minutes: float | None = None
    least_growth: float = 1.0
    percentile: Decimal | None = None
    strategy: Strategy = Strategy.PUBLISHED

    @property
    def is_smoke(self) -> bool:
        """Whether every output says that this is not a measurement."""
        return self.percentile is not None

    def overridden(
        self,
        *,
        duration_s: float | None,
        ramp_s: float | None,
        resolution_share: float | None,
        repeats: int | None,
        strategy: str | None = None,
    ) -> Mode:
        """The mode with what the options give."""
        return replace(
            self,
            duration_s=self.duration_s if duration_s is None else duration_s,
            ramp_s=self.ramp_s if ramp_s is None else ramp_s,
            resolution_share=self.resolution_share if resolution_share is None else resolution_share,
            repeats=self.repeats if repeats is None else repeats,
            strategy=self.strategy if strategy is None else Strategy(strategy),
        )

    def slo(self, objectives: Sequence[Objective]) -> tuple[Objective, ...]:
        """The objectives as this mode judges them."""
        if self.percentile is None:
            return tuple(objectives)
        return tuple(replace(each, percentile=min(each.percentile, self.percentile)) for each in objectives)

    def window_s(self, rate_rps: float, slo: Sequence[Objective]) -> float:
        """The window's length at a rate: longer where the percentile needs more requests than the rate brings.

        20 % and three standard deviations more than the bare need, so that a thin Poisson draw does not fall below it.
        """
        return max(self.duration_s, self._needed_s(rate_rps, slo))

    def short_window_s(self, rate_rps: float, slo: Sequence[Objective]) -> float:
        """As long as the percentile needs and blocks that are compared take; never longer than a window."""
        return min(max(2 * BLOCK_S, self._needed_s(rate_rps, slo)), self.window_s(rate_rps, slo))

    def _needed_s(self, rate_rps: float, slo: Sequence[Objective]) -> float:
        need = max((objective.min_n for objective in slo), default=1)
        need = max(need, self.bounds.min_n)
        return (1.2 * need + 3 * math.sqrt(need)) / rate_rps


MODES = {
    "smoke": Mode("smoke", 10, 3, 0.25, 1, 5, 2, SMOKE, max_minutes=4.5, least_growth=1.5, percentile=Decimal(90)),
    "quick": Mode("quick", 120, 20, 0.03, 2, 30, 6, MEASURED),
    "full": Mode("full", 300, 20, 0.01, 3, 30, 6, MEASURED, strategy=Strategy.ECONOMICAL),
}


def mode_named(name: str) -> Mode:
    """A mode by name. Raises UsageError that lists them."""
    if name not in MODES:
        raise UsageError(f"mode {name!r} does not exist; choose {', '.join(MODES)}")
    return MODES[name]
