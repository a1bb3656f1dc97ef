"""Peers' environments: one each in a folder of the caller's, made at first use with that release from PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from load import CannotRunError

INSTALL_LIMIT_S = 900.0
_LOOK_LIMIT_S = 30.0
_LINE = 300


@dataclass(frozen=True, slots=True)
class Wanted:
    """A peer's release. pythons: interpreters that it installs on, by preference. space_gb: what it takes on disk."""

    name: str
    requirement: str
    pythons: Sequence[str]
    space_gb: float


def interpreter(folder: Path, wanted: Wanted) -> Path:
    """The Python of the peer's environment. Raises CannotRunError, with pip's last word where that said no."""
    home = folder / wanted.name
    python = home / "bin" / "python"
    stamp = home / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted.requirement:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < 1.5 * wanted.space_gb:
        raise CannotRunError(f"{wanted.requirement} takes {wanted.space_gb:g} GB, and {folder} has {free_gb:.1f} free")
    print(f"installing {wanted.requirement} into {home}", file=sys.stderr, flush=True)
    if not python.exists():
        _done([_found(wanted), "-m", "venv", str(home)])
    _done([str(python), "-m", "pip", "install", "--quiet", "--no-input", wanted.requirement])
    stamp.write_text(wanted.requirement)
    return python


def _done(argv: Sequence[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"not installed within {INSTALL_LIMIT_S:g} s: {' '.join(argv)}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise CannotRunError(f"not installed: {lines[-1][:_LINE]}")


def _found(wanted: Wanted) -> str:
    """An interpreter of the right version that really runs: a version manager's link may be there and say no."""
    for name in wanted.pythons:
        for folder in os.get_exec_path():
            path = Path(folder) / name
            if path.exists() and _runs(path):
                return str(path)
    raise CannotRunError(f"{wanted.requirement} needs one of {', '.join(wanted.pythons)} on PATH")


def _runs(python: Path) -> bool:
    try:
        done = subprocess.run([python, "-c", ""], capture_output=True, timeout=_LOOK_LIMIT_S, check=False)
    except OSError:
        return False
    return done.returncode == 0
