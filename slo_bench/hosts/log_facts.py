"""What a vLLM server's log says of how it runs: from text to facts, without touching anything.

The wordings are those of vLLM 0.20.2 to 0.32.0, and older ones that differ (0.8.5, late 2025). A message counts only
where a log line begins with it, so that a prompt that the server echoes can pretend nothing. Hand in the text with its
line ends as they are: the carriage returns in it tell the lines of one message from the next message.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class MoeBackend:
    """A MoE kernel library that the server chose.

    name, kind: as logged, like TRITON and Fp8; a server with a draft model can have two. potential: what it chose
    from, in its order of preference; empty where the line does not say.
    """

    name: str
    kind: str
    potential: tuple[str, ...]
    process: str


@dataclass(frozen=True, slots=True)
class MoeLookup:
    """One look of a process for the tuned configuration of one MoE layer shape.

    used: the file that it read, None when it fell back to the default. asked: the paths where it then found nothing.
    Only global rank 0 logs a file that it read, but the first rank of every node logs a default. process, pid: "" and
    None where the line has no prefix; workers started by Ray share one name.
    """

    process: str
    pid: int | None
    used: str | None
    asked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockRefinement:
    """FP8 block scales cut finer to fit a shard: the file looked for is then named by `after`. shard_size: columns."""

    before: str
    after: str
    shard_size: int


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the log says; None, or empty for a collection, is what it does not say.

    Seconds and GiB are the largest single value of any process: the slowest worker decides when a server is ready.
    kv_cache_gib (per device), kv_cache_tokens and max_concurrency (requests of full length) are the smallest of any
    engine. max_num_seqs is logged only where it was given. capture_sizes: batch sizes of CUDA graphs in tokens, empty
    when none are captured. warnings: distinct, without process ids and times.
    """

    version: str | None
    attention_backends: tuple[str, ...]
    moe_backends: tuple[MoeBackend, ...]
    moe_lookups: tuple[MoeLookup, ...]
    block_refinement: BlockRefinement | None
    model_load_s: float | None
    model_load_gib: float | None
    compile_s: float | None
    graph_capture_s: float | None
    graph_capture_gib: float | None
    init_engine_s: float | None
    kv_cache_gib: float | None
    kv_cache_tokens: int | None
    max_concurrency: float | None
    chunked_prefill: bool | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    prefix_caching: bool | None
    async_scheduling: bool | None
    capture_sizes: tuple[int, ...] | None
    warnings: tuple[str, ...]
    is_ready: bool


@dataclass(frozen=True, slots=True)
class _Line:
    """A log line without its prefixes; continues: it goes on with the message of the line before."""

    text: str
    process: str = ""
    pid: int | None = None
    level: str | None = None
    at: str | None = None
    source: str = ""
    continues: bool = False


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_HEADER = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<at>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? "
    r"\[(?P<source>[^\]\s]*)\] ?"
)
_PROCESS = re.compile(r"\((?P<name>[^()]+?) pid=(?P<pid>\d{1,18})(?:, ip=[^()\s]*)?\) ?")
_DATE_TIME = re.compile(r"\d{4}-(\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_FOREIGN = re.compile(rf"\[?{_DATE_TIME.pattern}[^ \]]*\]? (?:- )?[A-Z]+ (?:- \S+ - \S+?: |\S+?: )?")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\]$")
_VERSION = re.compile(
    r"Initializing an? .*?LLM engine \(v([^)\s]+)\)|vLLM (?:API )?server version ([^\s,]+)|.*█\s+version (\S+)"
)
_ATTENTION = re.compile(
    r"Using (?:AttentionBackendEnum\.(\w+) backend|(\S+) attention backend out of|(.+?) backend on V1 engine)"
)
_MOE_BACKEND = re.compile(
    r"Using (?:'?(?P<name>[^']+?)'? (?P<kind>(?:W4A8 )?\w+) MoE backend(?: \([^)]*\))?"
    r"(?:\.| out of potential backends: \[(?P<potential>[^\]]*)\])|(?P<old>.+?) backend for (?P<old_kind>FP8) MoE)"
)
_MOE_FILE = re.compile(r"Using configuration from (.+) for MoE layer\b")
_MOE_DEFAULT = re.compile(r"Using default MoE config\b(?:.*?Config file not found at (?P<paths>.+))?")
_REFINED = re.compile(r"FP8 MoE block scales refined from (.+?) to (.+?) to fit .*?(\d{1,18})\.?$")
_MODEL = re.compile(r"Model loading took ([\d.]+) GiB(?: memory)? and ([\d.]+) seconds")
_COMPILE_S = re.compile(r"(?:\[[^\]]*\] )?torch\.compile (?:took|takes) ([\d.]+) s")
_GRAPHS = re.compile(r"Graph capturing finished in ([\d.]+) secs?(?:, took (-?[\d.]+) GiB)?")
_INIT = re.compile(r"init engine \(.*?\) took ([\d.]+) s")
_KV_GIB = re.compile(r"(?:Available KV cache memory:|Initial free memory .*?, reserved) ([\d.]+) GiB")
_KV_TOKENS = re.compile(r".*?\bKV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r".*?\bMaximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x")
_CHUNKED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,18})\b")
_ASYNC = re.compile(r"(?:Asynchronous scheduling is (enabled)|Async(?:hronous)? scheduling\b.*\bdisabled)")
_SETTINGS = re.compile(r"(?:non-default )?args: |Initializing an? .*?LLM engine \(")
_CAPTURE_SIZES = re.compile(r"[\"']cudagraph_capture_sizes[\"']: ?\[([\d, ]*)\]")
_READY = "Application startup complete."
_COMPILATION = re.compile(
    r"(?:\[[^\]]*\]:? )?(?:\S+ (?:\w+ )?JIT compilation|Starting torch\.compile|torch\.compile t|Compil(?:e|ing) |"
    r"Cache the graph|Dynamo bytecode|Capturing |Graph capturing|Autotun|AUTOTUNE |Triton autotuning|Tuning |"
    r"(?:Loading|Finished loading) JIT ops)"
)
_PROGRESS = re.compile(r":?\s+\d+%.*")
_PASSING = re.compile(r"(?<=\bpid[ =])\d+|\d\d:\d\d:\d\d(?:[.,]\d+)?")


