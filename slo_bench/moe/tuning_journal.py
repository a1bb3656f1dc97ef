"""What a search for MoE configurations found, line by line as it found it: a search killed at any moment goes on.

JSON lines, only ever appended. A line that was being written when the process died is not counted. What was timed is on
the disk before the next thing is timed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from slo_bench.moe.space import KernelConfig
from traffic.errors import UsageError

SCHEMA_VERSION = 1

Numbers = tuple[int, int, int, int, int, int]
"""A configuration: block_m, block_n, block_k, group_m, num_warps, num_stages."""


class _Line(BaseModel):
    """spent_s: seconds of the search when it was written, over all its starts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    spent_s: float = 0.0


class Begun(_Line):
    """The first line: what is tuned, by whom. about: everything that must be equal for a search to go on."""

    kind: Literal["begun"] = "begun"
    schema_version: int = Field(SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    about: Mapping[str, str]


class CompiledLine(_Line):
    """A configuration was compiled, or cannot be."""

    kind: Literal["compiled"] = "compiled"
    config: Numbers
    took_s: float
    failure: str | None = None


class TimedRow(_Line):
    """times_s: seconds per call, a value for each round; none where the first call took too long."""

    config: Numbers
    times_s: tuple[float, ...]
    failure: str | None = None


class TimedLine(_Line):
    """A step on a ladder."""

    kind: Literal["timed"] = "timed"
    tokens: int
    routing: str
    rung: int
    rows: tuple[TimedRow, ...]


class FinalRow(_Line):
    """A finalist's times under each routing, and its relative error against float32 where that was computed."""

    config: Numbers
    times_s: Mapping[str, tuple[float, ...]]
    relative_error: float | None = None


class FinalLine(_Line):
    """Finalists of a batch size and the default, timed in turn. is_confirmation: one finalist alone, once more."""

    kind: Literal["final"] = "final"
    tokens: int
    is_confirmation: bool
    rows: tuple[FinalRow, ...]


Line = Begun | CompiledLine | TimedLine | FinalLine
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


class Journal:
    """A journal that is being written. Raises UsageError where that is not possible."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("ab")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error

    def append(self, line: Line) -> None:
        """One line. Of a compilation the cache on disk is the record that counts, so the disk is not waited for."""
        try:
            self._file.write(line.model_dump_json().encode() + b"\n")
            self._file.flush()
            if not isinstance(line, CompiledLine):
                os.fsync(self._file.fileno())
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing more comes."""
        self._file.close()


def read_journal(path: Path, about: Mapping[str, str]) -> tuple[Line, ...]:
    """What was found before; empty where no search has begun. A torn last line is cut off the file.

    Raises UsageError for another shape, version or device than this one's, and for a file that is no journal.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        _cut(path, len(whole))
    lines = tuple(_parsed(path, number, text) for number, text in enumerate(whole.splitlines(), 1))
    if lines:
        _check(path, lines[0], about)
    return lines


def numbers(config: KernelConfig) -> Numbers:
    """A configuration as a journal has it; KernelConfig(*numbers) is the way back."""
    return config.block_m, config.block_n, config.block_k, config.group_m, config.num_warps, config.num_stages


def _parsed(path: Path, number: int, text: bytes) -> Line:
    try:
        return _LINE.validate_json(text)
    except ValidationError as error:
        raise UsageError(
            f"{path}, line {number}: {error.errors()[0]['msg'].lower()}; remove the file to tune from the start"
        ) from None


def _check(path: Path, first: Line, about: Mapping[str, str]) -> None:
    if not isinstance(first, Begun):
        raise UsageError(f"{path} does not begin as a journal does; remove it to tune from the start")
    for name in (*first.about, *about):
        had, has = first.about.get(name, "none"), about.get(name, "none")
        if had != has:
            raise UsageError(
                f"{path} is of another search ({name} {had}, now {has}): give another --output or remove it"
            )


def _cut(path: Path, size: int) -> None:
    try:
        os.truncate(path, size)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
