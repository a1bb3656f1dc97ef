"""The commands: from options to files and the last lines on the terminal."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from gates.capacity import CapacityVerdict, Strategy, rate_text
from gates.slo import Objective
from gates.verdict import ProbeVerdict
from reports.rows import probe_row
from reports.run_directory import ProbeRow, SweepDocument, to_json
from reports.spending import price_text, spending_lines, window_power_line
from slo_bench.accuracy.after_sweep import after_sweep, gate_line, sweep_gate
from slo_bench.bench import Bench, Load, check_lengths
from slo_bench.config import LoadOptions, ProbeOptions, SweepOptions
from slo_bench.doctor.client_limit import client_limit
from slo_bench.engine_options import EngineOptions
from slo_bench.engines import confirm, host_for
from slo_bench.environment import command_line
from slo_bench.load_workers import load_workers
from slo_bench.lock import held
from slo_bench.modes import mode_named
from slo_bench.open_files import file_warning
from slo_bench.passport import data_checksums
from slo_bench.power.measuring import measuring
from slo_bench.power.source import power_source
from slo_bench.resume import check_unused, earlier_part, taken_up
from slo_bench.run import RunRecord, run_sweep
from slo_bench.scrape import watching
from slo_bench.stopped import resumable
from slo_bench.store import RunStore, free_name, write_text
from slo_bench.surroundings import surroundings
from slo_bench.sweep import SweepPlan
from slo_bench.traffic_options import TrafficOptions
from slo_bench.view import SweepView, window_line
from traffic.chat_dataset import ChatDataset
from traffic.errors import UsageError
from traffic.file_limit import raise_file_limit

SMOKE_MARK = "smoke: not a measurement"
TALK_MARK = "closed loop within conversations"


def marks(options: EngineOptions, *, is_smoke: bool = False) -> list[str]:
    """What must stand on every line."""
    simulated = ["SIMULATED"] if options.engine_kind() == "simulated" else []
    talks = isinstance(options, LoadOptions) and options.workload == "multi-turn"
    return simulated + ([SMOKE_MARK] if is_smoke else []) + ([TALK_MARK] if talks else [])


def sweep_plan(options: SweepOptions) -> SweepPlan:
    """The plan that the options describe. Raises UsageError for an impossible one."""
    mode = options.the_mode()
    label = options.label or free_name(options.runs_dir, "sweep")
    load = Load(
        workload=options.the_workload(),
        length_scale=options.length_scale,
        seed=options.seed,
        slo=mode.slo(options.objectives()),
        ramp_s=mode.ramp_s,
        bounds=mode.bounds,
        arrivals=options.the_arrivals(),
        tokenizer=options.the_tokenizer(),
        workers=options.load_workers,
        ray_address=options.ray_address,
    )
    check_lengths(load, options.model or "", options.max_model_len)
    minutes = options.max_minutes if options.max_minutes is not None else mode.max_minutes
    return SweepPlan(label=label, mode=mode, load=load, search=options.search(), max_minutes=minutes)


def load_line(load: Load, *, is_open: bool = True) -> str:
    """What is sent and when, in one line."""
    arrivals = f", {load.arrivals.name}" if is_open else ""
    return f"load: {load.workload.name}{arrivals}"


def say_rows(load: Load, rate_rps: float | None, duration_s: float, say: Callable[[str], None]) -> None:
    """Say how many rows of a data set a window of an open loop needs, and how many there are."""
    if rate_rps is not None and isinstance(load.workload, ChatDataset):
        say(load.workload.needed(round(rate_rps * load.longest_probe_s(duration_s))))


def forecast(plan: SweepPlan, usd_per_hour: float | None = None) -> str:
    """What is about to be measured, in one line. usd_per_hour: None where the price is not known."""
    slo = ", ".join(f"p{each.percentile} {each.metric} ≤ {each.limit_s * 1000:g} ms" for each in plan.load.slo)
    up, down = (plan.longest_minutes(start_passes=passes) for passes in (True, False))
    minutes = f"{up:.0f} minutes"
    if round(down) > round(up):
        minutes += f" ({down:.0f} if {rate_text(plan.search.start_rps)} req/s fails)"
    return (
        f"{plan.label}: {plan.load.workload.name}, {slo}; at most {plan.most_windows} windows of "
        f"{plan.mode.duration_s:g} s in {minutes}; {price_text(usd_per_hour, max(up, down))}"
    )


def warn_of_files(options: EngineOptions, load: Load, rate_rps: float | None, say: Callable[[str], None]) -> None:
    """Say so where the limit on open files, raised as far as it goes, may not carry an open loop over HTTP.

    The nodes of a cluster have limits of their own, which nobody here knows.
    """
    if options.engine_kind() == "simulated" or rate_rps is None or load.ray_address is not None:
        return
    warning = file_warning(load, rate_rps, raise_file_limit())
    if warning is not None:
        say(warning)


async def sweep(options: SweepOptions) -> int:
    """`slo-bench sweep`: 0 with a capacity, else as `exit_code` says."""
    plan = sweep_plan(options)
    store = RunStore(options.runs_dir / plan.label)
    with nullcontext() if options.dry_run else held(store.directory, is_new=not options.resume):
        return await _sweep(options, plan, store)


async def _sweep(options: SweepOptions, plan: SweepPlan, store: RunStore) -> int:
    record = run_record(plan.label, options, plan.load.slo)
    earlier = None
    if options.resume:
        earlier = earlier_part(store, record, plan.load.slo)
    else:
        check_unused(store, record)
    with SweepView(plan.load.slo, marks=marks(options, is_smoke=plan.mode.is_smoke)) as view:
        document = None if earlier is None else earlier.answer
        if document is None:
            plan = _announced(options, plan, view)
            if options.dry_run:
                return 0
            gate = sweep_gate(options)
            confirm(options, is_agreed=options.yes)
            earlier = taken_up(store, earlier, view.say)
            start = 0 if earlier is None else earlier.server_start
            host = host_for(options, log_path=store.directory / "engine.log", say=view.say, start=start)
            check, then = (None, None) if gate is None else after_sweep(gate, view.say)
            with resumable(store.directory / "run.json", [] if options.label else ["--label", plan.label]):
                document = await run_sweep(
                    host, plan, store, view, record=record, earlier=earlier, check=check, then=then
                )
        else:
            view.say(f"{plan.label} is done: nothing is left to measure")
        for line in answer(document, store):
            view.say(line)
    return exit_code(document)


def _announced(options: SweepOptions, plan: SweepPlan, view: SweepView) -> SweepPlan:
    """Say what is about to happen; the plan with no rate above what this client can send."""
    limit = client_limit(options, plan.load, view.say)
    plan = plan if limit is None else plan.within(limit)
    view.say(forecast(plan, options.usd_per_hour))
    view.say(load_line(plan.load))
    say_rows(plan.load, plan.search.start_rps, plan.mode.duration_s, view.say)
    if (line := gate_line(options)) is not None:
        view.say(line)
    warn_of_files(options, plan.load, plan.search.ceiling_rps, view.say)
    return plan


def run_record(label: str, options: EngineOptions, slo: Sequence[Objective]) -> RunRecord:
    """What run.json says of a run with these options."""
    seed = int(getattr(options, "seed", 0))
    return RunRecord(label, options.engine_kind(), seed, recorded(options, slo), around=surroundings(options))


def recorded(options: EngineOptions, slo: Sequence[Objective]) -> dict[str, object]:
    """The options as they are written down: no secret, and the command that was typed."""
    values = options.model_dump(mode="json", exclude={"api_key", "header", "resume"})
    names = [header.partition(":")[0] for header in options.header]
    written = {**values, "header_names": names, "objectives": [str(each) for each in slo], "command": command_line()}
    return {**written, "data_checksums": data_checksums(options)} if isinstance(options, TrafficOptions) else written


def answer(document: SweepDocument, store: RunStore) -> list[str]:
    """The last lines of a sweep: capacity with repeats and resolution, what limited it, where the files are."""
    rate = "none" if document.capacity_rps is None else f"{rate_text(document.capacity_rps)} req/s"
    ends = {rate_text(each) for each in (document.capacity_rps, document.first_failed_rps) if each is not None}
    tallies = "; ".join(text for text in document.tallies if text.partition(":")[0] in ends)
    facts = [part for part in (tallies, _resolution(document)) if part]
    go_on = "raise --max-request-rate to go on"
    if document.client_limit_rps is not None:
        go_on = "the client's ceiling ended the search, not the server: give more --load-workers"
    first = {
        CapacityVerdict.FOUND: f"capacity: {rate}",
        CapacityVerdict.AT_LEAST: f"capacity: at least {rate}; everything passed, {go_on}",
        CapacityVerdict.NONE: "capacity: none; no rate passed",
        CapacityVerdict.UNFINISHED: f"capacity: unfinished, {rate} so far; raise --max-minutes",
        CapacityVerdict.GATE_FAILED: "capacity: none claimed; the accuracy gate failed, see gates.json",
        CapacityVerdict.GATE_INCONCLUSIVE: "capacity: none claimed; the accuracy gate is inconclusive, see gates.json",
    }[document.verdict]
    limited = "nothing failed" if document.first_failed_rps is None else f"limited by {document.limited_by}"
    if document.first_failed_rps is not None:
        limited += f" at {rate_text(document.first_failed_rps)} req/s"
    lines = [f"{first}  ({'; '.join(facts)})" if facts else first, *_estimate(document), limited]
    lines += _why(document)
    if document.warm_up is not None and not document.warm_up.is_warm:
        lines.append("not warm: warm-up blocks did not agree within 3 %, the first windows may be too slow")
    starts = {row.server_start for row in document.probes}
    if len(starts) > 1:
        lines.append(f"resumed: windows come from {len(starts)} starts of the server, each with an offset of its own")
    if document.contradictions_rps:
        rates = ", ".join(rate_text(each) for each in document.contradictions_rps)
        lines.append(f"contradiction: {rates} req/s passed although a lower rate failed")
    if document.strategy is Strategy.ECONOMICAL and (mixed := _mixed(document)):
        lines.append(f"windows of one rate contradict each other: {'; '.join(mixed)}")
    return [*lines, *spending_lines(store.directory, document), f"files: {store.directory}"]


def _estimate(document: SweepDocument) -> list[str]:
    """The capacity that the latencies of all windows show, and what is proven; nothing where they cannot say."""
    parts = []
    if document.capacity_estimate_rps is not None and document.capacity_interval_rps is not None:
        low, high = (rate_text(each) for each in document.capacity_interval_rps)
        parts.append(f"estimate {rate_text(document.capacity_estimate_rps)} req/s (90 %: {low} to {high})")
    if document.proven_pass_rps is not None:
        parts.append(f"a pass is proven at {rate_text(document.proven_pass_rps)}")
    if document.proven_fail_rps is not None:
        parts.append(f"a fail is proven at {rate_text(document.proven_fail_rps)}")
    return ["; ".join(parts)] if parts else []


def _why(document: SweepDocument) -> list[str]:
    """The cause at the first failed rate, with its deciding evidence and the class of the mix that it hit most."""
    rows = [row for row in document.causes if row.rate_rps == document.first_failed_rps and row.kind == document.cause]
    if not rows:
        return []
    evidence = rows[0].evidence[:1] or [f"missing: {each}" for each in rows[0].missing[:1]]
    return [f"cause: {': '.join([rows[0].kind, *evidence])}", *(f"hit most: {each}" for each in rows[0].classes[:1])]


def _mixed(document: SweepDocument) -> list[str]:
    """Rates at which windows passed and failed, other than the ends of the bracket, which are printed anyway."""
    seen: dict[float, list[bool]] = {}
    for row in document.probes:
        if row.purpose == "search" and row.outcome is not None and row.rate_rps is not None:
            seen.setdefault(row.rate_rps, []).append(row.outcome.passed)
    ends = (document.capacity_rps, document.first_failed_rps)
    return [
        f"{rate_text(rate_rps)}: {sum(passed)} of {len(passed)}{', unclear' * (rate_rps in document.unclear_rps)}"
        for rate_rps, passed in sorted(seen.items())
        if rate_rps not in ends and 0 < sum(passed) < len(passed)
    ]


def _resolution(document: SweepDocument) -> str:
    share = document.resolution_share
    return "" if share is None else f"resolution {share:.1%}".replace("%", " %")


def exit_code(document: SweepDocument) -> int:
    """0 with an answer, 1 when nothing passed or the gate failed, 3 when that is inconclusive, 5 when time ran out."""
    codes = {
        CapacityVerdict.NONE: 1,
        CapacityVerdict.GATE_FAILED: 1,
        CapacityVerdict.GATE_INCONCLUSIVE: 3,
        CapacityVerdict.UNFINISHED: 5,
    }
    return codes.get(document.verdict, 0)


async def _one_window(options: ProbeOptions, load: Load, view: SweepView) -> tuple[ProbeVerdict, ProbeRow]:
    """Measure what `slo-bench probe` asks for; a server started for it logs beside the output, else nowhere lasting."""
    with tempfile.TemporaryDirectory(prefix="slo-bench-") as scratch:
        log_path = Path(scratch) / "engine.log" if options.output is None else options.output.with_suffix(".engine.log")
        host = host_for(options, log_path=log_path, say=view.say)
        async with (
            measuring(power_source(options)) as power,
            host as running,
            watching(running.look()) as scraper,
            load_workers(running, load.workers, load.ray_address) as workers,
        ):
            power.server_is_up()
            bench = await Bench.prepare(running, load, scraper, workers, power=power)
            if running.facts.kind == "attached":  # a probe has no engine.json that would tell
                view.say(f"--text-salt {running.facts.start} sends these prompts again")
            rate_rps = options.the_rate_rps()
            if rate_rps is None:
                verdict = await bench.closed_loop(options.concurrency or 1, options.repeat, options.duration)
            else:
                verdict = await bench.window(
                    rate_rps, options.repeat, options.duration, can_end_early=False, observe=view.progress
                )
            row = probe_row(verdict, purpose="single", requests_file=None, power=bench.power(verdict))
            view.say(window_line(verdict, row))
            view.say(window_power_line(row, power.document()))
            return verdict, row


async def probe(options: ProbeOptions) -> int:
    """`slo-bench probe`: one window; 0 when it passed, 1 when it failed, 3 when it is invalid."""
    load = Load(
        workload=options.the_workload(),
        length_scale=options.length_scale,
        seed=options.seed,
        slo=options.objectives(),
        ramp_s=options.ramp,
        bounds=mode_named("quick").bounds,
        arrivals=options.the_arrivals(),
        tokenizer=options.the_tokenizer(),
        workers=options.load_workers,
        ray_address=options.ray_address,
    )
    check_lengths(load, options.model or "", options.max_model_len)
    if options.output is not None and options.output.is_dir():
        raise UsageError(f"--output {options.output} is a folder")
    confirm(options, is_agreed=options.yes)
    words = marks(options) + ([] if options.concurrency is None else ["closed loop"])
    with SweepView(load.slo, marks=words) as view:
        view.say(load_line(load, is_open=options.concurrency is None))
        rate_rps = options.the_rate_rps()
        say_rows(load, rate_rps, options.duration, view.say)
        if rate_rps is not None and (limit := client_limit(options, load, view.say)) is not None:
            limit.check(rate_rps)
        warn_of_files(options, load, rate_rps, view.say)
        if options.usd_per_hour is not None:
            view.say(f"cost: {price_text(options.usd_per_hour, load.longest_probe_s(options.duration) / 60)}")
        verdict, row = await _one_window(options, load, view)
    if options.output is not None:
        write_text(options.output, to_json(row))
    if options.json_:
        sys.stdout.write(to_json(row))
    if verdict.outcome is None:
        return 3
    return 0 if verdict.outcome.passed else 1
