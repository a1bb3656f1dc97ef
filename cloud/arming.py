"""Starts a session's watchdog, and waits for its word that it watches."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from cloud.errors import CloudTrouble
from cloud.session_file import SessionFolder

ARMED = "armed"


async def arm(folder: SessionFolder, environment: Mapping[str, str], limit_s: float) -> None:
    """Start it in a session of its own; its key goes by the environment. Raises CloudTrouble where it gives no word."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # a folder called cloud where we stand is not ours
            "-m",
            "cloud.watchdog",
            str(folder.path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    except OSError as error:
        raise CloudTrouble(f"cannot start the watchdog: {(error.strerror or str(error)).lower()}") from None
    assert process.stdout is not None  # noqa: S101 -- it was asked for
    lines: list[str] = []
    try:
        async with asyncio.timeout(limit_s):
            # Not to the end of the pipe: a loop that hands its child a second copy of it would wait for the watchdog's.
            while ARMED not in lines and (line := await process.stdout.readline()):
                lines.append(line.decode(errors="replace").rstrip("\n"))
    except TimeoutError:
        pass
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if ARMED not in lines:
        last = ([line for line in lines if line.strip()] or [f"it gave no sign within {limit_s:g} s"])[-1]
        raise CloudTrouble(f"the watchdog did not start, so nothing is launched: {last}")
