"""Whether a stored run may go on: the same configuration on the same machine, or nothing is comparable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from gates.slo import Objective
from reports.run_directory import RunDocument, read_document
from slo_bench.earlier import Earlier, read_earlier
from slo_bench.environment import environment
from slo_bench.run import RunRecord
from slo_bench.store import RunStore
from traffic.errors import UsageError

_MAY_DIFFER = frozenset(
    ("command", "resume", "yes", "dry_run", "runs_dir", "label", "max_minutes", "text_salt", "usd_per_hour")
)
"""Options that do not change what is measured: how the command was typed, where files are, how long it may take.

The text's salt is drawn anew for each run, and must be: the server has seen the text of the first part.
"""

_MOST = 3


def earlier_part(store: RunStore, record: RunRecord, slo: Sequence[Objective]) -> Earlier | None:
    """What a sweep's directory holds; None where it stopped before its engine answered, so that nothing was measured.

    Raises UsageError where there is nothing to resume, for another kind of directory, for a run with another
    configuration or on another machine, and for files that cannot be read.
    """
    return None if stored_run(store, record) is None else read_earlier(store.directory, slo)


def stored_run(store: RunStore, record: RunRecord) -> RunDocument | None:
    """The run of the same configuration that a directory holds; None and UsageError as `earlier_part`."""
    directory = store.directory
    if not directory.exists():
        raise UsageError(f"there is nothing to resume in {directory}: leave --resume out")
    if not store.has_begun:
        if store.is_unused():
            return None
        remedy = "slo-bench experiment PLAN.toml --resume" if _is_experiment(store) else "choose another --label"
        raise UsageError(f"{directory} is no {record.kind}, it has no run.json: {remedy}")
    stored = read_document(directory / "run.json", RunDocument)
    if stored.kind != record.kind:
        remedy = "which cannot be resumed" if stored.kind == "gate" else f"slo-bench {stored.kind} --resume goes on"
        raise UsageError(f"{directory} is no {record.kind} but a {stored.kind}, {remedy}")
    check_same(stored, record, environment())
    return stored


def taken_up(store: RunStore, earlier: Earlier | None, say: Callable[[str], None]) -> Earlier | None:
    """The part that a new server start goes on from; None for a run that begins.

    The simulated engine is part of what is reproduced, its noise and its drift too: its run begins again and comes to
    the same bytes.
    """
    if earlier is None:
        return None
    if earlier.run.engine == "simulated":
        say("runs again from its start: a simulated run comes to the same bytes")
        store.begin_again()
        return None
    windows = len(list(earlier.windows()))
    say(f"goes on after {windows} windows, with server start {earlier.server_start + 1} of this run")
    return earlier


def _is_experiment(store: RunStore) -> bool:
    return any((store.directory / name).exists() for name in ("experiment.json", "arms"))


def check_unused(store: RunStore, record: RunRecord) -> None:
    """Raise UsageError when the directory is taken; it names --resume where that would go on with this very run."""
    if store.has_begun and _is_unfinished(store, record):
        raise UsageError(
            f"{store.directory} holds an unfinished run of this configuration: go on with --resume, or choose another "
            "--label"
        )
    store.check_unused()


def _is_unfinished(store: RunStore, record: RunRecord) -> bool:
    try:
        stored = read_document(store.directory / "run.json", RunDocument)
        check_same(stored, record, environment())
    except UsageError:
        return False
    return stored.kind == record.kind and stored.status != "done"


def check_same(stored: RunDocument, record: RunRecord, environment: Mapping[str, object]) -> None:
    """Raise UsageError, with the first differences, unless a run with this record may continue the stored one."""
    faults = [
        *_differences("", _config(stored.config), _config(record.config)),
        *_differences("", stored.environment, environment),
    ]
    if stored.engine != record.engine:
        faults.insert(0, f"engine was {stored.engine}, is {record.engine}")
    _refuse(stored.label, faults)


def check_same_design(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raise UsageError, with the first differences, unless a comparison of this design may go on."""
    _refuse(what, list(_differences("", before, now)))


def _refuse(what: str, faults: Sequence[str]) -> None:
    if faults:
        more = f" and {len(faults) - _MOST} more" if len(faults) > _MOST else ""
        raise UsageError(f"{what} cannot be resumed: {'; '.join(faults[:_MOST])}{more}")


def _config(config: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in _MAY_DIFFER}


def _differences(where: str, before: object, now: object) -> Iterator[str]:
    """Each leaf that differs, by its path."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            yield from _differences(f"{where}.{key}" if where else str(key), before.get(key), now.get(key))
    elif json.dumps(before, default=str) != json.dumps(now, default=str):
        yield f"{where} was {json.dumps(before, default=str)}, is {json.dumps(now, default=str)}"
