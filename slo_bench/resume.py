"""Whether a stored run may go on: the same configuration on the same machine, or nothing is comparable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from reports.run_directory import RunDocument
from slo_bench.run import RunRecord
from traffic.errors import UsageError

_MAY_DIFFER = frozenset(("command", "resume", "yes", "dry_run", "runs_dir", "max_minutes", "text_salt"))
"""Options that do not change what is measured: how the command was typed, where files are, how long it may take.

The text's salt is drawn anew for each run, and must be: the server has seen the text of the first part.
"""

_MOST = 3


def check_same(stored: RunDocument, record: RunRecord, environment: Mapping[str, object]) -> None:
    """Raise UsageError, with the first differences, unless a run with this record may continue the stored one."""
    faults = [
        *_differences("", _config(stored.config), _config(record.config)),
        *_differences("", stored.environment, environment),
    ]
    if stored.engine != record.engine:
        faults.insert(0, f"engine was {stored.engine}, is {record.engine}")
    if faults:
        more = f" and {len(faults) - _MOST} more" if len(faults) > _MOST else ""
        raise UsageError(f"{stored.label} cannot be resumed: {'; '.join(faults[:_MOST])}{more}")


def _config(config: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in _MAY_DIFFER}


def _differences(where: str, before: object, now: object) -> Iterator[str]:
    """Each leaf that differs, by its path."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            yield from _differences(f"{where}.{key}" if where else str(key), before.get(key), now.get(key))
    elif json.dumps(before, default=str) != json.dumps(now, default=str):
        yield f"{where} was {json.dumps(before, default=str)}, is {json.dumps(now, default=str)}"
