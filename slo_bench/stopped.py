"""A run that a signal stopped says how it goes on."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slo_bench.environment import command_line


class Stopped(Exception):  # noqa: N818 - a signal is no error
    """A command was cancelled, and `command` goes on where it stopped."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command


@contextmanager
def resumable(begun: Path, more: Sequence[str] = ()) -> Iterator[None]:
    """Turn a cancellation into `Stopped` once the path `begun` exists: before, nothing could go on.

    more: words that the command needs beside those that were typed.
    """
    try:
        yield
    except asyncio.CancelledError:
        if not begun.exists():
            raise
        raise Stopped(shlex.join([*command_line(), *more, "--resume"])) from None
