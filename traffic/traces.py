"""Traces of real services: when requests came and how long they were, read from public files."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from traffic.errors import UsageError
from traffic.randomness import stream

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

MOONCAKE_BLOCK_TOKENS = 512
"""A trace whose blocks are of this size is Mooncake's and counts milliseconds; others, as vLLM's, count seconds."""

BLOCK_SIZES = (MOONCAKE_BLOCK_TOKENS, 16)
"""Tokens that one hash stands for: Mooncake's, and that of vLLM's timed traces."""

MOST_TOKENS = 10_000_000
MOST_TIME = 1e15
"""Larger numbers are damage: no prompt is that long, and no moment that many milliseconds after 1970."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order of their arrival; arrays of shape (n,), n at least 1.

    times_s: seconds after the first. blocks: for each request the hashes of its prompt's blocks of block_tokens tokens,
    the last block perhaps shorter; equal hashes are equal text. None where the trace has none.
    """

    name: str
    times_s: npt.NDArray[np.float64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    blocks: tuple[tuple[int, ...], ...] | None = None
    block_tokens: int = MOONCAKE_BLOCK_TOKENS

    @property
    def period_s(self) -> float:
        """Seconds until the trace begins again: its span and one mean gap. Raises UsageError where it has no span."""
        gaps, span_s = len(self.times_s) - 1, float(self.times_s[-1])
        if span_s <= 0:
            raise UsageError(f"{self.name}: all requests come at one moment, so the trace has no rate")
        return span_s * (gaps + 1) / gaps

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second over the period. Raises UsageError where the trace has no span."""
        return len(self.times_s) / self.period_s

    def start(self, seed: int, repeat: int) -> tuple[float, int]:
        """Where (seed, repeat) begin: a moment of the period, all alike likely, and the first row not before it.

        The row may be n: then the moment is after the last request, and the first one of the next round comes first.
        """
        share = float(stream("trace", seed, repeat).random())
        if self.times_s[-1] <= 0:
            return 0.0, int(share * len(self.times_s))
        moment_s = share * self.period_s
        return moment_s, int(np.searchsorted(self.times_s, moment_s))


def read_trace(path: Path, name: str) -> Trace:
    """Read a trace file; its first line tells whether it is a table or JSON lines.

    A table is Azure's of 2023: TIMESTAMP (a date with a time), ContextTokens, GeneratedTokens. JSON lines are
    Mooncake's and those of vLLM's timed_trace: timestamp, input_length, output_length, and perhaps hash_ids.
    Raises UsageError with file, line and fault; times that go back are a fault, since they often mean a wrong column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error.reason} at byte {error.start}") from None
    lines = text.rstrip().splitlines()
    if not lines:
        raise UsageError(f"{path} is empty")
    rows = list(_json_rows(path, lines) if lines[0].lstrip().startswith("{") else _table_rows(path, lines))
    if not rows:
        raise UsageError(f"{path} holds no requests, only a header")
    return _trace(path, name, rows)


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a file; time in the file's own unit."""

    line: int
    time: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] | None = None


def _trace(path: Path, name: str, rows: Sequence[_Row]) -> Trace:
    for before, row in pairwise(rows):
        if row.time < before.time:
            raise _fault(path, row.line, "its time is before that of the line above; sort the file by time")
    inputs = np.array([row.input_tokens for row in rows], dtype=np.int64)
    blocks, block_tokens = _blocks(path, rows)
    unit_s = 0.001 if blocks is not None and block_tokens == MOONCAKE_BLOCK_TOKENS else 1.0
    times = np.array([row.time for row in rows])
    return Trace(
        name=name,
        times_s=(times - times[0]) * unit_s,
        input_tokens=inputs,
        output_tokens=np.array([row.output_tokens for row in rows], dtype=np.int64),
        blocks=blocks,
        block_tokens=block_tokens,
    )


def _blocks(path: Path, rows: Sequence[_Row]) -> tuple[tuple[tuple[int, ...], ...] | None, int]:
    """Every request's hashes and the size of a block: the one that fits the lengths of all."""
    without = next((row for row in rows if row.blocks is None), None)
    with_blocks = next((row for row in rows if row.blocks is not None), None)
    if with_blocks is None:
        return None, MOONCAKE_BLOCK_TOKENS
    if without is not None:
        raise _fault(path, without.line, f"no hash_ids, while line {with_blocks.line} has them")
    blocks = tuple(row.blocks or () for row in rows)
    misfits = []
    for size in BLOCK_SIZES:
        misfit = next((row for row in rows if len(row.blocks or ()) != math.ceil(row.input_tokens / size)), None)
        if misfit is None:
            return blocks, size
        misfits.append(misfit)
    # The size that held for longest is meant; its first misfit is the fault.
    row = max(misfits, key=lambda misfit: misfit.line)
    raise _fault(
        path,
        row.line,
        f"{len(row.blocks or ())} hash_ids do not fit {row.input_tokens} tokens in blocks of "
        f"{' or '.join(str(size) for size in BLOCK_SIZES)}",
    )


def _table_rows(path: Path, lines: Sequence[str]) -> Iterator[_Row]:
    header = tuple(lines[0].split(","))
    if header != AZURE_COLUMNS:
        raise _fault(path, 1, f"neither JSON nor the columns {','.join(AZURE_COLUMNS)}")
    for number, values in enumerate(csv.reader(lines[1:]), start=2):
        if len(values) != len(AZURE_COLUMNS):
            raise _fault(path, number, f"{len(values)} columns, not {len(AZURE_COLUMNS)}")
        try:
            moment = datetime.fromisoformat(values[0])
        except ValueError:
            raise _fault(path, number, f"TIMESTAMP {_shown(values[0])} is not a date with a time") from None
        yield _Row(
            line=number,
            time=(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(),
            input_tokens=_tokens(path, number, "ContextTokens", _whole(values[1])),
            output_tokens=_tokens(path, number, "GeneratedTokens", _whole(values[2])),
        )


def _json_rows(path: Path, lines: Sequence[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise _fault(path, number, "not JSON, or half a line") from None
        if not isinstance(row, dict):
            raise _fault(path, number, "not a JSON object")
        hashes = row.get("hash_ids")
        if hashes is not None and not (isinstance(hashes, list) and all(_is_whole(each) for each in hashes)):
            raise _fault(path, number, "hash_ids is not a list of whole numbers")
        yield _Row(
            line=number,
            time=_time(path, number, row.get("timestamp")),
            input_tokens=_tokens(path, number, "input_length", row.get("input_length")),
            output_tokens=_tokens(path, number, "output_length", row.get("output_length")),
            blocks=None if hashes is None else tuple(hashes),
        )


def _time(path: Path, line: int, value: object) -> float:
    # NaN and infinities fail the comparison; JSON has no such numbers, but Python's reader takes them.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_TIME:
        raise _fault(path, line, f"timestamp {_shown(value)} is not a time from 0 on")
    return float(value)


def _tokens(path: Path, line: int, column: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TOKENS:
        raise _fault(path, line, f"{column} {_shown(value)} is not a number of tokens from 1 to {MOST_TOKENS}")
    return value


def _whole(text: str) -> object:
    """A whole number where the text is a short one, else the text itself."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MOST_TOKENS)) else text


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """A value as a message may hold it: missing, or its first characters in one line."""
    return "(missing)" if value is None else repr(value)[:40]


def _fault(path: Path, line: int, what: str) -> UsageError:
    return UsageError(f"{path}, line {line}: {what}")