def log_facts(text: str) -> LogFacts:
    """The facts of one server start. text: its whole log; a part of it yields the facts of that part."""
    lines = list(_lines(text))
    own = [line for line in lines if not line.continues]
    # What was asked for, and after it what the engine made of that: the last value of a setting is the one in force.
    settings = "\n".join(line.text for line in own if _SETTINGS.match(line.text))
    chunked = _numbers(own, _CHUNKED)
    scheduling = [match[1] is not None for match in _matches(own, _ASYNC)]
    sizes = _CAPTURE_SIZES.findall(settings)
    refined = next(_matches(own, _REFINED), None)
    attention = (match[match.lastindex or 0] for match in _matches(own, _ATTENTION))
    warned = (" ".join(_PASSING.sub("N", line.text).split()) for line in own if line.level == "WARNING")
    tokens = min(_numbers(own, _KV_TOKENS), default=None)
    return LogFacts(
        version=next((match[match.lastindex or 0] for match in _matches(lines, _VERSION)), None),
        attention_backends=tuple(dict.fromkeys(attention)),
        moe_backends=tuple(dict.fromkeys(_moe_backends(own))),
        moe_lookups=tuple(dict.fromkeys(_moe_lookups(own))),
        block_refinement=None if refined is None else BlockRefinement(refined[1], refined[2], int(refined[3])),
        model_load_s=max(_numbers(own, _MODEL, 2), default=None),
        model_load_gib=max(_numbers(own, _MODEL), default=None),
        compile_s=max(_numbers(own, _COMPILE_S), default=None),
        graph_capture_s=max(_numbers(own, _GRAPHS), default=None),
        graph_capture_gib=max(_numbers(own, _GRAPHS, 2), default=None),
        init_engine_s=max(_numbers(own, _INIT), default=None),
        kv_cache_gib=min(_numbers(own, _KV_GIB), default=None),
        kv_cache_tokens=None if tokens is None else int(tokens),
        max_concurrency=min(_numbers(own, _CONCURRENCY), default=None),
        chunked_prefill=True if chunked else _flag(settings, "(?:enable_chunked_prefill|chunked_prefill_enabled)"),
        max_num_batched_tokens=int(chunked[-1]) if chunked else _count(settings, "max_num_batched_tokens"),
        max_num_seqs=_count(settings, "max_num_seqs"),
        prefix_caching=_flag(settings, "enable_prefix_caching"),
        async_scheduling=scheduling[-1] if scheduling else _flag(settings, "async_scheduling"),
        capture_sizes=tuple(map(int, re.findall(r"\d{1,18}", sizes[-1]))) if sizes else None,
        warnings=tuple(dict.fromkeys(warned)),
        is_ready=any(not line.source and line.text.endswith(_READY) for line in lines),
    )


def compilations(text: str) -> tuple[str, ...]:
    """The compilations, autotunings and graph captures that a part of a log tells of, distinct, in their order.

    text: what the server wrote after it was ready. Most of these lines are written when the work is done.
    """
    told = (line.text for line in _lines(text) if not line.continues and _COMPILATION.match(line.text))
    return tuple(dict.fromkeys(_PROGRESS.sub("", each) for each in told))


