"""What pairs of blocks say of a mean: between the servers that ran, and for starts of a server in general.

The log ratio of a pair is modelled as effect + order + offset of B's start - offset of A's start + noise. A single
start per arm cannot tell its offset from the effect. Several starts can, in one of two layouts: *crossed*, where each
start of A meets several starts of B, so that starts of one arm are compared through partners that they share; and
*nested*, where a start of A and one of B run next to each other and never meet others, as restarts must. A crossed
comparison that was stopped and went on with new servers is *apart*: groups of starts that never met each other.
*Controlled* is a third: one start of B meets two of A. Two starts say too little of all others, but how far these two
differ is known, and an effect is held against it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gates.log_ratio import Estimate, balanced_estimate, critical_t, visible_log_ratio

FloatArray = npt.NDArray[np.float64]

MIN_STARTS = 3
"""Of each arm, before anything is said of starts that were not measured."""

_CONTROLLED = math.sqrt(1 + 1 / 2)
"""Offsets of one start against the mean of two."""

_MOST_STARTS = 100
_MOST_PAIRS = 10_000


@dataclass(frozen=True, slots=True)
class PairRatio:
    """ln(B / A) of two partners. start_a and start_b: which start of its arm each ran on."""

    log_ratio: float
    a_first: bool
    start_a: int = 0
    start_b: int = 0

    @property
    def order(self) -> float:
        """+1 where A ran first."""
        return 1.0 if self.a_first else -1.0


@dataclass(frozen=True, slots=True)
class MeanEffect:
    """The effect on a mean.

    instances: between the servers that ran. starts: for starts in general, None where the offset of a start is not
    known. order: how much slower whoever ran second read. pair_sd: noise of one pair, sd of its log ratio.
    offset_sd: sd of the log level of one start, None where it was not measured. is_nested: see the module. control: the
    second start of A against its first, where the layout is controlled.
    """

    instances: Estimate
    starts: Estimate | None
    order: Estimate | None
    pair_sd: float | None
    offset_sd: float | None
    is_nested: bool
    control: Estimate | None = None

    def starts_needed(self, log_ratio: float, pairs_per_start: float) -> int | None:
        """Starts of each arm that would show this log ratio in 80 % of all runs; None where the offset is unknown.

        At least three, and None beyond a hundred.
        """
        if self.offset_sd is None:
            return None
        noise = (self.pair_sd or 0.0) ** 2 / pairs_per_start
        for count in range(MIN_STARTS, _MOST_STARTS + 1):
            degrees = count - 2 if self.is_nested else 2 * (count - 1)
            error = math.sqrt((2 * self.offset_sd**2 + noise) / count)
            if visible_log_ratio(error, degrees) <= abs(log_ratio):
                return count
        return None

    def pairs_needed(self, log_ratio: float) -> int | None:
        """Pairs that would show this log ratio between the servers that ran, in 80 % of all runs; None without noise.

        The two orders cost a degree of freedom. None beyond ten thousand, too.
        """
        if not self.pair_sd or not log_ratio:
            return None
        low, high = 2, _MOST_PAIRS
        if visible_log_ratio(self.pair_sd / math.sqrt(high), high - 2) > abs(log_ratio):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if visible_log_ratio(self.pair_sd / math.sqrt(middle), middle - 2) > abs(log_ratio):
                low = middle
            else:
                high = middle
        return high


def mean_effect(pairs: Sequence[PairRatio], known_offset_sd: float | None = None) -> MeanEffect:
    """The effect on a mean from at least one pair.

    known_offset_sd: measured elsewhere between equal servers; it counts where each arm has one start, or two
    that only met each other.
    """
    met = {(pair.start_a, pair.start_b) for pair in pairs}
    starts = len({pair.start_a for pair in pairs}), len({pair.start_b for pair in pairs})
    if starts == (1, 1):
        return _single(pairs, known_offset_sd)
    if starts == (len(met), len(met)):
        return _nested(pairs, known_offset_sd)
    seconds = _second_starts(pairs)
    return _crossed(pairs, starts) if seconds is None else _controlled(pairs, seconds, known_offset_sd)


def _second_starts(pairs: Sequence[PairRatio]) -> frozenset[int] | None:
    """The later one of the two starts of A that a start of B met; None for any other layout."""
    met: dict[int, set[int]] = defaultdict(set)
    for pair in pairs:
        met[pair.start_b].add(pair.start_a)
    own = [start for group in met.values() for start in group]
    if len(own) > len(set(own)) or max(map(len, met.values())) != 2:  # noqa: PLR2004 - a start and its control
        return None
    return frozenset(max(group) for group in met.values() if len(group) > 1)


def _controlled(pairs: Sequence[PairRatio], seconds: frozenset[int], known_offset_sd: float | None) -> MeanEffect:
    """Least squares over effect, order, the groups that a stop made, and the second start of A against the first.

    Groups share one control, so what it differs by between them is noise.
    """
    values = np.array([pair.log_ratio for pair in pairs])
    orders = np.array([pair.order for pair in pairs])
    control = np.array([-0.5 if pair.start_a in seconds else 0.5 for pair in pairs])
    has_order = orders.min() < orders.max()
    groups = [pair.start_b for pair in pairs]
    levels = [_levels(groups)] if len(set(groups)) > 1 else []
    columns = [np.ones((len(pairs), 1)), control[:, None], *([orders[:, None]] if has_order else []), *levels]
    design = np.hstack(columns)
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    degrees = len(pairs) - int(rank)
    if rank < design.shape[1] or not degrees:  # the control and something else cannot be told apart yet
        return _single(pairs, known_offset_sd)
    noise = float(np.sum((values - design @ solution) ** 2)) / degrees
    spread = np.linalg.inv(design.T @ design)

    def estimate(column: int) -> Estimate:
        return Estimate(float(solution[column]), math.sqrt(noise * float(spread[column, column])), degrees)

    found = estimate(0)
    return MeanEffect(
        instances=found,
        starts=None if known_offset_sd is None else _widened(found, _CONTROLLED * known_offset_sd),
        order=estimate(2) if has_order else None,
        pair_sd=math.sqrt(noise),
        offset_sd=known_offset_sd,
        is_nested=False,
        control=estimate(1),
    )


def _single(pairs: Sequence[PairRatio], known_offset_sd: float | None) -> MeanEffect:
    found, order = balanced_estimate([pair.log_ratio for pair in pairs], [pair.order for pair in pairs])
    error = found.standard_error
    starts = None if known_offset_sd is None else _widened(found, math.sqrt(2) * known_offset_sd)
    pair_sd = None if error is None else error / math.sqrt(_weight([pair.order for pair in pairs]))
    return MeanEffect(found, starts, order, pair_sd, known_offset_sd, is_nested=False)


def _widened(found: Estimate, known: float) -> Estimate | None:
    """The estimate with an error beside its own that is taken as known; None where its own is not."""
    error = found.standard_error
    if error is None:
        return None
    total = math.hypot(error, known)
    # Welch-Satterthwaite.
    return Estimate(found.log_ratio, total, math.inf if error == 0 else found.degrees * (total / error) ** 4)


def _weight(orders: Sequence[float]) -> float:
    """The variance of the estimate at order 0 per variance of one value."""
    n = len(orders)
    centre = math.fsum(orders) / n
    spread = math.fsum((order - centre) ** 2 for order in orders)
    return 1 / n + (centre**2 / spread if spread else 0.0)


def _nested(pairs: Sequence[PairRatio], known_offset_sd: float | None) -> MeanEffect:
    units: dict[int, list[PairRatio]] = defaultdict(list)
    for pair in pairs:
        units[pair.start_a].append(pair)
    means = [math.fsum(pair.log_ratio for pair in unit) / len(unit) for unit in units.values()]
    orders = [math.fsum(pair.order for pair in unit) / len(unit) for unit in units.values()]
    found, order = balanced_estimate(means, orders)
    degrees = len(pairs) - len(units)
    noise = None
    if degrees:
        rest = (pair.log_ratio - mean for mean, unit in zip(means, units.values(), strict=True) for pair in unit)
        noise = math.fsum(value**2 for value in rest) / degrees
    per_unit = math.fsum(1 / len(unit) for unit in units.values()) / len(units)
    error = None if noise is None else math.sqrt(noise * per_unit * _weight(orders))
    instances = Estimate(found.log_ratio, error, degrees)
    starts: Estimate | None = found
    offset_sd = known_offset_sd
    if len(units) < MIN_STARTS or found.standard_error is None:
        each = math.sqrt(2 * _weight(orders))
        starts = None if known_offset_sd is None else _widened(instances, each * known_offset_sd)
    elif noise is not None:
        spread = found.standard_error**2 / _weight(orders)
        offset_sd = math.sqrt(max(0.0, (spread - noise * per_unit) / 2))
    return MeanEffect(
        instances=instances,
        starts=starts,
        order=order,
        pair_sd=None if noise is None else math.sqrt(noise),
        offset_sd=offset_sd,
        is_nested=True,
    )


def _crossed(pairs: Sequence[PairRatio], starts: tuple[int, int]) -> MeanEffect:
    """Least squares over effect, order and the levels of all starts, which add up to 0 in each arm."""
    values = np.array([pair.log_ratio for pair in pairs])
    orders = np.array([pair.order for pair in pairs])
    levels_a = -_levels([pair.start_a for pair in pairs])
    levels_b = _levels([pair.start_b for pair in pairs])
    has_order = orders.min() < orders.max()
    columns = [np.ones((len(pairs), 1)), *([orders[:, None]] if has_order else []), levels_a, levels_b]
    design = np.hstack(columns)
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    if rank < design.shape[1]:  # some starts have not met: their levels are not known
        apart = _apart(pairs, values, orders) if min(starts) >= MIN_STARTS else None
        if apart is not None:
            return apart
        found, order = balanced_estimate(values.tolist(), orders.tolist())
        return MeanEffect(found, None, order, None, None, is_nested=False)
    degrees = len(pairs) - int(rank)
    rest = values - design @ solution
    noise = float(rest @ rest) / degrees if degrees else None
    spread = np.linalg.inv(design.T @ design)
    return _levelled(solution, spread, noise, degrees, starts, has_order=bool(has_order))


def _apart(pairs: Sequence[PairRatio], values: FloatArray, orders: FloatArray) -> MeanEffect | None:
    """Starts in groups that never met, so that levels are taken as drawn: None where nothing is left to be noise.

    The variance of the offsets is what the starts explain beyond effect and order (C. R. Henderson, Biometrics 9, 1953,
    p. 226, third method); the error of the mean at order 0 follows from it, its degrees by Satterthwaite.
    """
    plain = np.column_stack([np.ones(len(pairs)), orders]) if orders.min() < orders.max() else np.ones((len(pairs), 1))
    drawn = np.hstack([-_members([pair.start_a for pair in pairs]), _members([pair.start_b for pair in pairs])])
    weights = np.linalg.pinv(plain)
    rest = values - plain @ (weights @ values)
    whole = np.hstack([plain, drawn])
    solution, _, rank, _ = np.linalg.lstsq(whole, values, rcond=None)
    left = values - whole @ solution
    degrees, levels = len(pairs) - int(rank), int(rank) - plain.shape[1]
    if degrees < 1 or levels < 1:
        return None
    noise = float(left @ left) / degrees
    spread = max(0.0, float(rest @ rest - left @ left)) / levels
    reach = float(np.sum((drawn - plain @ (weights @ drawn)) ** 2)) / levels
    part = float(np.sum((weights[0] @ drawn) ** 2)) / reach
    own = float(weights[0] @ weights[0])
    variance = max(part * spread + (own - part) * noise, own * noise)
    doubt = (part * spread) ** 2 / levels + ((own - part) * noise) ** 2 / degrees
    effect = float(weights[0] @ values)
    order = None
    if plain.shape[1] > 1:
        order = Estimate(float(weights[1] @ values), math.sqrt(noise * float(weights[1] @ weights[1])), degrees)
    return MeanEffect(
        instances=Estimate(effect, math.sqrt(own * noise), degrees),
        starts=Estimate(effect, math.sqrt(variance), variance**2 / doubt if doubt else degrees),
        order=order,
        pair_sd=math.sqrt(noise),
        offset_sd=math.sqrt(max(0.0, (spread - noise) / reach)),
        is_nested=False,
    )


def _members(starts: Sequence[int]) -> FloatArray:
    """A column for each start, 1 where it ran; shape (pairs, starts)."""
    ran: FloatArray = (np.array(starts)[:, None] == np.unique(starts)).astype(np.float64)
    return ran


def _levelled(
    solution: FloatArray,
    spread: FloatArray,
    noise: float | None,
    degrees: int,
    starts: tuple[int, int],
    *,
    has_order: bool,
) -> MeanEffect:
    """What the solved levels say of starts in general.

    The spread of the levels holds the offsets, and the noise once for each arm; the estimate's own error holds the
    noise once. So it is taken off once, and never more than leaves the noise alone.
    """
    first = 2 if has_order else 1
    own = 0.0 if noise is None else noise * float(spread[0, 0])
    squares, blur = 0.0, 0.0
    begin = first
    for count in starts:
        part = slice(begin, begin + count - 1)
        whole = np.vstack([np.eye(count - 1), -np.ones((1, count - 1))])
        squares += float(np.sum((whole @ solution[part]) ** 2))
        blur += 0.0 if noise is None else noise * float(np.trace(whole @ spread[part, part] @ whole.T))
        begin += count - 1
    level_degrees = sum(starts) - 2
    variance = squares / level_degrees * (1 / starts[0] + 1 / starts[1])
    error = math.sqrt(max(variance - own, own))
    effect = float(solution[0])
    return MeanEffect(
        instances=Estimate(effect, None if noise is None else math.sqrt(own), degrees),
        starts=Estimate(effect, error, level_degrees),
        order=_order(solution, spread, noise, degrees) if has_order else None,
        pair_sd=None if noise is None else math.sqrt(noise),
        offset_sd=None if noise is None else math.sqrt(max(0.0, (squares - blur) / level_degrees)),
        is_nested=False,
    )


def _order(solution: FloatArray, spread: FloatArray, noise: float | None, degrees: int) -> Estimate:
    error = None if noise is None else math.sqrt(noise * float(spread[1, 1]))
    return Estimate(float(solution[1]), error, degrees)


def _levels(starts: Sequence[int]) -> FloatArray:
    """A column for each start but the last, which is minus the sum of the others; shape (pairs, starts - 1)."""
    names = sorted(set(starts))
    column = {name: index for index, name in enumerate(names)}
    coded = np.vstack([np.eye(len(names) - 1), -np.ones((1, len(names) - 1))])
    rows: FloatArray = coded[[column[start] for start in starts]]
    return rows


def width_without_noise(found: MeanEffect, starts: int) -> float | None:
    """Half of the interval that any number of further blocks would leave, on the logarithm; None where unknown."""
    if found.offset_sd is None:
        return None
    degrees = max(1, starts - 2 if found.is_nested else 2 * (starts - 1))
    if starts == 1:
        parts = math.sqrt(2) if found.control is None else _CONTROLLED
        return critical_t(math.inf) * parts * found.offset_sd
    return critical_t(degrees) * found.offset_sd * math.sqrt(2 / starts)
