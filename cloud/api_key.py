"""Where the API key comes from: the environment, or a file that nobody else can read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from cloud.errors import CloudUsageError

__all__ = ["API_KEY_NAME", "DEFAULT_KEY_FILE", "read_api_key"]

API_KEY_NAME = "LAMBDA_API_KEY"
DEFAULT_KEY_FILE = "~/.lambda/api_key"

_KEY = re.compile(r"[\x21-\x7e]+")
_LONGEST_KEY = 4096


def read_api_key(environ: Mapping[str, str], file: Path | None = None) -> SecretStr:
    """The key of LAMBDA_API_KEY, else of `file`, else of ~/.lambda/api_key; a file is regular, and only its owner's.

    Raises CloudUsageError, which never says anything of what was found.
    """
    if text := environ.get(API_KEY_NAME, "").strip():
        return _checked(text, API_KEY_NAME)
    path = _home(environ) / DEFAULT_KEY_FILE.removeprefix("~/") if file is None else file
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hold us
    except FileNotFoundError:
        raise CloudUsageError(
            f"no API key: set {API_KEY_NAME}, or write it to {path} with mode 0600 (--api-key-file names another file)"
        ) from None
    except OSError as error:
        raise CloudUsageError(f"cannot read the API key in {path}: {error.strerror}") from None
    try:
        return _checked(_private_text(descriptor, path), str(path))
    finally:
        os.close(descriptor)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _private_text(descriptor: int, path: Path) -> str:
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise CloudUsageError(f"the API key in {path} cannot be read: it is not a regular file")
    if about.st_mode & 0o077:
        mode = stat.S_IMODE(about.st_mode)
        raise CloudUsageError(f"others can read the API key in {path} (mode {mode:04o}): chmod 600 {path}")
    return os.read(descriptor, _LONGEST_KEY).decode(errors="replace").strip()


def _checked(text: str, where: str) -> SecretStr:
    if not _KEY.fullmatch(text):
        what = "more than an API key" if text else "no API key"
        raise CloudUsageError(f"{where} holds {what}: it must be the key alone, on one line")
    return SecretStr(text)
