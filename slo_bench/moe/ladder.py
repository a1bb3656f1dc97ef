"""Which configurations of one batch size are timed next, and how carefully: elimination on rungs.

A first look at every configuration is short and rough; who is not clearly behind is looked at again, twice as long, and
must keep closer to the best. What comes next is a pure function of what was seen so far, so that a search goes on from
its journal as if it had never stopped, and that the rules are tested without a clock.

The first routing decides how fast a configuration is. Under every other one it must only not be slower than vLLM's
default, and is looked at there as soon as it survives a rung under the first.

Successive elimination with bounds on the noise: E. Even-Dar, S. Mannor, Y. Mansour, JMLR 7 (2006).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slo_bench.moe.shape import MoeShape
from slo_bench.moe.space import KernelConfig


@dataclass(frozen=True, slots=True)
class Rung:
    """rounds: replays of a few calls. keep: who took longer than this times the best goes no further.

    refuse: who took longer under another routing than this times the default is out.
    """

    rounds: int
    keep: float
    refuse: float


RUNGS = (Rung(1, 1.3, 1.2), Rung(2, 1.15, 1.1), Rung(4, 1.08, 1.05), Rung(8, 1.05, 1.02))
"""Where times on a rung are within a share e of the truth and (1 + e) / (1 - e) is at most both bounds, the best that
is slower under no routing is not lost, unless to one that is slower under another by so little that the last rung
cannot tell: those go to the end, and are left out there."""

CALLS = 3
"""Calls of the kernel in one replay on a rung."""

HOPELESS = 2.0
"""Who takes longer than this times the best on its first call is not called again."""


@dataclass(frozen=True, slots=True)
class Look:
    """The latest time of a configuration under a routing, in seconds per call, and the rung that it is from.

    time_s is infinite where the first call took so long that no other was made.
    """

    rung: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """What to time next: these configurations, in this order, under one routing on one rung."""

    rung: int
    routing: str
    configs: tuple[KernelConfig, ...]


@dataclass(slots=True)
class Ladder:
    """Everything that was seen at one batch size.

    default: what vLLM runs without a file. always: further configurations that stay to the end whatever their time (of
    a file that vLLM ships). routings: the first decides. failed: what cannot run. refused: what longer looks
    than those of a ladder have shown to be no choice. waiting: what was not seen yet.
    """

    default: KernelConfig
    routings: tuple[str, ...]
    always: frozenset[KernelConfig] = frozenset()
    looks: dict[KernelConfig, dict[str, Look]] = field(default_factory=dict)
    failed: set[KernelConfig] = field(default_factory=set)
    refused: set[KernelConfig] = field(default_factory=set)
    waiting: dict[KernelConfig, None] = field(default_factory=dict)
    _standing: dict[KernelConfig, float] = field(default_factory=dict, init=False, repr=False)
    _known_best: tuple[KernelConfig | None, float | None] | None = field(default=None, init=False, repr=False)
    _known_step: Step | Literal["none"] | None = field(default=None, init=False, repr=False)

    def saw(self, config: KernelConfig, routing: str, look: Look) -> None:
        """A new time takes the place of an older one."""
        self.waiting.pop(config, None)
        self._forget()
        self.looks.setdefault(config, {})[routing] = look
        # What the others are held against under another routing is the default's time.
        changed = self.looks if config == self.default and routing != self.routings[0] else (config,)
        for each in changed:
            self._stand(each)

    def fails(self, config: KernelConfig) -> None:
        """It cannot run."""
        self.waiting.pop(config, None)
        self._forget()
        self.failed.add(config)
        self._stand(config)

    def refuses(self, config: KernelConfig) -> None:
        """A longer look has shown that it may not be chosen: others are no longer held against it."""
        self._forget()
        self.refused.add(config)
        self._stand(config)

    def _forget(self) -> None:
        self._known_best = self._known_step = None

    def time_s(self, config: KernelConfig) -> float | None:
        """The latest time under the first routing; None before there is one."""
        look = self.looks.get(config, {}).get(self.routings[0])
        return None if look is None else look.time_s

    @property
    def best_s(self) -> float | None:
        """The shortest time under the first routing among those that no other routing refuses; None before any."""
        return self._best()[1]

    @property
    def best(self) -> KernelConfig | None:
        """The configuration that has it."""
        return self._best()[0]

    def _best(self) -> tuple[KernelConfig | None, float | None]:
        if self._known_best is None:
            best = min(self._standing, key=self._standing.__getitem__, default=None)
            self._known_best = (best, None if best is None else self._standing[best])
        return self._known_best

    def is_refused(self, config: KernelConfig) -> bool:
        """Whether it is slower than the default under another routing, by more than its rung leaves to noise."""
        if config in self.refused:
            return True
        base, seen = self.looks.get(self.default, {}), self.looks.get(config, {})
        if config == self.default or len(seen) == 1:
            return False
        for routing in self.routings[1:]:
            mine, default = seen.get(routing), base.get(routing)
            if mine is None or default is None:
                continue
            if mine.time_s > RUNGS[min(mine.rung, default.rung)].refuse * default.time_s:
                return True
        return False

    def offer(self, configs: Iterable[KernelConfig]) -> None:
        """These can run by now: whoever was not seen yet waits for a first look."""
        self._known_step = None
        for config in configs:
            if config not in self.looks and config not in self.failed:
                self.waiting[config] = None

    def withdraw(self, config: KernelConfig) -> None:
        """No first look is wanted any more, except at those that stay to the end."""
        self._known_step = None
        if config != self.default and config not in self.always:
            self.waiting.pop(config, None)

    def next_step(self) -> Step | None:
        """The lowest rung that has work; None where nothing is to do before more can run.

        First looks come in the order of the offers, the default before all others.
        """
        if self._known_step is None:
            self._known_step = self._step() or "none"
        return None if self._known_step == "none" else self._known_step

    def _step(self) -> Step | None:
        if self.waiting:
            first = (self.default,) if self.default in self.waiting else tuple(self.waiting)
            return Step(0, self.routings[0], first)
        best_s = self.best_s
        if best_s is None:
            return None
        wanted: dict[tuple[int, int], list[KernelConfig]] = {}
        for config, time_s in self._standing.items():
            if time_s <= RUNGS[0].keep * best_s or config == self.default or config in self.always:
                place = self._place(config, best_s)
                if place is not None:
                    wanted.setdefault(place, []).append(config)
        if not wanted:
            return None
        rung, routing = min(wanted)
        configs = wanted[rung, routing]
        # What is too slow under another routing is only known once the default was seen under it.
        chosen = [self.default] if rung == 0 and self.default in configs else configs
        return Step(rung, self.routings[routing], tuple(chosen))

    def finalists(self, most: int, *, without: Iterable[KernelConfig] = ()) -> tuple[KernelConfig, ...]:
        """Those that are timed against the default at the end: the fastest of those still standing, then `always`.

        Slower ones than the default are left out: they could not be chosen.
        """
        gone = {self.default, *without}
        default_s, best_s = self.time_s(self.default), self.best_s
        if default_s is None or best_s is None:
            return ()
        able = [(time_s, config) for config, time_s in self._standing.items() if config not in gone]
        near = [(time_s, config) for time_s, config in able if time_s < RUNGS[-1].keep * default_s]
        near = [(time_s, config) for time_s, config in near if self._is_near(config, best_s)]
        chosen = [config for _, config in sorted(near, key=lambda pair: pair[0])[:most]]
        forced = (each for each in self.looks if each in self.always and each not in gone | self.failed)
        return tuple(dict.fromkeys([*chosen, *forced]))

    def rank(self, config: KernelConfig) -> int | None:
        """Its place among all that were timed under the first routing, 1 for the fastest; None if it was not."""
        time_s = self.time_s(config)
        return None if time_s is None else 1 + sum(other < time_s for other in self._times())

    @property
    def tried(self) -> int:
        """How many were timed under the first routing."""
        return sum(1 for _ in self._times())

    def _times(self) -> Iterator[float]:
        first = self.routings[0]
        return (seen[first].time_s for seen in self.looks.values() if first in seen)

    def _stand(self, config: KernelConfig) -> None:
        """Whether it may still be chosen, and its time under the first routing."""
        if config in self.failed or config not in self.looks or self.is_refused(config):
            self._standing.pop(config, None)
        else:
            self._standing[config] = self.looks[config][self.routings[0]].time_s

    def _is_near(self, config: KernelConfig, best_s: float) -> bool:
        if config == self.default or config in self.always:
            return True
        look = self.looks[config][self.routings[0]]
        return look.time_s <= RUNGS[look.rung].keep * best_s

    def _place(self, config: KernelConfig, best_s: float) -> tuple[int, int] | None:
        """The rung and the number of the routing at which a configuration is wanted next; None where it is done."""
        seen = self.looks[config]
        first = seen[self.routings[0]]
        if not self._is_near(config, best_s):
            return None
        for number, routing in enumerate(self.routings[1:], 1):
            there = seen.get(routing)
            if there is None or there.rung < first.rung:
                return first.rung, number
        return (first.rung + 1, 0) if first.rung + 1 < len(RUNGS) else None


def is_hopeless(config: KernelConfig, tokens: int, shape: MoeShape, time_s: float, best_s: float) -> bool:
    """Whether a configuration need not be tried with more tokens than these, for which it took time_s.

    Once the average rows of an expert fill its tile, more rows are more tiles: its time per row falls no further, while
    that of larger tiles may. So who takes HOPELESS times as long as the best with full tiles is not looked at again.
    """
    is_full = tokens * shape.top_k >= shape.experts * config.block_m
    return is_full and time_s > HOPELESS * best_s


def median(times_s: Sequence[float]) -> float:
    """The middle of the rounds of one look, the lower one of two: a disturbed replay is never a short one.

    Infinite for no times: the first call took too long.
    """
    return sorted(times_s)[(len(times_s) - 1) // 2] if times_s else math.inf
