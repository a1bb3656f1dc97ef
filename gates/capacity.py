"""The capacity that a set of windows shows: pure arithmetic on what was observed, no measuring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gates.margin import WindowSample
from traffic.summary import allowed

MOST_AT_ONE_RATE = 4
"""More windows than this would not settle a rate in reasonable time."""


class Strategy(StrEnum):
    """How a sweep searches, and what makes a rate pass."""

    PUBLISHED = "published"
    """Windows of one length; a rate passes only if its probe and all its repeats pass."""
    ECONOMICAL = "economical"
    """Short windows far from the boundary; a rate passes if its objectives hold over all its windows together."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One valid window: its rate, its repeat (0 is the first) and whether it passed."""

    rate_rps: float
    repeat: int
    passed: bool


class CapacityVerdict(StrEnum):
    """What a sweep may say."""

    FOUND = "found"
    AT_LEAST = "at least"
    """Everything passed up to the highest rate that the search may try."""
    NONE = "none"
    """Nothing passed down to the lowest rate that the search may try."""
    UNFINISHED = "unfinished"
    """The time ran out; the bracket so far is all that is known."""
    GATE_FAILED = "accuracy gate failed"
    GATE_INCONCLUSIVE = "accuracy gate inconclusive"
    """What the search found is not claimed: an engine that answers worse carries nothing."""


def rate_text(rate_rps: float) -> str:
    """A rate for people: four significant digits, at least two decimals below 100: 8.00, 11.50, 0.4213."""
    text = f"{rate_rps:#.4g}"
    while text.endswith("0") and len(text.partition(".")[2]) > 2:  # noqa: PLR2004 - two decimals
        text = text[:-1]
    return text.rstrip(".")


@dataclass(frozen=True, slots=True)
class Tally:
    """The windows at one rate. holds and the rest are by the rule of the strategy that counted.

    is_unclear: they contradict each other to the end. is_lost: no further windows could turn the fail into a pass.
    """

    rate_rps: float
    passed: int
    windows: int
    holds: bool
    is_unclear: bool = False
    is_lost: bool = False

    def __str__(self) -> str:
        return f"{rate_text(self.rate_rps)}: {self.passed} of {self.windows}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer of a sweep.

    capacity_rps: the highest rate below every failed one that passed with its repeats; None where nothing passed.
    first_failed_rps: the lowest rate that failed. resolution_share: first failed / capacity - 1.
    contradictions: rates that passed although a lower one failed; they are told, never smoothed away. unclear: rates
    whose windows contradict each other to the end, so that they bound nothing.
    """

    verdict: CapacityVerdict
    capacity_rps: float | None
    first_failed_rps: float | None
    tallies: tuple[Tally, ...]
    contradictions: tuple[float, ...]
    unclear: tuple[float, ...] = ()

    @property
    def resolution_share(self) -> float | None:
        """How much higher the first failed rate is; None without both ends."""
        if self.capacity_rps is None or self.first_failed_rps is None:
            return None
        return self.first_failed_rps / self.capacity_rps - 1

    @property
    def boundary(self) -> tuple[Tally, ...]:
        """The tallies of the two ends of the bracket."""
        return tuple(each for each in self.tallies if each.rate_rps in (self.capacity_rps, self.first_failed_rps))


def tally(observations: Iterable[Observation]) -> list[Tally]:
    """The windows per rate, by ascending rate. The published rule: a rate passes only if all its windows do."""
    counts: dict[float, list[int]] = {}
    for seen in observations:
        passed, windows = counts.get(seen.rate_rps, [0, 0])
        counts[seen.rate_rps] = [passed + seen.passed, windows + 1]
    return [
        Tally(rate_rps, passed, windows, holds=passed == windows)
        for rate_rps, (passed, windows) in sorted(counts.items())
    ]


def pooled_tally(windows: Iterable[WindowSample]) -> list[Tally]:
    """The same by the economical rule: a rate's objectives are applied to the requests of all its windows together.

    Growth without bound in any of them is a fail: what such a window would have shown later was never measured.
    """
    rates: dict[float, list[WindowSample]] = {}
    for window in windows:
        rates.setdefault(window.rate_rps, []).append(window)
    return [_pooled(rate_rps, same) for rate_rps, same in sorted(rates.items())]


def _pooled(rate_rps: float, windows: Sequence[WindowSample]) -> Tally:
    """Unclear: as many windows as there may be, at least half of which contradict the rate's verdict."""
    passed = sum(each.outcome.passed for each in windows)
    is_unstable = any(each.is_unstable for each in windows)
    holds = not is_unstable and _hold_together(windows, 0)
    against = len(windows) - passed if holds else passed
    is_unclear = len(windows) >= MOST_AT_ONE_RATE and 2 * against >= len(windows)
    to_come = max(0, MOST_AT_ONE_RATE - len(windows)) * max(round(rate_rps * each.duration_s) for each in windows)
    is_lost = is_unstable or not _hold_together(windows, to_come)
    return Tally(rate_rps, passed, len(windows), holds, is_unclear, is_lost)


def _hold_together(windows: Sequence[WindowSample], good_ones: int) -> bool:
    """Whether every objective holds over all windows' requests, and so many more that are under every limit."""
    results = zip(*(each.results for each in windows), strict=True)
    return all(
        (n := sum(each.n for each in same) + good_ones) > 0
        and sum(each.over for each in same) <= allowed(n, same[0].objective.percentile)
        for same in results
    )


def bracket(tallies: Sequence[Tally]) -> tuple[Tally | None, Tally | None]:
    """(highest rate that holds below every failed one, lowest failed rate); unclear rates are neither."""
    clear = [each for each in tallies if not each.is_unclear]
    high = next((each for each in clear if not each.holds), None)
    below = [each for each in clear if each.holds and (high is None or each.rate_rps < high.rate_rps)]
    return (below[-1] if below else None), high


def conclude(observations: Sequence[Observation], verdict: CapacityVerdict) -> Capacity:
    """What the windows show by the published rule; `verdict` says why the search ended."""
    return concluded(tally(observations), verdict)


def concluded(tallies: Sequence[Tally], verdict: CapacityVerdict) -> Capacity:
    """What the tallies show."""
    low, high = bracket(tallies)
    return Capacity(
        verdict=verdict,
        capacity_rps=None if low is None else low.rate_rps,
        first_failed_rps=None if high is None else high.rate_rps,
        tallies=tuple(tallies),
        contradictions=tuple(
            each.rate_rps for each in tallies if high is not None and each.holds and each.rate_rps > high.rate_rps
        ),
        unclear=tuple(each.rate_rps for each in tallies if each.is_unclear),
    )
