"""Secrets that a program wrote into files of its own are overwritten there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import SecretStr

from cloud.job_script import LEAST_SECRET, blot, files_of


def words_of(secrets: Iterable[SecretStr]) -> tuple[str, ...]:
    """The secrets that are long enough to be looked for in files, the longest first."""
    words = {each.get_secret_value() for each in secrets}
    return tuple(sorted((word for word in words if len(word.encode()) >= LEAST_SECRET), key=len, reverse=True))


def blot_folder(top: Path, words: Iterable[str]) -> None:
    """Overwrite every occurrence in the files of a folder; their sizes and times stay: rsync sends them no second time.

    What is compressed or encoded is not looked into. A file that cannot be written is left as it is.
    """
    wanted = tuple(words)
    for path in files_of(top) if wanted else ():
        blot(path, wanted)
