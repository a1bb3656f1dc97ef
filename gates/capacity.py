"""The capacity that a set of windows shows: pure arithmetic on what was observed, no measuring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


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


def rate_text(rate_rps: float) -> str:
    """A rate for people: four significant digits, at least two decimals below 100: 8.00, 11.50, 0.4213."""
    text = f"{rate_rps:#.4g}"
    while text.endswith("0") and len(text.partition(".")[2]) > 2:  # noqa: PLR2004 - two decimals
        text = text[:-1]
    return text.rstrip(".")


@dataclass(frozen=True, slots=True)
class Tally:
    """The windows at one rate."""

    rate_rps: float
    passed: int
    windows: int

    @property
    def holds(self) -> bool:
        """The published rule: a rate passes only if its probe and all its repeats pass."""
        return self.passed == self.windows

    def __str__(self) -> str:
        return f"{rate_text(self.rate_rps)}: {self.passed} of {self.windows}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer of a sweep.

    capacity_rps: the highest rate below every failed one that passed with its repeats; None where nothing passed.
    first_failed_rps: the lowest rate that failed. resolution_share: first failed / capacity - 1.
    contradictions: rates that passed although a lower one failed; they are told, never smoothed away.
    """

    verdict: CapacityVerdict
    capacity_rps: float | None
    first_failed_rps: float | None
    tallies: tuple[Tally, ...]
    contradictions: tuple[float, ...]

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
    """The windows per rate, by ascending rate."""
    counts: dict[float, list[int]] = {}
    for seen in observations:
        passed, windows = counts.get(seen.rate_rps, [0, 0])
        counts[seen.rate_rps] = [passed + seen.passed, windows + 1]
    return [Tally(rate_rps, passed, windows) for rate_rps, (passed, windows) in sorted(counts.items())]


def bracket(tallies: Sequence[Tally]) -> tuple[Tally | None, Tally | None]:
    """(highest rate that holds below every failed one, lowest failed rate)."""
    high = next((each for each in tallies if not each.holds), None)
    below = [each for each in tallies if each.holds and (high is None or each.rate_rps < high.rate_rps)]
    return (below[-1] if below else None), high


def conclude(observations: Sequence[Observation], verdict: CapacityVerdict) -> Capacity:
    """What the windows show; `verdict` says why the search ended."""
    tallies = tally(observations)
    low, high = bracket(tallies)
    return Capacity(
        verdict=verdict,
        capacity_rps=None if low is None else low.rate_rps,
        first_failed_rps=None if high is None else high.rate_rps,
        tallies=tuple(tallies),
        contradictions=tuple(
            each.rate_rps for each in tallies if high is not None and each.holds and each.rate_rps > high.rate_rps
        ),
    )
