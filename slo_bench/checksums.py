"""Checksums that take bounded time, so that two runs can be held against each other.

A file of up to 64 MiB is hashed whole ("sha256:"). Of a larger one the size and 64 evenly spaced pieces of 64 KiB, its
two ends among them, are hashed ("sampled-sha256:"): different sums prove different content, equal sums make it likely.
A folder's sum is over the names and sums of its files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

WHOLE_BYTES = 64 * 1024 * 1024
PIECE_BYTES, PIECES = 64 * 1024, 64
FOLDER_WHOLE_BYTES = 1024 * 1024
"""Of a folder's files, above this only pieces are read: a model has hundreds of shards."""

MOST_FILES = 10_000


def file_checksum(path: Path, *, whole_bytes: int = WHOLE_BYTES) -> str | None:
    """A file's sum; None where it cannot be read."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= whole_bytes:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            digest = hashlib.sha256(str(size).encode())
            for piece in range(PIECES):
                file.seek((size - PIECE_BYTES) * piece // (PIECES - 1))
                digest.update(file.read(PIECE_BYTES))
    except OSError:
        return None
    return f"sampled-sha256:{digest.hexdigest()}"


def folder_checksum(folder: Path, pattern: str = "*") -> str | None:
    """The sum of a folder's files, hidden ones left out; None for no folder, an empty one, or one of too many files."""
    try:
        paths = sorted(path for path in folder.rglob(pattern) if path.is_file() and not _is_hidden(path, folder))
    except OSError:
        return None
    if not paths or len(paths) > MOST_FILES:
        return None
    digest = hashlib.sha256()
    is_sampled = False
    for path in paths:
        each = file_checksum(path, whole_bytes=FOLDER_WHOLE_BYTES) or "unreadable"
        is_sampled = is_sampled or not each.startswith("sha256:")
        digest.update(f"{path.relative_to(folder)}\0{each}\n".encode())
    return f"{'sampled-' if is_sampled else ''}sha256:{digest.hexdigest()}"


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def checksum(path: Path) -> str | None:
    """A file's or a folder's sum."""
    return folder_checksum(path) if path.is_dir() else file_checksum(path)
