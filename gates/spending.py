"""What an arm spends, as a comparison names it: power, energy and money get the same effect and verdict as latency."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["SpentMetric"]


class SpentMetric(StrEnum):
    """Power in watts, energy in joules, both over the measured window; money at the SLO capacity, in dollars."""

    POWER_MEAN = "mean power"
    JOULES_PER_TOKEN = "joules per output token"  # noqa: S105 - no password
    USD_PER_MILLION = "dollars per million output tokens"
