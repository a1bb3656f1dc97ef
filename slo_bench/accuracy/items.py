"""Reads the items of GSM8K: the hub's test set by default, else a file of the same rows."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from gates.gsm8k import Item, item, items_sha256
from traffic.errors import UsageError
from traffic.http_client import FAULTS
from traffic.sse import one_line

HUB_NAME = "openai/gsm8k"
_OTHERWISE = "give a file of rows with question and answer as --gsm8k-file"


@dataclass(frozen=True, slots=True)
class ItemSet:
    """Items in their set's own order, and where they came from. sha256: over their questions and golds."""

    items: tuple[Item, ...]
    source: str
    sha256: str


def load_items(file: Path | None = None, *, count: int | None = None) -> ItemSet:
    """The first `count` items, all by default, of the hub's test set or of a JSON-lines file. It blocks for seconds.

    Raises UsageError in one line for a hub that cannot be reached (after about 25 s), or a file that is no such set.
    """
    source = f"{HUB_NAME} main/test" if file is None else file.name
    items = items_from(_rows(file)[:count], source)
    return ItemSet(items, source, items_sha256(items))


def items_from(rows: Iterable[Mapping[str, object]], source: str) -> tuple[Item, ...]:
    """Items from rows with question and answer. Raises UsageError for rows that have none, and for no rows."""
    items = []
    for index, row in enumerate(rows):
        question, solution = row.get("question"), row.get("answer")
        if not isinstance(question, str) or not question.strip() or solution is None:
            raise UsageError(f"{source}: row {index + 1} has no question and answer; {_OTHERWISE}")
        try:
            items.append(item(index, question, str(solution)))
        except ValueError as error:
            raise UsageError(f"{source}: row {index + 1}: {error}; {_OTHERWISE}") from None
    if not items:
        raise UsageError(f"{source} has no items; {_OTHERWISE}")
    return tuple(items)


def _rows(file: Path | None) -> list[dict[str, object]]:
    """The rows as they stand; a local file's copy in the library's cache goes away with this call."""
    if file is not None and not (file.is_file() and file.stat().st_size):
        raise UsageError(f"--gsm8k-file {file} does not exist or is empty")
    import datasets  # noqa: PLC0415 - two seconds that only this gate pays

    with _quiet(datasets), tempfile.TemporaryDirectory() as cache:
        try:
            if file is None:
                loaded = datasets.load_dataset(HUB_NAME, "main", split="test")
            else:
                own = {"cache_dir": cache, "keep_in_memory": True}
                loaded = datasets.load_dataset("json", data_files=str(file), split="train", **own)
        except (*FAULTS, datasets.exceptions.DatasetsError) as error:
            cause = one_line(str(error.__cause__ or error))
            if file is None:
                raise UsageError(f"cannot get {HUB_NAME}: {cause}; {_OTHERWISE}") from None
            raise UsageError(f"--gsm8k-file {file} is no file of JSON lines: {cause}") from None
        rows: list[dict[str, object]] = loaded.to_list()
    return rows


@contextmanager
def _quiet(datasets: ModuleType) -> Iterator[None]:
    """Without the libraries' progress bars and log lines: a failure is one line, and it is ours."""
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    has_bars = not datasets.are_progress_bars_disabled()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if has_bars:
            datasets.enable_progress_bars()
