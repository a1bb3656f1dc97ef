"""A search as its journal tells it: ladders of all batch sizes, what is compiled, what was timed at the end.

It changes by lines alone, the same ones whether they come from a running search or from a journal: so a search that
goes on is where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slo_bench.moe.choice import Final
from slo_bench.moe.ladder import HOPELESS, RUNGS, Ladder, Look, Step, is_hopeless, median
from slo_bench.moe.shape import MoeShape
from slo_bench.moe.space import KernelConfig
from slo_bench.moe.tuning_journal import CompiledLine, FinalLine, Line, TimedLine

FAR = 4.0
"""Times the best: who takes so long at every batch size speaks for the others with its tile and warps.

On an H200 configurations of one tile, with other depths, groups and stages, differed by up to 3.8 at a batch size.
"""

FAR_SEEN = 4
"""So many of a tile must be as far, and none nearer, before the others are left out."""

_LAUNCH_S = 1e-3
"""The first call is a plain one: its launches take this long whatever the kernel."""


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched. sizes: in tokens, ascending. routings: the first decides. configs: all that are tried.

    defaults: what vLLM runs for each size without a file. shipped: with the one that it brings along, empty for none.
    """

    shape: MoeShape
    sizes: tuple[int, ...]
    routings: tuple[str, ...]
    defaults: Mapping[int, KernelConfig]
    shipped: Mapping[int, KernelConfig]
    configs: tuple[KernelConfig, ...]

    @property
    def first(self) -> tuple[KernelConfig, ...]:
        """What vLLM runs today, with its file and without."""
        return tuple(dict.fromkeys([*self.defaults.values(), *self.shipped.values()]))


Tile = tuple[int, int, int]
"""Rows, columns, warps: how many accumulators a thread has."""

THREAD_REGISTERS = 255
"""Of compute capability 3.5 and later (CUDA C++ programming guide, technical specifications)."""

_SPILLED: Tile = (0, 0, 0)
"""Stands for all tiles with more accumulators than a thread has registers: on an H200 the best of them took 7.7 times
the best time, and a compilation 27 s in the mean, up to 100."""


