"""How many files this process may hold open: each connection is one, and no load may meet that limit (R10)."""

from __future__ import annotations

import math
import resource
from contextlib import suppress

OWN_FILES = 64
"""Beside the load: libraries, logs, connections for the calls beside it."""

MOST_FILES = 1_048_576
"""Nobody needs more, and a few programs that inherit the limit prepare for all of it."""

SIGMAS = 5.0
"""Poisson arrivals bunch: that many standard deviations above the mean are in flight at times."""


def files_needed(rate_rps: float, longest_s: float) -> int:
    """The most files that a load can hold open: rate x longest time (Little's law), its bunches, and our own files."""
    in_flight = rate_rps * longest_s
    return math.ceil(in_flight + SIGMAS * math.sqrt(in_flight)) + OWN_FILES


def rate_within(limit: int, longest_s: float) -> float:
    """The highest rate in req/s whose `files_needed` keep to a limit; 0.0 where none does."""
    room = max(0, limit - OWN_FILES)
    return (math.sqrt(room + SIGMAS**2 / 4) - SIGMAS / 2) ** 2 / longest_s


def raise_file_limit() -> int:
    """Raise the soft limit as far as this process may; returns the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
