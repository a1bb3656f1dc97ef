"""In which facts two servers differ: what was meant to differ, and what was not."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from reports.effect_document import DifferenceRow
from reports.run_directory import EngineDocument, RunDocument

_OF_ONE_START = frozenset(
    (
        *("pid", "url", "start", "ready_s", "load_s", "compile_s", "graphs_s", "gpu_memory_before_mib"),
        *("model_load_s", "model_load_gib", "graph_capture_s", "graph_capture_gib", "init_engine_s"),
        *("kv_cache_gib", "max_concurrency", "is_ready", "warnings"),
    )
)
"""Facts that differ between any two starts: they say nothing of what a server is."""

_ADDRESS = frozenset(("--port", "--host"))


def differences(a: EngineDocument, b: EngineDocument) -> list[DifferenceRow]:
    """The facts that differ, by name; a command is compared word by word, without where it listens."""
    left, right = dict(server_facts(a)), dict(server_facts(b))
    return [
        DifferenceRow(what=what, a=left.get(what), b=right.get(what))
        for what in sorted(left.keys() | right.keys())
        if left.get(what) != right.get(what)
    ]


def machine_differences(a: RunDocument, b: RunDocument) -> list[DifferenceRow]:
    """In what the machines differ on which two runs took place, and the client's software, by name."""
    left, right = (dict(machine_facts(run)) for run in (a, b))
    return [
        DifferenceRow(what=what, a=left.get(what), b=right.get(what))
        for what in sorted(left.keys() | right.keys())
        if left.get(what) != right.get(what)
    ]


def machine_facts(run: RunDocument) -> Iterator[tuple[str, str]]:
    """Name and value of each fact that says on what machine, with what software, a run took place."""
    return _flat("machine", run.environment)


def server_facts(engine: EngineDocument) -> Iterator[tuple[str, str]]:
    """Name and value of each fact that says what a server is; a command by its options."""
    for name in ("model", "version", "max_model_len"):
        value = getattr(engine, name)
        if value is not None:
            yield name, str(value)
    yield "takes_forced_length", str(engine.takes_forced_length)
    for name, value in engine.details.items():
        if name == "command" and isinstance(value, str):
            yield from _options(value)
        else:
            yield from _flat(name, value)


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if value is None or name.rpartition(".")[2] in _OF_ONE_START:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield name, ", ".join(str(each) for each in value)
    else:
        yield name, str(value)


def _options(command: str) -> Iterator[tuple[str, str]]:
    """The words of a command, each option with its value."""
    words = shlex.split(command)
    rest: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        option, equals, value = word.partition("=")
        index += 1
        if not word.startswith("--"):
            rest.append(word)
            continue
        if not equals and index < len(words) and not words[index].startswith("-"):
            value = words[index]
            index += 1
        if option not in _ADDRESS:
            yield f"command {option}", value or "given"
    yield "command", shlex.join(rest)
