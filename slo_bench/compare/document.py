"""What a comparison has measured so far, and the document that it becomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gates.block import trend
from gates.comparison import Claim, Comparison, Pair, compare, starts_per_arm
from gates.log_ratio import as_share
from reports.arms import TOKENS_APART_SHARE
from reports.cost import dollars
from reports.effect_document import (
    ARM_NAMES,
    ArmName,
    ArmRow,
    BlockRow,
    DifferenceRow,
    DiscardedRow,
    EffectDocument,
    Outcome,
    PairRow,
    StartRow,
)
from reports.effect_rows import effect_rows, ends, trend_rows
from reports.numbers import plural, signed_share
from reports.passport import differences
from reports.run_directory import EngineDocument, read_document
from slo_bench.compare.earlier import EarlierPart, Trend
from slo_bench.compare.plan import ComparisonPlan, shortened
from slo_bench.compare.servers import LEAST_RAMP_S, CompareArm, Server
from traffic.clock import running_clock

RESOLUTION_SHARE = 0.01
"""Of the effect whose cost is told, where none was asked for."""

UNPROVEN = (
    "which GPU, driver, version, command and configuration each server runs with, beyond what its own pages say",
    "whether both run on equal machines, or share one, so that an idle server may still slow down the other",
    "whether anybody else put load on them while they were measured",
    "whether one of them was restarted, or moved, between two blocks",
)
"""Of servers that somebody else runs."""

SHARED = "servers side by side share their GPUs: power holds what the idle ones draw too"


@dataclass(slots=True)
class Measurements:
    """What a comparison has gathered; grows while it runs. earlier: what it had when it was taken up, None at first."""

    arms: tuple[CompareArm, CompareArm]
    plan: ComparisonPlan
    directory: Path
    command: Sequence[str]
    started_utc: str
    earlier: EffectDocument | None = None
    resumed_utc: list[str] = field(default_factory=list)
    spent_s: float = 0.0
    longest_step_s: float = 0.0
    ramp_s: float = LEAST_RAMP_S
    servers: list[Server] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    rows: list[PairRow] = field(default_factory=list)
    discarded: list[DiscardedRow] = field(default_factory=list)
    trends: dict[ArmName, list[Trend]] = field(default_factory=lambda: {"A": [], "B": []})
    reasons: list[str] = field(default_factory=list)

    def go_on_from(self, part: EarlierPart) -> None:
        """Take what an earlier part measured as if it had just been seen."""
        self.earlier = part.document
        if part.document is None:
            return
        before = part.document
        self.started_utc, self.resumed_utc = before.started_utc, list(before.resumed_utc)
        self.ramp_s = before.ramp_s
        if before.ended_utc is None:  # else they say why it ended, and it goes on all the same
            self.reasons = list(before.reasons)
        self.pairs, self.rows, self.discarded = part.pairs(), list(before.pairs), list(before.discarded)
        for a, b in part.blocks:
            self.trends["A"].append(a.trend)
            self.trends["B"].append(b.trend)

    def earlier_starts(self, name: ArmName) -> list[StartRow]:
        """The servers of one arm in earlier parts."""
        if self.earlier is None:
            return []
        return self.earlier.a.starts if name == "A" else self.earlier.b.starts

    def starts(self, name: ArmName) -> list[StartRow]:
        """The servers of one arm, in the order of their start."""
        return [
            *self.earlier_starts(name),
            *(
                StartRow(
                    start=server.start,
                    directory=f"starts/{server.directory.name}",
                    model=server.running.facts.model,
                    version=server.running.facts.version,
                    warm_up=server.warmed,
                )
                for server in self.servers
                if server.arm == name
            ),
        ]

    def blocks(self, name: ArmName) -> list[BlockRow]:
        """The blocks of one arm that are behind the effect."""
        return [row.a if name == "A" else row.b for row in self.rows]


def effect_document(measured: Measurements, outcome: Outcome, *, is_over: bool) -> EffectDocument:
    """The document as it stands. is_over: no block is to come."""
    plan = measured.plan
    load = plan.block.load
    compared = compare(
        measured.pairs,
        seed=load.seed,
        known_offset_sd=plan.known_offset_sd,
        is_sequential=plan.until_share is not None,
    )
    ended_utc = running_clock().utc().isoformat() if is_over else None
    usd_per_hour = measured.arms[0].around.usd_per_hour
    rows = [*(block for row in measured.rows for block in (row.a, row.b)), *(each.block for each in measured.discarded)]
    return EffectDocument(
        schema_version=1,
        outcome=outcome,
        reasons=list(measured.reasons),
        is_simulated=any(arm.kind == "simulated" for arm in measured.arms),
        a=_arm_row(measured, "A"),
        b=_arm_row(measured, "B"),
        placement=plan.placement,
        order=plan.order,
        seed=load.seed,
        rate_rps=plan.block.rate_rps,
        concurrency=plan.block.concurrency,
        workload=load.workload.name,
        arrivals="closed loop" if plan.block.rate_rps is None else load.arrivals.name,
        length_scale=load.length_scale,
        slo=[str(objective) for objective in load.slo],
        ramp_s=measured.ramp_s,
        window_s=plan.block.window_s,
        load_s=math.fsum(row.load_s for row in rows),
        pairs=list(measured.rows),
        discarded=list(measured.discarded),
        effects=effect_rows(compared),
        **_design(compared, plan),
        trends=[row for name in ARM_NAMES for row in trend_rows(name, trend(measured.trends[name]))],
        differences=_differences(measured),
        unproven=list(UNPROVEN) if plan.placement == "attached" else [],
        faults=_faults(measured),
        command=list(measured.command),
        started_utc=measured.started_utc,
        ended_utc=ended_utc,
        power_not_measured=_not_measured(measured),
        usd_per_hour=usd_per_hour,
        usd=dollars(usd_per_hour, measured.spent_s) if is_over else None,
        design=plan.design(),
        resumed_utc=measured.resumed_utc,
        spent_s=measured.spent_s,
        longest_step_s=measured.longest_step_s,
    )


def _not_measured(measured: Measurements) -> str | None:
    """Why a server has no power; None where all of them have."""
    before = None if measured.earlier is None else measured.earlier.power_not_measured
    return before or next((server.power.not_measured for server in measured.servers if server.power.not_measured), None)


def _design(compared: Comparison, plan: ComparisonPlan) -> dict[str, object]:
    """What the design could see, and what more would take."""
    mean, primary = compared.mean, compared.primary
    resolution = RESOLUTION_SHARE if plan.until_share is None else plan.until_share
    order, order_interval = ends(None if mean is None else mean.order)
    needed = None
    if mean is not None:
        size = math.log1p(resolution) if primary.claim is Claim.BELOW_RESOLUTION else mean.instances.log_ratio
        needed = mean.starts_needed(size, primary.n_pairs / compared.starts_per_arm)
    offset_sd = None if mean is None else mean.offset_sd
    source = None if offset_sd is None else "given" if offset_sd == plan.known_offset_sd else "measured"
    return {
        "starts_per_arm": compared.starts_per_arm,
        "pair_sd_share": None if mean is None or mean.pair_sd is None else as_share(mean.pair_sd),
        "offset_share": None if offset_sd is None else as_share(offset_sd),
        "offset_source": source,
        "resolution_share": resolution,
        "pairs_needed": None if mean is None else mean.pairs_needed(math.log1p(resolution)),
        "starts_needed": needed,
        "order_share": order,
        "order_interval": order_interval,
    }


def _arm_row(measured: Measurements, name: ArmName) -> ArmRow:
    arm = measured.arms[0 if name == "A" else 1]
    return ArmRow(
        label=arm.label,
        engine=arm.kind,
        changes=list(arm.changes),
        starts=measured.starts(name),
    )


def _differences(measured: Measurements) -> list[DifferenceRow]:
    """Between the first servers of both arms, by their engine.json."""
    firsts = [starts[0] for name in ARM_NAMES if (starts := measured.starts(name))]
    if len(firsts) < 2:  # noqa: PLR2004 - one of each arm
        return []
    a, b = (read_document(measured.directory / each.directory / "engine.json", EngineDocument) for each in firsts)
    return differences(a, b)


def _faults(measured: Measurements) -> list[str]:
    """What a reader must know before believing the rest."""
    said = [*_resumed(measured), *shortened(measured.plan)]
    for name, arm in zip(ARM_NAMES, measured.arms, strict=True):
        cold = [each.start + 1 for each in measured.starts(name) if each.warm_up and not each.warm_up.is_warm]
        if cold:
            said.append(
                f"start {', '.join(map(str, cold))} of {arm.label} is not warm: its first blocks may be too slow"
            )
        failed = sum(block.failed for block in measured.blocks(name))
        if failed:
            said.append(f"{plural(failed, 'request')} of {arm.label} failed: they are in no mean, and over every limit")
        told = {flag for block in measured.blocks(name) for flag in block.flags}
        said += [f"{arm.label}: {flag}" for flag in sorted(told)]
        pressed = sum(block.preemptions or 0 for block in measured.blocks(name))
        if pressed:
            said.append(f"{arm.label} preempted {plural(pressed, 'request')} for want of KV cache")
    if _share_gpus(measured) or (measured.earlier is not None and SHARED in measured.earlier.faults):
        said.append(SHARED)
    if measured.discarded:
        said.append(
            f"{plural(len(measured.discarded), 'block')} measured again: invalid, or the partner of an invalid one"
        )
    return said + _lengths_apart(measured)


def _resumed(measured: Measurements) -> list[str]:
    """That the comparison was stopped in between, and on how many starts its pairs stand."""
    if not measured.resumed_utc:
        return []
    times = plural(len(measured.resumed_utc), "time")
    if measured.plan.placement == "attached":
        return [f"stopped and resumed {times}: whether its servers stayed the same in between, nobody saw"]
    starts = plural(starts_per_arm(measured.pairs), "start")
    return [f"stopped and resumed {times}: its pairs come from {starts} of each arm, each with an offset of its own"]


def _share_gpus(measured: Measurements) -> bool:
    """Whether power was read of GPUs on which more than one server stood."""
    if measured.plan.placement != "coresident":
        return False
    uuids = [uuid for server in measured.servers for uuid in server.power.gpus]
    return len(set(uuids)) < len(uuids)


def _lengths_apart(measured: Measurements) -> list[str]:
    """Arms whose answers have another length did other work."""
    means = []
    for name in ARM_NAMES:
        lengths = [block.output_tokens_mean for block in measured.blocks(name)]
        known = [length for length in lengths if length is not None]
        means.append(math.fsum(known) / len(known) if known else None)
    a, b = means
    if not a or b is None or abs(b / a - 1) <= TOKENS_APART_SHARE:
        return []
    label, apart = measured.arms[1].label, signed_share(b / a - 1)
    return [f"mean output of {label} differs by {apart}: the arms did not do the same work"]
