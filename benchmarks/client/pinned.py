"""Become another program on some cores: `python pinned.py 0,2 PRIORITY PROGRAM ...`; what it starts inherits both.

PRIORITY is `high` (nice -20) or `real-time` (round robin, before all that is not); what the kernel does not allow is
left out. A session leader takes its session along: where the kernel groups processes by session, nice counts inside of
one only. The standard library only: it starts in milliseconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

NICE = -20


_AUTOGROUP = Path("/proc/self/autogroup")


class Priority(StrEnum):
    """Of a process over those of others on a host that is not alone ours."""

    HIGH = "high"
    REAL_TIME = "real-time"


def pinned(argv: Sequence[str], *, cores: Sequence[int], priority: Priority) -> list[str]:
    """The command that runs `argv` so."""
    return [sys.executable, "-I", "-S", __file__, ",".join(map(str, cores)), priority.value, *argv]


def main() -> None:
    """Never comes back."""
    cores, priority, *argv = sys.argv[1:]
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        if os.getsid(0) == os.getpid():
            with suppress(FileNotFoundError):
                _AUTOGROUP.write_text(f"{NICE}\n")
        if priority == Priority.REAL_TIME:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    os.execvp(argv[0], argv)  # noqa: S606 - the benchmark's own command


if __name__ == "__main__":
    main()
