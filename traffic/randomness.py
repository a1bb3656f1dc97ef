"""Named random streams: what is drawn depends on the purpose and its keys alone, never on what was drawn before."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

CHUNK = 4096
"""Draws are made in chunks of this size whatever the caller needs, so that a longer horizon only appends."""


def stream(purpose: str, *keys: int) -> np.random.Generator:
    """A generator for one purpose ("arrivals", "lengths", ...) and its keys (seed, repeat, ...), any whole numbers.

    The keys are hashed: a SeedSequence of several numbers would cut large ones into words that could be the next key.
    """
    digest = hashlib.sha256(repr((purpose, *keys)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest)))


def fresh_key() -> int:
    """A key that no run has had before. What is drawn from it can be drawn again only if the key is written down."""
    return secrets.randbits(48)


def rate_key(rate_rps: float) -> int:
    """A rate as a key: micro-requests per second."""
    return round(rate_rps * 1e6)


def first(n: int, draw: Callable[[int], npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """The first n rows of an endless sequence that `draw` yields chunk by chunk."""
    chunks = [draw(CHUNK) for _ in range(max(1, -(-n // CHUNK)))]
    return np.concatenate(chunks)[:n]
