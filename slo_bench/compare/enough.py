"""When a comparison has enough pairs, and what it lacks when it ends without."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gates.comparison import Claim, MetricEffect, Pair, quick_look, starts_per_arm
from gates.log_ratio import as_share
from gates.starts import MIN_STARTS, MeanEffect, width_without_noise
from reports import numbers
from slo_bench.compare.plan import ComparisonPlan


class Enough:
    """Looks at the pairs so far. now_s: the clock; time counts from here on.

    spent_s, longest_s: the time that earlier parts of the comparison took, and that of their longest step.
    """

    def __init__(
        self, plan: ComparisonPlan, now_s: Callable[[], float], *, spent_s: float = 0.0, longest_s: float = 0.0
    ) -> None:
        self._plan = plan
        self._now_s = now_s
        self._began_s = now_s() - spent_s
        self.longest_s = longest_s

    @property
    def spent_s(self) -> float:
        """Seconds of all parts so far."""
        return self._now_s() - self._began_s

    def took(self, seconds: float) -> None:
        """The next pair, or the next start of each arm, may take as long as the longest one did."""
        self.longest_s = max(self.longest_s, seconds)

    def is_reached(self, pairs: Sequence[Pair]) -> bool:
        """Whether no further pair is to begin."""
        plan = self._plan
        if plan.max_minutes is not None and self.spent_s + self.longest_s > 60 * plan.max_minutes:
            return True
        if len(pairs) < plan.pairs:
            return False
        if plan.until_share is None:
            return True
        # In the middle of a row some servers have run once more than others.
        is_whole_row = plan.placement == "restart" or len(pairs) % plan.row == 0
        return is_whole_row and (self._is_narrow(pairs) or self._only_starts_help(pairs))

    def shortfall(self, pairs: Sequence[Pair]) -> list[str]:
        """What the comparison lacks to be concluded; empty when it has it."""
        plan, count = self._plan, len(pairs)
        found, _ = self._look(pairs)
        if found.claim is Claim.TOO_FEW_PAIRS:
            return [f"{numbers.plural(count, 'pair')} with a value: {Claim.TOO_FEW_PAIRS.meaning}"]
        if count < plan.pairs:
            return [f"the time ran out after {count} of {plan.pairs} pairs: raise --max-minutes"]
        if plan.until_share is None or self._is_narrow(pairs):
            return []
        shown = found.shown
        half = None if shown is None or shown.half_width is None else as_share(shown.half_width)
        ways = self._starts_text(pairs) if self._only_starts_help(pairs) else "raise --max-minutes"
        asked = numbers.share(plan.until_share)
        return [f"after {count} pairs the interval reaches ±{numbers.share(half)}, ±{asked} was asked for: {ways}"]

    def _is_narrow(self, pairs: Sequence[Pair]) -> bool:
        shown = self._look(pairs)[0].shown
        half = None if shown is None else shown.half_width
        return half is not None and half <= self._target

    def _only_starts_help(self, pairs: Sequence[Pair]) -> bool:
        """Whether the offsets alone make the interval too wide, where no further start can be had."""
        if self._plan.placement == "restart":
            return False
        found = self._look(pairs)[1]
        width = None if found is None else width_without_noise(found, starts_per_arm(pairs))
        return width is not None and width > self._target

    def _starts_text(self, pairs: Sequence[Pair]) -> str:
        found = self._look(pairs)[1]
        count = None if found is None else starts_for_width(found, self._target)
        return f"offsets of starts are wider, {'more' if count is None else count} starts of each arm would do"

    def _look(self, pairs: Sequence[Pair]) -> tuple[MetricEffect, MeanEffect | None]:
        plan = self._plan
        return quick_look(pairs, plan.known_offset_sd, is_sequential=plan.until_share is not None)

    @property
    def _target(self) -> float:
        return math.log1p(self._plan.until_share or 0.0)


def starts_for_width(found: MeanEffect, half_width: float) -> int | None:
    """Starts of each arm whose offsets leave an interval that narrow, with any number of blocks; None beyond 100."""
    for count in range(MIN_STARTS, 101):
        width = width_without_noise(found, count)
        if width is not None and width <= half_width:
            return count
    return None