@dataclass
class Search:
    """Where a search stands. spent_s: seconds that it took before this start."""

    space: Space
    failures: dict[KernelConfig, str] = field(default_factory=dict)
    compiled: set[KernelConfig] = field(default_factory=set)
    spent_s: float = 0.0
    left_out: set[KernelConfig] = field(default_factory=set)
    _tiles: dict[Tile, list[KernelConfig]] = field(default_factory=dict)
    _finals: dict[int, list[FinalLine]] = field(default_factory=dict)
    _hopeless: dict[KernelConfig, int] = field(default_factory=dict)

    @cached_property
    def ladders(self) -> dict[int, Ladder]:
        """One for each batch size."""
        return {size: self._ladder(size) for size in self.space.sizes}

    def _ladder(self, size: int) -> Ladder:
        shipped = self.space.shipped.get(size)
        return Ladder(self.space.defaults[size], self.space.routings, frozenset(() if shipped is None else (shipped,)))

    def replay(self, lines: Sequence[Line]) -> None:
        """Everything that a journal holds."""
        for line in lines:
            if isinstance(line, FinalLine):
                self._finals.setdefault(line.tokens, []).append(line)
            self.apply(line)
            self.spent_s = max(self.spent_s, getattr(line, "spent_s", 0.0))
        # What was compiled is asked for once more: the cache on disk answers at once, or has been lost.
        self.compiled.clear()
        for ladder in self.ladders.values():
            ladder.waiting.clear()

    def apply(self, line: Line) -> None:
        """One line, old or new."""
        if isinstance(line, CompiledLine):
            config = KernelConfig(*line.config)
            if line.failure is None:
                self._compiled(config)
            else:
                self._failed(config, line.failure)
        elif isinstance(line, TimedLine):
            self._timed(line)

    def next_step(self, sizes: Sequence[int], company: int = 1) -> tuple[int, Step] | None:
        """What one GPU times next among its sizes: the lowest rung first, there the size for which most is waiting.

        company: configurations that must be there for a step, so that they are timed next to each other; a default
        waits for nobody. None where nothing is to do, or not yet.
        """
        steps = [
            (size, step)
            for size in sizes
            if (step := self.ladders[size].next_step()) is not None
            and (len(step.configs) >= company or step.configs == (self.ladders[size].default,))
        ]
        if not steps:
            return None
        size, step = min(steps, key=lambda pair: (pair[1].rung, -len(pair[1].configs), pair[0]))
        if step.rung == 0:
            promise = {config: self._promise(config, size) for config in step.configs}
            step = Step(0, step.routing, tuple(sorted(step.configs, key=promise.__getitem__)))
        return size, step

    def most_s(self, size: int, step: Step) -> float | None:
        """How long a first call may take on a first look; None where nothing is known that it could be held against."""
        ladder = self.ladders[size]
        if step.rung > 0:
            return None
        look = ladder.looks.get(ladder.default, {}).get(step.routing)
        best_s = ladder.best_s if step.routing == self.space.routings[0] else None if look is None else look.time_s
        return None if best_s is None else HOPELESS * best_s + _LAUNCH_S

    def bests(self) -> tuple[KernelConfig, ...]:
        """The best configuration of each size so far."""
        return tuple(best for ladder in self.ladders.values() if (best := ladder.best) is not None)

    def leaves_out(self, config: KernelConfig) -> bool:
        """Whether a configuration need not be compiled, as what others with its tile took tells; it is noted then.

        Accumulators that do not fit a thread's registers make a kernel slow everywhere, and long to compile.
        """
        seen = self._tiles.get(_tile(config), [])
        if config in seen:
            return False
        far = [is_far for each in seen if (is_far := self._is_far(each)) is not None]
        if len(far) < FAR_SEEN or not all(far):
            return False
        self.left_out.add(config)
        return True

    def _is_far(self, config: KernelConfig) -> bool | None:
        """Whether it is far from the best at every size; None where it was not looked at everywhere yet."""
        routing = self.space.routings[0]
        for size, ladder in self.ladders.items():
            look = ladder.looks.get(config, {}).get(routing)
            if look is not None and ladder.best_s is not None:
                if look.time_s <= FAR * ladder.best_s:
                    return False
            elif size <= self._hopeless.get(config, size):
                return None
        return True

    @property
    def able(self) -> int:
        """How many configurations can and should be tried."""
        return len(self.space.configs) - len(self.failures) - len(self.left_out)

    def timed_before(self, size: int, configs: Sequence[KernelConfig], *, is_confirmation: bool) -> FinalLine | None:
        """The same finalists' times out of the journal, each line once; None where they were not timed yet."""
        lines = self._finals.get(size, [])
        for line in lines:
            same = [KernelConfig(*row.config) for row in line.rows] == list(configs)
            if same and line.is_confirmation == is_confirmation:
                lines.remove(line)
                return line
        return None

    @property
    def first_looks(self) -> tuple[int, int]:
        """How many first looks were taken, and how many are wanted as far as known."""
        taken = sum(len(ladder.looks) for ladder in self.ladders.values())
        able = self.able
        spared = sum(size > limit for limit in self._hopeless.values() for size in self.space.sizes)
        return taken, max(taken, able * len(self.space.sizes) - spared)

    def _compiled(self, config: KernelConfig) -> None:
        self.compiled.add(config)
        tile = self._tiles.setdefault(_tile(config), [])
        if config not in tile:
            tile.append(config)
        limit = self._hopeless.get(config)
        for size, ladder in self.ladders.items():
            if limit is None or size <= limit or config == ladder.default or config in ladder.always:
                ladder.offer([config])

    def _failed(self, config: KernelConfig, failure: str) -> None:
        """A configuration that fails once is trusted nowhere."""
        self.failures[config] = failure
        for ladder in self.ladders.values():
            ladder.fails(config)

    def _timed(self, line: TimedLine) -> None:
        ladder = self.ladders[line.tokens]
        for row in line.rows:
            config = KernelConfig(*row.config)
            if row.failure is not None:
                self._failed(config, row.failure)
                continue
            time_s = median(row.times_s)
            ladder.saw(config, line.routing, Look(line.rung, time_s))
        if line.rung == 0 and line.routing == self.space.routings[0] and ladder.best_s is not None:
            for row in line.rows:
                self._look_ahead(KernelConfig(*row.config), line.tokens, median(row.times_s), ladder.best_s)

    def _look_ahead(self, config: KernelConfig, tokens: int, time_s: float, best_s: float) -> None:
        if not is_hopeless(config, tokens, self.space.shape, time_s, best_s):
            return
        self._hopeless[config] = min(tokens, self._hopeless.get(config, tokens))
        for size, ladder in self.ladders.items():
            if size > tokens:
                ladder.withdraw(config)

    def _promise(self, config: KernelConfig, size: int) -> float:
        """Its time over the best at the sizes next to this one, the smaller of both; what is unknown might survive."""
        place = self.space.sizes.index(size)
        ratios = [
            time_s / ladder.best_s
            for near in self.space.sizes[max(0, place - 1) : place + 2]
            if (ladder := self.ladders[near]).best_s and (time_s := ladder.time_s(config)) is not None
        ]
        return min(ratios, default=RUNGS[0].keep)


def _tile(config: KernelConfig) -> Tile:
    if config.accumulators > THREAD_REGISTERS:
        return _SPILLED
    return config.block_m, config.block_n, config.num_warps


def finals_of(line: FinalLine) -> Iterator[Final]:
    """The finalists of a line, the default first."""
    for row in line.rows:
        yield Final(KernelConfig(*row.config), row.times_s, row.relative_error)
