"""Where and on what it ran, in what the arms differ, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator

from reports import numbers, tables
from reports.arms import Arm
from reports.end_to_end import gpus_of
from reports.markdown import bullets, code, details, escape, heading, table
from reports.page import Page
from reports.passport import server_facts
from reports.run_directory import Json
from reports.spending import read_by
from reports.starts import server_starts


def environment(page: Page) -> Iterator[str]:
    """Engines, machine and settings; what differs stands in the open, what is shared is folded away."""
    experiment, arms = page.experiment, page.experiment.arms
    yield heading("Environment", 2)
    yield bullets([_engine_line(arm) for arm in arms])
    started, ended = experiment.document.started_utc, experiment.document.ended_utc
    yield f"Started {escape(started)}, {f'ended {escape(ended)}' if ended else 'not ended yet'}."
    differs = tables.differences(arms, _settings) if len(arms) > 1 else None
    if differs is not None:
        yield "Differences between the arms:"
        yield differs
    elif len(arms) > 1:
        yield "The recorded settings of all arms are the same."
    shared = tables.common(arms, _settings)
    if shared is not None:
        yield details("Settings that all arms share", shared)


def _settings(arm: Arm) -> Json:
    """What was set and found; without what differs between any two starts of one server."""
    return {"config": arm.run.config, "environment": arm.run.environment, "engine": dict(server_facts(arm.engine))}


def _engine_line(arm: Arm) -> str:
    engine = arm.engine
    kind = "SIMULATED engine" if arm.is_simulated else f"engine {engine.kind}"
    version = "version not known" if engine.version is None else f"version {escape(engine.version)}"
    length = numbers.count(engine.max_model_len)
    start, starts = numbers.count(engine.start), server_starts(arm)
    start += f", the last of {numbers.count(starts)}" if starts > 1 else ""
    return f"{code(arm.label)}: {kind}, {version}, model {escape(engine.model)}, context {length} tokens, start {start}"


def power(page: Page) -> Iterator[str]:
    """Power and clocks over time; nothing where no samples are kept."""
    if page.power is None:
        return
    yield heading(page.marked("Power"), 2)
    yield bullets(
        [
            f"{code(arm.label)}: read by {escape(read_by(arm.power))}"
            + "".join(f". {escape(note[:1].upper() + note[1:])}" for note in arm.power.notes)
            for arm in page.experiment.arms
            if arm.power is not None and arm.power.not_measured is None
        ]
    )
    yield page.figure(page.power, "power and clock of the GPUs over time, the windows shaded")


def cost(page: Page) -> Iterator[str]:
    """What each arm cost; one line where no price is known."""
    experiment = page.experiment
    yield heading("Cost", 2)
    priced = [arm for arm in experiment.arms if arm.cost is not None and arm.cost.usd_per_hour is not None]
    load = [f"{code(arm.label)} {numbers.count(arm.sweep.load_s / 60)} minutes" for arm in experiment.arms]
    if not priced:
        yield f"No price per hour was given. Load: {', '.join(load)}."
        return
    header = ["arm", "price per hour", "GPUs", "measurement", "per million output tokens", "range by the bracket"]
    rows = [_cost_row(arm) for arm in priced]
    yield table(header, rows, ["left", "right", "right", "right", "right", "right"])
    if any(arm.is_simulated for arm in experiment.arms):
        yield "No machine was paid: the engine is SIMULATED and the price an assumption."
    yield f"The whole session: {numbers.usd(experiment.session_usd)}. Load: {', '.join(load)}."


def _cost_row(arm: Arm) -> list[str]:
    cost = arm.cost
    assert cost is not None  # noqa: S101 - only arms with a price are asked
    ends = cost.per_million_interval_usd
    return [
        code(arm.label),
        numbers.usd(cost.usd_per_hour),
        numbers.count(gpus_of(arm)),
        numbers.usd(cost.measuring_usd),
        numbers.usd(cost.per_million_output_usd),
        numbers.NOT_KNOWN if ends is None else f"{numbers.usd(ends[0])} to {numbers.usd(ends[1])}",
    ]
