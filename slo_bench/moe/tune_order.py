"""In which order configurations are compiled: what is likely to be good first, what takes long to compile last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace

from slo_bench.moe.space import KernelConfig, published_space

_SPACE = tuple(published_space())
_VALUES = {
    option.name: tuple(sorted({int(getattr(config, option.name)) for config in _SPACE}))
    for option in fields(KernelConfig)
}
"""What each option can be."""


class CompileQueue:
    """What is still to be compiled.

    First comes what vLLM runs today (its defaults, its own file), then neighbours of whatever is the best of a batch
    size by now, then the rest by the size of the tile: accumulators that no longer fit a thread's registers make
    compilations of most of a minute, and kernels that are slow everywhere.
    """

    def __init__(self, first: Iterable[KernelConfig], space: Iterable[KernelConfig]) -> None:
        self._first = dict.fromkeys(first)
        self._rest = dict.fromkeys(sorted((each for each in space if each not in self._first), key=_cost))

    def __len__(self) -> int:
        return len(self._first) + len(self._rest)

    def take(
        self, bests: Sequence[KernelConfig], leaves_out: Callable[[KernelConfig], bool] = lambda _: False
    ) -> KernelConfig | None:
        """The next one that is not left out. bests: the best configuration of each batch size so far.

        None where nothing is left.
        """
        while (config := self._next(bests)) is not None:
            if not leaves_out(config):
                return config
        return None

    def _next(self, bests: Sequence[KernelConfig]) -> KernelConfig | None:
        if self._first:
            config = next(iter(self._first))
            del self._first[config]
            return config
        near = (each for best in dict.fromkeys(bests) for each in neighbours(best) if each in self._rest)
        found = min(near, key=_cost, default=None) or next(iter(self._rest), None)
        if found is not None:
            del self._rest[found]
        return found


def neighbours(config: KernelConfig) -> Iterator[KernelConfig]:
    """Configurations of the published space that differ from this one in a single option."""
    for name, values in _VALUES.items():
        for value in values:
            if value != getattr(config, name):
                yield replace(config, **{name: value})


def deal(sizes: Sequence[int], lanes: int) -> tuple[tuple[int, ...], ...]:
    """Batch sizes for each of several GPUs, ascending, the large ones spread; none goes to a GPU that would have none.

    A GPU keeps its sizes, so that the times of one size are of one card.
    """
    count = max(1, min(lanes, len(sizes)))
    hands: list[list[int]] = [[] for _ in range(count)]
    for number, size in enumerate(sorted(sizes, reverse=True)):
        turn, place = divmod(number, count)
        hands[place if turn % 2 == 0 else count - 1 - place].append(size)
    return tuple(tuple(sorted(hand)) for hand in hands)


def _cost(config: KernelConfig) -> tuple[float, int, int]:
    """Accumulators a thread, tile and stages: what makes a compilation long."""
    return config.accumulators, config.block_m * config.block_n, config.num_stages
