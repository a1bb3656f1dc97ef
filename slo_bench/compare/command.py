"""`slo-bench compare`: two arms, interleaved blocks, one sentence with its interval."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from reports.compare import compare_note
from reports.compare_words import outlook_lines, sentence, spent_lines, table_lines, trend_lines
from reports.effect_document import EffectDocument
from reports.run_directory import RunDocument, read_document, to_json
from reports.spending import price_text
from slo_bench.bench import Load, check_lengths
from slo_bench.commands import load_line, marks, recorded, say_rows, warn_of_files
from slo_bench.compare.comparison import Watch, run_comparison
from slo_bench.compare.earlier import DOCUMENT, EarlierPart, read_part
from slo_bench.compare.options import CompareOptions
from slo_bench.compare.plan import ComparisonPlan, comparison_plan
from slo_bench.compare.servers import LEAST_RAMP_S, CompareArm
from slo_bench.config import LoadOptions
from slo_bench.doctor.client_limit import client_limit
from slo_bench.earlier import LATER_STARTS
from slo_bench.engines import confirm, expected_moe_config, host_for
from slo_bench.environment import command_line
from slo_bench.lock import held
from slo_bench.modes import mode_named
from slo_bench.resume import check_unused, stored_run
from slo_bench.run import RunRecord, told
from slo_bench.stopped import resumable
from slo_bench.store import RunStore, free_name, write_text
from slo_bench.surroundings import surroundings
from slo_bench.view import SweepView
from traffic.clock import running_clock
from traffic.errors import UsageError

NOTE = "effect.md"
COMPARISONS = "compare"
"""The folder of comparisons in a run directory."""

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
    load = Load(
        workload=options.the_workload(),
        length_scale=options.length_scale,
        seed=options.seed,
        slo=options.objectives(),
        ramp_s=LEAST_RAMP_S,
        bounds=mode_named("quick").bounds,
        arrivals=options.the_arrivals(),
        tokenizer=options.the_tokenizer(),
        workers=options.load_workers,
        ray_address=options.ray_address,
    )
    check_lengths(load, options.model or "", options.max_model_len)
    return load


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
    for arm in arms:
        check_lengths(load, arm.model or "", arm.max_model_len)
        expected_moe_config(arm)
    plan = comparison_plan(options, load, arms[0].engine_kind(), allow_different_models=options.allow_different_models)
    if plan.placement == "coresident":
        arms = side_by_side(arms, plan.servers)
    store = RunStore(options.runs_dir / (options.label or free_name(options.runs_dir, "compare")))
    with nullcontext() if options.dry_run else held(store.directory, is_new=not options.resume):
        return await _compare(options, arms, plan, store)


async def _compare(
    options: CompareOptions, arms: tuple[LoadOptions, LoadOptions], plan: ComparisonPlan, store: RunStore
) -> int:
    record = _record(options, arms, plan, store.directory.name)
    stored = None
    if options.resume:
        stored = stored_run(store, record)
    else:
        check_unused(store, record)
    slo = plan.block.load.slo
    words = marks(arms[0]) + ([] if options.concurrency is None else ["closed loop"])
    with SweepView(slo, marks=words) as view:
        earlier = None if stored is None else read_part(_folder(options, store), plan)
        document = earlier.answer if earlier is not None and stored is not None and stored.status == "done" else None
        if document is None:
            _announce(options, arms, plan, store.directory.name, view.say)
            if options.dry_run:
                return 0
            for arm in arms:
                confirm(arm, is_agreed=options.yes)
            with resumable(store.directory / "run.json", [] if options.label else ["--label", store.directory.name]):
                document = await _run(options, arms, plan, store, view, record=record, stored=stored, earlier=earlier)
        else:
            view.say(f"{store.directory.name} is done: nothing is left to measure")
        for line in answer(document, store.directory):
            view.say(line)
    if options.json_:
        sys.stdout.write(to_json(document))
    return exit_code(document)


def _folder(options: CompareOptions, store: RunStore) -> Path:
    """Where the comparison lies in its run directory."""
    return store.directory / COMPARISONS / "--".join(options.arm_labels)


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


def _record(
    options: CompareOptions, arms: tuple[LoadOptions, LoadOptions], plan: ComparisonPlan, label: str
) -> RunRecord:
    """What run.json says: arm A's options, what is different in arm B, and the design."""
    arm_b = {
        "change": list(options.change),
        "base_urls": list(options.base_url),
        "allow_different_models": options.allow_different_models,
    }
    named = {"labels": options.labels, "placement": plan.placement, "max_minutes": plan.max_minutes}
    config = {**recorded(arms[0], plan.block.load.slo), **arm_b, **named, "design": plan.design()}
    return RunRecord(label, arms[0].engine_kind(), options.seed, config, kind="compare")


async def _run(
    options: CompareOptions,
    arms: tuple[LoadOptions, LoadOptions],
    plan: ComparisonPlan,
    store: RunStore,
    view: SweepView,
    *,
    record: RunRecord,
    stored: RunDocument | None,
    earlier: EarlierPart | None,
) -> EffectDocument:
    """Begin, or go on with what is `stored`; run.json tells how it ended."""
    if stored is not None and stored.engine == "simulated":
        # Its noise and its drift are part of what is reproduced, so all of it runs again.
        view.say("runs again from its start: a simulated run comes to the same bytes")
        shutil.rmtree(store.directory / COMPARISONS, ignore_errors=True)
        stored = earlier = None
    labels, first_start = options.arm_labels, 0 if earlier is None else LATER_STARTS * earlier.number
    sides = (
        compare_arm(labels[0], arms[0], (), view.say, first_start=first_start),
        compare_arm(labels[1], arms[1], _changes(options), view.say, first_start=first_start),
    )
    now_utc = running_clock().utc().isoformat()
    telling = told(store, record, now_utc)
    with ExitStack() as stack:
        if stored is not None:
            record = replace(record, config=stored.config)
            resumed_utc = [*stored.resumed_utc, now_utc]
            stack.enter_context(told(store, record, stored.started_utc, resumed_utc))
        return await compare_into(
            _folder(options, store),
            plan,
            sides,
            view,
            on_ready=lambda: None if stored is not None else stack.enter_context(telling),
            earlier=earlier,
        )


async def compare_into(
    directory: Path,
    plan: ComparisonPlan,
    arms: tuple[CompareArm, CompareArm],
    view: Watch,
    *,
    on_ready: Callable[[], object] = lambda: None,
    earlier: EarlierPart | None = None,
) -> EffectDocument:
    """Compare, and write effect.json and its note; an invalid or interrupted comparison has them too.

    earlier: what the directory holds; a comparison that came to its end is taken as it is.
    """
    try:
        if earlier is not None and earlier.answer is not None:
            return earlier.answer
        return await run_comparison(
            plan, arms, directory, view, command=command_line(), on_ready=on_ready, earlier=earlier
        )
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
        f"note: {directory / COMPARISONS / f'{a}--{b}' / NOTE}",
    ]


def exit_code(document: EffectDocument) -> int:
    """0 when concluded; 5 when unfinished or not comparable."""
    return 0 if document.outcome == "concluded" else 5
