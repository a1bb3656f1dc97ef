"""`slo-bench compare`: two arms, interleaved blocks, one sentence with its interval."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from reports.compare import compare_note
from reports.compare_words import outlook_lines, sentence, spent_lines, table_lines, trend_lines
from reports.effect_document import EffectDocument
from reports.run_directory import EngineKind, read_document, to_json
from reports.spending import price_text
from slo_bench.bench import Load
from slo_bench.commands import load_line, marks, recorded, say_rows, warn_of_files
from slo_bench.compare.comparison import DOCUMENT, Watch, run_comparison
from slo_bench.compare.options import CompareOptions
from slo_bench.compare.plan import ComparisonPlan, comparison_plan
from slo_bench.compare.servers import LEAST_RAMP_S, CompareArm
from slo_bench.config import LoadOptions
from slo_bench.doctor.client_limit import client_limit
from slo_bench.engines import confirm, host_for
from slo_bench.environment import command_line
from slo_bench.modes import mode_named
from slo_bench.run import RunRecord, told
from slo_bench.store import RunStore, free_name, write_text
from slo_bench.surroundings import surroundings
from slo_bench.view import SweepView
from traffic.clock import running_clock
from traffic.errors import UsageError

NOTE = "effect.md"

ROOM_SHARE = 0.9
"""Of a GPU's memory, for all servers that stand on it side by side."""


def compare_arm(
    label: str, options: LoadOptions, changes: tuple[str, ...], say: Callable[[str], None], *, first_start: int = 0
) -> CompareArm:
    """An arm whose servers the options name. first_start: how many servers were used before."""
    return CompareArm(
        label=label,
        kind=options.engine_kind(),
        changes=changes,
        host=lambda start, log_path, own_pids: host_for(
            options, log_path=log_path, say=say, start=first_start + start, own_pids=own_pids
        ),
        around=surroundings(options),
    )


def compare_load(options: LoadOptions) -> Load:
    """The load that both arms get. The ramp is set once the servers are warm."""
    return Load(
        workload=options.the_workload(),
        length_scale=options.length_scale,
        seed=options.seed,
        slo=options.objectives(),
        ramp_s=LEAST_RAMP_S,
        bounds=mode_named("quick").bounds,
        arrivals=options.the_arrivals(),
        tokenizer=options.the_tokenizer(),
        workers=options.load_workers,
    )


def sharing(options: LoadOptions, servers: int, *, has_gpu: bool) -> LoadOptions:
    """The options of a vLLM that stands beside others on one GPU.

    Raises UsageError for one whose cache would be sized by what the others leave free, and for a fixed port.
    """
    if options.engine_kind() != "vllm":
        return options
    if options.port is not None:
        raise UsageError("--port names one port, and servers side by side need one each: leave it out")
    if not has_gpu or options.server_command is not None:
        return options
    given = {word.partition("=")[0].replace("_", "-") for word in options.vllm_arg}
    if options.kv_cache_memory_bytes is None and "--kv-cache-memory-bytes" not in given:
        raise UsageError(
            "--placement coresident needs --kv-cache-memory-bytes, like 12G: else each server takes the memory that "
            "the one before it left"
        )
    if options.gpu_memory_utilization is not None or "--gpu-memory-utilization" in given:
        return options
    share = math.floor(100 * ROOM_SHARE / servers) / 100
    return options.model_copy(update={"gpu_memory_utilization": share})


async def compare(options: CompareOptions) -> int:
    """`slo-bench compare`: 0 when concluded, whatever was found; 5 when it stays open or nothing can be compared."""
    arms = options.arms()
    load = compare_load(arms[0])
    plan = comparison_plan(options, load, arms[0].engine_kind(), allow_different_models=options.allow_different_models)
    if plan.placement == "coresident":
        arms = side_by_side(arms, 2 * plan.instances)
    label = options.label or free_name(options.runs_dir, "compare")
    store = RunStore(options.runs_dir / label)
    store.check_unused()
    words = marks(arms[0]) + ([] if options.concurrency is None else ["closed loop"])
    with SweepView(load.slo, marks=words) as view:
        _announce(options, arms, plan, label, view.say)
        if options.dry_run:
            return 0
        for arm in arms:
            confirm(arm, is_agreed=options.yes)
        document = await _run(options, arms, plan, store, view)
        for line in answer(document, store.directory):
            view.say(line)
    if options.json_:
        sys.stdout.write(to_json(document))
    return exit_code(document)


