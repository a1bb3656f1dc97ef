"""Which steps of a server fall on a far key of a MoE file, from a histogram of tokens per step.

vLLM takes the nearest key, however far, and never its default for a single size: a file with few keys is worse than
none for sizes that nobody tuned.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slo_bench.hosts.moe_proof import far_sizes
from slo_bench.moe.config_files import nearest_size
from traffic.server_facts import Histogram

MOST_TOKENS = 1 << 18
"""No server makes larger steps; what claims one is not followed."""


@dataclass(frozen=True, slots=True)
class Band:
    """Steps whose tokens lie between two sizes, both included. highest: None where nothing bounds it."""

    lowest: int
    highest: int | None
    steps: int


@dataclass(frozen=True, slots=True)
class Covered:
    """A band and the keys of a file that its steps run. far_keys: of them, those that some of its sizes are far from.

    is_far: all sizes of the band are far from their key. May be None: some are, and which ran is not known.
    """

    band: Band
    keys: tuple[int, ...]
    far_keys: tuple[int, ...]
    is_far: bool | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many steps ran far from a key: at least and at most, as a histogram only knows bands."""

    bands: tuple[Covered, ...]

    @property
    def steps(self) -> int:
        """All steps."""
        return sum(each.band.steps for each in self.bands)

    @property
    def far_share(self) -> tuple[float, float] | None:
        """Share of the steps that ran far from a key, the least and the most that the bands allow; None of no steps."""
        if not self.steps:
            return None
        surely = sum(each.band.steps for each in self.bands if each.is_far)
        perhaps = sum(each.band.steps for each in self.bands if each.is_far is not False)
        return surely / self.steps, perhaps / self.steps


def exactly(sizes: Iterable[tuple[int, int]]) -> tuple[Band, ...]:
    """Bands of one size each, from (tokens, steps)."""
    return tuple(Band(tokens, tokens, steps) for tokens, steps in sizes if steps)


def bands_of(steps: Histogram, *, most_tokens: int | None = None) -> tuple[Band, ...]:
    """The bands of vLLM's own histogram of tokens per step, empty ones left out.

    most_tokens: max_num_batched_tokens of the server, which bounds the last one.
    """
    edges = [0, *(int(bound) for bound in steps.bounds)]
    counts = [0, *steps.counts, steps.count]
    bands = []
    for index, above in enumerate(edges):
        inside = counts[index + 1] - counts[index]
        highest = edges[index + 1] if index + 1 < len(edges) else None
        if most_tokens is not None and most_tokens > above:
            highest = most_tokens if highest is None else min(highest, most_tokens)
        if inside:
            bands.append(Band(above + 1, highest, inside))
    return tuple(bands)


def padded(tokens: int, capture_sizes: Sequence[int]) -> int:
    """The rows that the kernel gets: the next size for which a CUDA graph was captured (ascending), else the tokens."""
    index = bisect_left(capture_sizes, tokens)
    return capture_sizes[index] if index < len(capture_sizes) else tokens


def coverage(keys: Iterable[int], bands: Iterable[Band], *, capture_sizes: Iterable[int] = ()) -> Coverage:
    """How the keys of a file cover these steps. Far: more than a factor of two, as the usual sizes never are.

    keys: in the file's order. capture_sizes: of CUDA graphs, in tokens; empty when none are captured. Raises UsageError
    when there is no key.
    """
    ordered, captured = list(keys), sorted(capture_sizes)
    return Coverage(tuple(_covered(ordered, band, captured) for band in bands))


def _covered(keys: Sequence[int], band: Band, captured: Sequence[int]) -> Covered:
    # Beyond twice the largest key every size is far from it: nothing new comes after that.
    beyond = max(min(2 * max(keys, default=0) + 1, MOST_TOKENS), band.lowest, captured[-1] if captured else 0)
    highest = beyond if band.highest is None else min(band.highest, max(beyond, band.lowest))
    sizes = sorted({padded(tokens, captured) for tokens in range(band.lowest, highest + 1)})
    used = dict.fromkeys(nearest_size(keys, size) for size in sizes)
    far = far_sizes(keys, sizes)
    number = sum(map(len, far.values()))
    is_far = True if number == len(sizes) else None if number else False
    return Covered(band, tuple(used), tuple(far), is_far)
