"""The provider's rate limits hold for all processes of the tool, and nothing waits for ever on them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from cloud.errors import CloudTrouble
from cloud.pacing import Pacing

EVERY_S = 0.05
CALLER = """
import asyncio, sys, time
from pathlib import Path
from cloud.pacing import Pacing

async def main():
    pacing = Pacing(20.0, 0.1, lock_file=Path(sys.argv[1]))
    for _ in range(int(sys.argv[3])):
        async with getattr(pacing, sys.argv[2])():
            print(time.time(), flush=True)

asyncio.run(main())
"""


def fast(folder: Path, **more: float) -> Pacing:
    return Pacing(1 / EVERY_S, 4 * EVERY_S, lock_file=folder / "pacing", **more)  # type: ignore[arg-type]


async def moments(pacing: Pacing, kinds: str) -> list[float]:
    """When each call left; "c": a call, "l": a launch, all asked for at once."""
    left: list[float] = []

    async def one(kind: str) -> None:
        async with pacing.launch() if kind == "l" else pacing.call():
            left.append(time.monotonic())

    await asyncio.gather(*map(one, kinds))
    return left


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(sorted(times))]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Somebody has the lock, and keeps it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def test_calls_that_come_together_leave_one_after_the_other(tmp_path: Path) -> None:
    assert min(gaps(asyncio.run(moments(fast(tmp_path), "ccccc")))) >= EVERY_S


def test_launches_keep_their_own_longer_distance_and_are_calls_too(tmp_path: Path) -> None:
    first, second = asyncio.run(moments(fast(tmp_path), "ll"))
    assert second - first >= 4 * EVERY_S
    assert min(gaps(asyncio.run(moments(fast(tmp_path / "another"), "lcc")))) >= EVERY_S


def test_two_of_one_process_share_the_file(tmp_path: Path) -> None:
    async def both() -> list[float]:
        one, other = fast(tmp_path), fast(tmp_path)
        lists = await asyncio.gather(moments(one, "ccc"), moments(other, "ccc"))
        return [*lists[0], *lists[1]]

    assert min(gaps(asyncio.run(both()))) >= EVERY_S


@pytest.mark.parametrize(("kind", "count", "least_s"), [("call", 4, 0.05), ("launch", 2, 0.1)])
def test_processes_keep_the_rate_together(tmp_path: Path, kind: str, count: int, least_s: float) -> None:
    command = [sys.executable, "-c", CALLER, str(tmp_path / "pacing"), kind, str(count)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    left: list[float] = []
    for process in processes:
        text, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        left += [float(line) for line in text.split()]
    assert len(left) == 2 * count
    assert min(gaps(left)) >= least_s - 0.02  # between its turn and its print a process may have been held up


def test_a_launch_of_another_process_counts_and_its_calls_do_not_wait_for_the_next_launch(tmp_path: Path) -> None:
    (tmp_path / "pacing").write_text(f"0 {time.time()}\n")
    pacing = fast(tmp_path)
    started_s = time.monotonic()
    call = asyncio.run(moments(pacing, "c"))[0]
    launch = asyncio.run(moments(pacing, "l"))[0]
    assert call - started_s < 3 * EVERY_S < launch - started_s


def test_a_call_leaves_the_time_of_the_last_launch_alone(tmp_path: Path) -> None:
    (tmp_path / "pacing").write_text("0 123.5\n")
    asyncio.run(moments(fast(tmp_path), "c"))
    assert (tmp_path / "pacing").read_text().split()[1] == "123.500000"


def test_a_file_that_was_damaged_or_is_from_the_future_holds_nobody_up(tmp_path: Path) -> None:
    for text in ("", "not two numbers", "1 2 3", f"{time.time() + 1000} {time.time() + 1000}"):
        (tmp_path / "pacing").write_text(text)
        started_s = time.monotonic()
        asyncio.run(moments(Pacing(0.1, 100.0, lock_file=tmp_path / "pacing"), "l"))
        assert time.monotonic() - started_s < 5.0
        call, launch = (tmp_path / "pacing").read_text().split()
        assert float(call) == float(launch) == pytest.approx(time.time(), abs=60)


def test_a_lock_that_is_never_given_back_delays_a_call_and_no_more(tmp_path: Path) -> None:
    with held(tmp_path / "pacing"):
        started_s = time.monotonic()
        asyncio.run(moments(fast(tmp_path, patience_s=0.2), "c"))
        assert 0.2 <= time.monotonic() - started_s < 5.0


def test_a_launch_is_not_made_out_of_turn(tmp_path: Path) -> None:
    async def launch() -> None:
        async with fast(tmp_path, patience_s=0.1).launch():
            pytest.fail("it left")

    with held(tmp_path / "pacing"), pytest.raises(CloudTrouble, match=r"for 0.1 s .* nothing was sent: try again"):
        asyncio.run(launch())


def test_where_no_file_can_be_written_the_process_still_keeps_the_rate(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pacing = Pacing(1 / EVERY_S, 0.0, lock_file=tmp_path / "file" / "pacing")
    assert min(gaps(asyncio.run(moments(pacing, "cccl")))) >= EVERY_S


def test_a_full_disk_keeps_nobody_from_calling() -> None:
    pacing = Pacing(1 / EVERY_S, 0.0, lock_file=Path("/dev/full"))
    assert min(gaps(asyncio.run(moments(pacing, "ccc")))) >= EVERY_S


def test_the_file_is_its_owners_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "made" / "pacing"
    asyncio.run(moments(Pacing(1000.0, 0.0, lock_file=path), "c"))
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_goes_wrong_inside_goes_on_outside(tmp_path: Path) -> None:
    async def fail() -> None:
        async with fast(tmp_path).call():
            raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        asyncio.run(fail())