def side_by_side(arms: tuple[LoadOptions, LoadOptions], servers: int) -> tuple[LoadOptions, LoadOptions]:
    """Both arms' options for so many servers that are up at once. Raises UsageError as `sharing` does."""
    from slo_bench.hosts.gpu_memory import read_gpus  # noqa: PLC0415 - only where servers may share a GPU

    has_gpu = arms[0].engine_kind() == "vllm" and read_gpus() is not None
    a, b = (sharing(arm, servers, has_gpu=has_gpu) for arm in arms)
    return a, b


def _announce(
    options: CompareOptions,
    arms: tuple[LoadOptions, LoadOptions],
    plan: ComparisonPlan,
    label: str,
    say: Callable[[str], None],
) -> None:
    """What is about to happen, and what speaks against it."""
    load = plan.block.load
    labels = options.arm_labels
    say(f"{label}: {labels[1]} ({', '.join(_changes(options)) or 'the same'}) against {labels[0]}")
    say(plan.said())
    say(f"{plan.cost()}; {price_text(options.usd_per_hour, plan.longest_minutes)}")
    if arms[0].gpu_memory_utilization != options.gpu_memory_utilization:
        say(f"each server may have {arms[0].gpu_memory_utilization:.0%} of the GPU's memory")
    say(load_line(load, is_open=plan.block.rate_rps is not None))
    say_rows(load, plan.block.rate_rps, plan.block.window_s, say)
    if plan.block.rate_rps is not None and (limit := client_limit(arms[0], load, say)) is not None:
        limit.check(plan.block.rate_rps)
    warn_of_files(arms[0], load, plan.block.rate_rps, say)


def _changes(options: CompareOptions) -> tuple[str, ...]:
    urls = options.base_url[1:]
    return (*options.change, *(f"base_url={url}" for url in urls))


async def _run(
    options: CompareOptions,
    arms: tuple[LoadOptions, LoadOptions],
    plan: ComparisonPlan,
    store: RunStore,
    view: SweepView,
) -> EffectDocument:
    labels = options.arm_labels
    directory = store.directory / "compare" / f"{labels[0]}--{labels[1]}"
    sides = (
        compare_arm(labels[0], arms[0], (), view.say),
        compare_arm(labels[1], arms[1], _changes(options), view.say),
    )
    config = {**recorded(arms[0], plan.block.load.slo), "change": list(options.change), "placement": plan.placement}
    kind: EngineKind = sides[0].kind
    record = RunRecord(store.directory.name, kind, options.seed, config, kind="compare")
    started_utc = running_clock().utc().isoformat()
    with ExitStack() as stack:

        def begin() -> None:
            stack.enter_context(told(store, record, started_utc))

        return await compare_into(directory, plan, sides, view, on_ready=begin)


async def compare_into(
    directory: Path,
    plan: ComparisonPlan,
    arms: tuple[CompareArm, CompareArm],
    view: Watch,
    *,
    on_ready: Callable[[], object] = lambda: None,
) -> EffectDocument:
    """Compare, and write effect.json and its note; an invalid or interrupted comparison has them too."""
    try:
        return await run_comparison(plan, arms, directory, view, command=command_line(), on_ready=on_ready)
    finally:
        if (directory / DOCUMENT).exists():
            write_text(directory / NOTE, compare_note(read_document(directory / DOCUMENT, EffectDocument)))


def answer(document: EffectDocument, directory: Path) -> list[str]:
    """The last lines: the table, the sentence, what could have been seen, where the files are."""
    a, b = document.a.label, document.b.label
    return [
        *(table_lines(document) if document.pairs else []),
        sentence(document),
        *outlook_lines(document),
        *trend_lines(document),
        *spent_lines(document),
        *document.faults,
        *(f"not proven: {line}" for line in document.unproven),
        f"note: {directory / 'compare' / f'{a}--{b}' / NOTE}",
    ]


def exit_code(document: EffectDocument) -> int:
    """0 when concluded; 5 when unfinished or not comparable."""
    return 0 if document.outcome == "concluded" else 5
