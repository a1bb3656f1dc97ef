"""Which experts the tokens of a step go to: patterns of routing, and draws from them.

A kernel's time depends on how many experts are hit and how many rows each gets. A pattern is how often each expert is
wanted; a draw gives every token its distinct experts so that, on average, each expert gets exactly its share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from slo_bench.moe.shape import MoeShape
from traffic.errors import UsageError
from traffic.randomness import stream

Ids = npt.NDArray[np.int32]
"""(tokens, top-k): the experts of each token, all different within a row."""

_ONE = 1 << 40
"""Shares are whole numbers of this: the experts of a token are then distinct without exception."""


@dataclass(frozen=True, slots=True)
class Routing:
    """A pattern: its name, and the share of the (token, expert) pairs that each expert gets; they add up to 1."""

    name: str
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) < 0 or not math.isclose(math.fsum(self.shares), 1.0, abs_tol=1e-9):
            raise UsageError(f"routing {self.name!r}: shares of experts are at least 0 and add up to 1")


def uniform(shape: MoeShape) -> Routing:
    """Every expert alike: what random gating gives, and what tuners measure."""
    return Routing("uniform", _normal([1.0] * shape.experts))


def zipf(shape: MoeShape, exponent: float = 1.0) -> Routing:
    """Expert number r (from 1) is wanted 1 / r**exponent times as often as the first.

    A token takes an expert once at most, so no share exceeds 1 / top-k; what that cuts off goes to the others.
    """
    if not 0 <= exponent < math.inf:
        raise UsageError(f"a Zipf exponent is at least 0 (given: {exponent})")
    weights = [(1 + rank) ** -exponent for rank in range(shape.experts)]
    return Routing(f"zipf-{exponent:g}", _at_most(weights, 1 / shape.top_k))


def concentrated(shape: MoeShape, experts: int | None = None, share: float = 1.0) -> Routing:
    """The first few experts get this share of all (token, expert) pairs, the others the rest, both evenly.

    experts: how many they are, top-k when not given; with the whole share every token then goes to the same ones.
    """
    hot = shape.top_k if experts is None else experts
    if not 1 <= hot <= shape.experts or not 0 <= share <= 1:
        raise UsageError(f"of {shape.experts} experts 1 to all can be hot, with a share of 0 to 1")
    cold = shape.experts - hot
    if share * shape.top_k > hot * (1 + 1e-12) or (1 - share) * shape.top_k > cold * (1 + 1e-12):
        raise UsageError(
            f"{hot} of {shape.experts} experts cannot get {share:.0%} of the pairs: a token takes each of them once"
        )
    rest = (1 - share) / cold if cold else 0.0
    return Routing(f"concentrated-{hot}-{share:g}", _normal([share / hot] * hot + [rest] * cold))


def one_rank(shape: MoeShape, rank: int = 0) -> Routing:
    """Under expert parallelism, every token goes to the experts of one rank: all others wait for it."""
    if shape.ep_size == 1:
        raise UsageError("routing to one rank needs expert parallelism: give ep= above 1")
    held = shape.held_by(rank)
    if len(held) < shape.top_k:
        raise UsageError(f"rank {rank} holds {len(held)} experts, fewer than the {shape.top_k} of a token")
    return Routing(f"rank-{rank}", _normal([float(expert in held) for expert in range(shape.experts)]))


def recorded(shape: MoeShape, rows: Sequence[int]) -> Routing:
    """As counted on a real model: the rows that each expert got.

    Raises UsageError for counts that tokens with distinct experts cannot have made.
    """
    if len(rows) != shape.experts or min(rows) < 0 or not sum(rows):
        raise UsageError(f"a recorded routing has one count for each of the {shape.experts} experts, and not all are 0")
    if max(rows) * shape.top_k > sum(rows):
        raise UsageError(f"an expert got more than 1 in {shape.top_k} of the pairs: was top-k another one?")
    return Routing("recorded", _normal([float(count) for count in rows]))


def draw(routing: Routing, shape: MoeShape, tokens: int, *, seed: int, repeat: int = 0) -> Ids:
    """The experts of so many tokens, shape (tokens, top-k), int32.

    Each token draws by systematic sampling over the experts in an order of its own: distinct experts, each included
    with probability top-k x its share exactly (W. G. Madow, Annals of Mathematical Statistics, 1949). Raises
    UsageError where a share is above 1 / top-k.
    """
    if len(routing.shares) != shape.experts:
        raise UsageError(f"routing {routing.name!r} is for {len(routing.shares)} experts, not for {shape.experts}")
    parts = _parts(routing, shape.top_k)
    random = stream("moe-routing", seed, repeat, tokens)
    order = random.permuted(np.tile(np.arange(shape.experts, dtype=np.int32), (tokens, 1)), axis=1)
    ends = np.cumsum(parts[order], axis=1)
    first = random.integers(0, _ONE, size=(tokens, 1))
    points = first + _ONE * np.arange(shape.top_k, dtype=np.int64)
    # Where each point falls among a token's own ends; rows are put one after the other for one search over all.
    whole = shape.top_k * _ONE
    offsets = np.arange(tokens, dtype=np.int64)[:, None]
    flat = np.searchsorted((ends + offsets * whole).ravel(), (points + offsets * whole).ravel(), side="right")
    found = flat.reshape(tokens, shape.top_k) - offsets * shape.experts
    ids: Ids = np.take_along_axis(order, found, axis=1)
    return ids


def rows_per_expert(ids: Ids, shape: MoeShape) -> npt.NDArray[np.int64]:
    """How many tokens each expert of the layer gets."""
    rows: npt.NDArray[np.int64] = np.bincount(ids.ravel(), minlength=shape.experts).astype(np.int64)
    return rows


def local_ids(ids: Ids, shape: MoeShape, rank: int) -> Ids:
    """The experts by their number on one rank; -1 for those of other ranks."""
    held = shape.held_by(rank)
    return np.where((ids >= held.start) & (ids < held.stop), ids - held.start, -1).astype(np.int32)


def _normal(weights: Sequence[float]) -> tuple[float, ...]:
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def _at_most(weights: Sequence[float], limit: float) -> tuple[float, ...]:
    """Shares in the ratio of descending weights, where none is above the limit."""
    rests = list(accumulate(reversed(weights)))[::-1]  # of each weight and all after it, the small ones added first
    shares, left = [], 1.0
    for weight, rest in zip(weights, rests, strict=True):
        shares.append(min(limit, left * weight / rest) if rest > 0 else 0.0)
        left -= shares[-1]
    return _normal(shares)


def _parts(routing: Routing, top_k: int) -> npt.NDArray[np.int64]:
    """How much of _ONE each expert has in a token's draw: whole numbers, none above _ONE, top_k x _ONE together."""
    shares = np.asarray(routing.shares)
    exact = shares / shares.sum() * (top_k * _ONE)
    if exact.max() > _ONE * (1 + 1e-6):
        raise UsageError(f"routing {routing.name!r} wants an expert more than once for a token; lower its share")
    parts: npt.NDArray[np.int64] = np.minimum(np.floor(exact), _ONE).astype(np.int64)
    missing = top_k * _ONE - int(parts.sum())  # what rounding took: as many millionths of a millionth as experts
    for expert in np.argsort(parts - exact, kind="stable"):
        if shares[expert]:
            change = max(-int(parts[expert]), min(missing, _ONE - int(parts[expert])))
            parts[expert] += change
            missing -= change
    return parts
