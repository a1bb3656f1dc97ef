"""What is asked of a client, what it says afterwards, and what a client is to this benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MODEL = "mock"
"""The server's model."""

_SERVER_CORE = 1


def server_cores(usable: Sequence[int], count: int) -> tuple[int, ...]:
    """So many cores for the server: core 1, then from the end, far from the clients'; none where there is but one."""
    others = [each for each in reversed(usable) if each != _SERVER_CORE]
    return (_SERVER_CORE, *others[: count - 1]) if len(usable) > 1 and _SERVER_CORE in usable else ()


def client_cores(usable: Sequence[int], count: int, taken: Sequence[int] = (_SERVER_CORE,)) -> tuple[int, ...]:
    """So many cores for a client, or as many as there are; not the server's, where there is another."""
    return tuple(each for each in usable if each not in taken)[:count] or tuple(usable[:1])


class CannotRunError(Exception):
    """A client that cannot be installed, or did not do what it was asked; the message is the reason in its row."""


@dataclass(frozen=True, slots=True)
class Load:
    """Poisson arrivals of equal requests. words: of each prompt. repeat: chooses the draw."""

    rate_rps: float
    seconds: float
    tokens: int
    words: int
    first_s: float
    itl_s: float
    repeat: int

    @property
    def requests(self) -> int:
        """How many a client sends that counts requests, not seconds."""
        return round(self.rate_rps * self.seconds)

    @property
    def answer_s(self) -> float:
        """How long one answer takes."""
        return self.first_s + (self.tokens - 1) * self.itl_s


@dataclass(frozen=True, slots=True)
class Said:
    """A load as its client tells it.

    asked: requests that it meant to send. finished: those that it counts as answered. ttft_s, tpot_s: one each.
    due_s: when each should have gone out, on CLOCK_MONOTONIC, or in UTC; None where nobody knows. own_lag_s: its own
    account of its lateness. names: of its requests at the server; None: the last `asked` streams there.
    """

    asked: int
    finished: int
    ttft_s: Sequence[float]
    tpot_s: Sequence[float]
    due_s: Sequence[float] | None = None
    due_utc_s: Sequence[float] | None = None
    own_lag_s: Sequence[float] | None = None
    names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """How a client is started; environment: beside what this process has."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run happens. url: the server's root. folder: the client's, empty at first. tokenizer: a folder."""

    url: str
    folder: Path
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Client:
    """One load generator. python: its interpreter. note: what its row must say beside its name, or nothing.

    cores: that it may have, where there are as many.

    read: its own account of a load, from the run's folder; raises CannotRunError where there is none.
    """

    name: str
    python: Path
    command: Callable[[Path, Load, Place], Command]
    read: Callable[[Load, Path], Said]
    note: str = ""
    cores: int = 1
