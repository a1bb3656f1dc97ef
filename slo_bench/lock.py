"""One process at a time in a run directory, by a lock that ends with its process, a SIGKILL included.

The lock is the kernel's (flock), on a file that says who holds it. A file that a killed process left locks nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from traffic.errors import UsageError

LOCK_NAME = ".lock"

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Of a file system without locks, like a Lustre that was mounted so: runs must be possible there too."""

_LONGEST_NAME = 300


@contextmanager
def held(directory: Path, *, is_new: bool = True) -> Iterator[None]:
    """Hold a run directory; nothing of the lock is left behind.

    is_new: the directory is made where it is not there, and removed again where it stays empty; else one that is not
    there is not held. Raises UsageError when another process holds it, or it cannot be written.
    """
    made = [each for each in (directory, *directory.parents) if not each.exists()]
    if made and not is_new:
        yield
        return
    if made:
        check_can_be_made(directory)
    path = directory / LOCK_NAME
    try:
        descriptor = _locked(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: whoever waits for this file finds that it has no name any more
        os.close(descriptor)
        with suppress(OSError):
            for each in made:
                each.rmdir()


def check_can_be_made(directory: Path) -> None:
    """Raise UsageError for a folder that is not there and can never be made."""
    ancestor = directory.parent
    while not ancestor.exists():
        ancestor = ancestor.parent
    if not ancestor.is_dir():
        raise UsageError(f"cannot write {directory}: {ancestor} is not a folder")
    if not os.access(ancestor, os.W_OK):
        raise UsageError(f"cannot write {directory}: no permission in {ancestor}")


def _locked(path: Path) -> int:
    """The descriptor of the file at `path`, locked. Python opens files so that no program it starts inherits them."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # whoever held it removes its folder at this moment
            continue
        try:
            _lock(descriptor, path.parent)
            if _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(descriptor, _LONGEST_NAME, 0).decode(errors="replace").strip() or "another process"
        raise UsageError(f"{directory} is in use by {who}: wait for it, or stop it") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the file still has its name: whoever held it before may have removed it in between."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