def _lines(text: str) -> Iterator[_Line]:
    """The log's lines; a progress bar's states, which a carriage return parts, are lines of their own."""
    if text.count("\r\n") == text.count("\n"):  # written through a terminal, as by docker run -t
        text = text.replace("\r\n", "\n")
    before: _Line | None = None
    for physical in _ANSI.sub("", text).split("\n"):
        line = _Line("")
        for number, part in enumerate(physical.removesuffix("\r").split("\r")):
            line = _parse(part)
            # vLLM parts the lines of a message by "\r\n" and repeats the whole prefix.
            if number == 0 and before is not None and line.source and replace(before, text=line.text) == line:
                line = replace(line, continues=True)
            yield line
        before = replace(line, continues=False) if physical.endswith("\r") else None


def _parse(raw: str) -> _Line:
    """A line of any formatter. What stands before vLLM's own prefix (docker's, journald's) says nothing to us."""
    if raw.startswith("{") and (record := _json_line(raw)) is not None:
        return record
    process, pid = "", None
    if (header := _HEADER.search(raw)) is not None:
        for name in _PROCESS.finditer(raw, 0, header.start()):  # the last one wrote the line
            process, pid = name["name"], int(name["pid"])
        text = _REPEATED.sub("", raw[header.end() :]).rstrip()
        return _Line(text, process, pid, header["level"], header["at"], header["source"])
    while (prefix := _PROCESS.match(raw)) is not None:
        process, pid, raw = prefix["name"], int(prefix["pid"]), raw[prefix.end() :]
    if (foreign := _FOREIGN.match(raw)) is None:
        return _Line(raw.rstrip(), process, pid)
    return _Line(raw[foreign.end() :].rstrip(), process, pid, at=f"{foreign[1]} {foreign[2]}")


def _json_line(raw: str) -> _Line | None:
    """A line of the JSON formatter of 0.32.0 and later; None when it is none."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("message"), str):
        return None
    at = _DATE_TIME.match(str(record.get("asctime", "")))
    pid = record.get("process")
    return _Line(
        text=_REPEATED.sub("", record["message"].partition("\n")[0].rstrip()),
        process=str(record.get("processName", "")),
        pid=pid if isinstance(pid, int) else None,
        level=str(record.get("levelname", "INFO")),
        at=None if at is None else f"{at[1]} {at[2]}",
    )


def _matches(lines: Iterable[_Line], pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    return (match for line in lines if (match := pattern.match(line.text)) is not None)


def _numbers(lines: Iterable[_Line], pattern: re.Pattern[str], group: int = 1) -> list[float]:
    found = []
    for match in _matches(lines, pattern):
        with suppress(AttributeError, ValueError):  # an absent part, or dots that are no number
            found.append(float(match[group].replace(",", "")))
    return [number for number in found if math.isfinite(number)]


def _moe_backends(lines: Iterable[_Line]) -> Iterator[MoeBackend]:
    for line in lines:
        if (match := _MOE_BACKEND.match(line.text)) is not None:
            potential = re.findall(r"'([^']*)'", match["potential"] or "")
            kind = match["kind"] or match["old_kind"]
            yield MoeBackend(match["name"] or match["old"], kind, tuple(potential), line.process)


def _moe_lookups(lines: Iterable[_Line]) -> Iterator[MoeLookup]:
    for line in lines:
        if (read := _MOE_FILE.match(line.text)) is not None:
            yield MoeLookup(line.process, line.pid, used=read[1])
        elif (default := _MOE_DEFAULT.match(line.text)) is not None:
            yield MoeLookup(line.process, line.pid, used=None, asked=_paths((default["paths"] or "").strip()))


def _paths(text: str) -> tuple[str, ...]:
    """The candidates of a warning: joined by ", " since 2026, a Python list in late 2025, a single one before."""
    if text.startswith("[") and text.endswith("]"):
        return tuple(single or double for single, double in re.findall(r"'([^']*)'|\"([^\"]*)\"", text))
    return tuple(path for path in re.split(r"(?<=\.json), ", text) if path)


def _flag(text: str, name: str) -> bool | None:
    """The last value of a flag, as vLLM prints a configuration (name=True) or arguments ('name': True)."""
    said = re.findall(rf"\b{name}['\"]?(?:: |=)(True|False)\b", text)
    return said[-1] == "True" if said else None


def _count(text: str, name: str) -> int | None:
    said = re.findall(rf"\b{name}['\"]?(?:: |=)(\d{{1,18}})\b", text)
    return int(said[-1]) if said else None
