"""A comparison: blocks of two arms in turn, pair by pair, until there are enough of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gates.block import block_trend, cohort_of, is_cut_off
from gates.block_order import PlannedPair, crossed_pair, nested_pairs
from gates.comparison import Pair, quick_look
from gates.pooled import Cohort
from reports.compare_words import pair_line
from reports.effect_document import ARM_NAMES, ArmName, BlockRow, DiscardedRow, EffectDocument, Outcome, PairRow
from reports.effect_rows import block_row
from reports.requests import write_requests
from reports.run_directory import to_json
from slo_bench.compare.document import Measurements, effect_document
from slo_bench.compare.enough import Enough
from slo_bench.compare.plan import ComparisonPlan
from slo_bench.compare.servers import CompareArm, Server, ramp_s, started
from slo_bench.store import write_text, write_whole
from traffic.clock import running_clock
from traffic.errors import InvalidMeasurement, UsageError
from traffic.probe import Progress

TRIES = 3
"""A pair with an invalid block is measured again, with fresh text, twice at most."""

MOST_KV_USE_SHARE = 0.8
"""Servers side by side share the card's memory: above this a smaller cache would be what is compared."""

MOST_FAILED_SHARE = 0.01
"""Means know finished requests only: an arm that fails more of them is not compared by its means."""

DOCUMENT = "effect.json"


class Watch(Protocol):
    """Somebody who watches a comparison. bracket: what stands above the running block."""

    bracket: str

    def say(self, text: str) -> None:
        """One line that stays."""
        ...

    def progress(self, progress: Progress, over: Sequence[int]) -> None:
        """A quarter second of a running block; over: requests over each limit so far."""
        ...


@dataclass(frozen=True, slots=True)
class _Block:
    """A measured block."""

    cohort: Cohort
    row: BlockRow
    trend: tuple[float, float] | None


async def run_comparison(
    plan: ComparisonPlan,
    arms: tuple[CompareArm, CompareArm],
    directory: Path,
    view: Watch,
    *,
    command: Sequence[str] = (),
    on_ready: Callable[[], object] = lambda: None,
) -> EffectDocument:
    """Compare two arms and write effect.json into `directory`, anew after every pair.

    on_ready: called once, when the first server answers: before, nothing is written.

    Raises InvalidMeasurement when a pair stays invalid, or servers side by side ran short of KV cache; UsageError for
    arms that serve different models; EngineError for a server that dies. What was measured until then is written down.
    """
    measured = Measurements(arms, plan, command, running_clock().utc().isoformat())
    return await _Running(measured, directory, view, on_ready).run()


class _Running:
    """A comparison under way."""

    def __init__(self, measured: Measurements, directory: Path, view: Watch, on_ready: Callable[[], object]) -> None:
        self.measured = measured
        self.plan = measured.plan
        self.directory = directory
        self.view = view
        self.on_ready = on_ready
        self.clock = running_clock()
        self.enough = Enough(measured.plan, self.clock.now_s)
        self.blocks_run = 0

    async def run(self) -> EffectDocument:
        """Measure, and say what came out of it."""
        measured = self.measured
        try:
            if self.plan.placement == "restart":
                await self._one_at_a_time()
            else:
                await self._side_by_side()
        except InvalidMeasurement as error:
            measured.reasons.append(str(error))
            if measured.servers:
                self._write("invalid", is_over=True)
            raise
        if measured.reasons:
            return self._write("not comparable", is_over=True)
        measured.reasons += self.enough.shortfall(measured.pairs)
        return self._write("unfinished" if measured.reasons else "concluded", is_over=True)

    async def _side_by_side(self) -> None:
        """All servers up at once; one of them has load at a time."""
        servers: dict[ArmName, list[Server]] = {"A": [], "B": []}
        async with AsyncExitStack() as stack:
            for start in range(self.plan.instances):
                for name, own in servers.items():
                    own.append(
                        await stack.enter_async_context(self._started(name, start, tuple(self.measured.servers)))
                    )
            for server in self.measured.servers:
                await self._warm_up(server)
            self.measured.ramp_s = ramp_s(self.plan.block, self.measured.servers)
            while not self._is_over():
                number, seed = len(self.measured.pairs), self.plan.block.load.seed
                planned = crossed_pair(number, self.plan.order, seed, self.plan.instances)
                began_s = self.clock.now_s()
                await self._pair(planned, servers["A"][planned.start_a], servers["B"][planned.start_b])
                self.enough.took(self.clock.now_s() - began_s)

    async def _one_at_a_time(self) -> None:
        """A server of one arm with its blocks, then one of the other arm with blocks of the same schedules."""
        start = 0
        while not self._is_over():
            planned = nested_pairs(start, self.plan.order, self.plan.block.load.seed, self.plan.pairs_per_start)
            names: tuple[ArmName, ArmName] = ("A", "B") if planned[0].a_first else ("B", "A")
            blocks: dict[ArmName, list[_Block]] = {}
            began_s = self.clock.now_s()
            for name in names:
                async with self._started(name, start, ()) as server:
                    await self._warm_up(server)
                    if len(self.measured.servers) == 1:  # partners share their ramp, so the first server sets it
                        self.measured.ramp_s = ramp_s(self.plan.block, [server])
                    blocks[name] = [await self._valid_block(server, each.number) for each in planned]
            for each, a, b in zip(planned, blocks["A"], blocks["B"], strict=True):
                self._keep(each, a, b)
            self.enough.took(self.clock.now_s() - began_s)
            start += 1

    @asynccontextmanager
    async def _started(self, name: ArmName, start: int, others: Sequence[Server]) -> AsyncIterator[Server]:
        arm = self.measured.arms[0 if name == "A" else 1]
        plan, directory = self.plan.block, self.directory
        async with started(arm, name, start, plan=plan, directory=directory, others=others) as server:
            self.measured.servers.append(server)
            if len(self.measured.servers) == 1:
                self.on_ready()
            models = sorted({each.running.facts.model for each in self.measured.servers})
            if len(models) > 1 and not self.plan.allow_different_models:
                raise UsageError(f"the arms serve different models, {' and '.join(models)}: --allow-different-models")
            yield server

    async def _warm_up(self, server: Server) -> None:
        self.view.bracket = f"warming up {self._named(server)}"
        await server.warm_up(self.plan.block)
        warmed = server.warmed
        if warmed is not None:
            word = "warm" if warmed.is_warm else "NOT WARM"
            self.view.say(f"{self._named(server)}: {word} after {len(warmed.tpot_mean_s)} blocks")

    def _named(self, server: Server) -> str:
        label = self.measured.arms[0 if server.arm == "A" else 1].label
        return label if self.plan.instances == 1 else f"{label}, start {server.start + 1}"

    def _is_over(self) -> bool:
        return bool(self.measured.reasons) or self.enough.is_reached(self.measured.pairs)

    async def _pair(self, planned: PlannedPair, a: Server, b: Server) -> None:
        """Both partners, again when one is invalid: they are partners because they ran next to each other."""
        reasons: list[str] = []
        for _ in range(TRIES):
            blocks: dict[ArmName, _Block] = {}
            for server in (a, b) if planned.a_first else (b, a):
                blocks[server.arm] = await self._block(server, planned.number)
                if reasons := blocks[server.arm].row.invalid_reasons:
                    break
            if not reasons:
                self._keep(planned, blocks["A"], blocks["B"])
                return
            self._discard(planned.number, blocks)
        raise InvalidMeasurement(f"pair {planned.number + 1} is invalid {TRIES} times: {'; '.join(reasons)}")

    async def _valid_block(self, server: Server, number: int) -> _Block:
        """One block, again when it is invalid: its partner runs on a server that is not up now anyway."""
        reasons: list[str] = []
        for _ in range(TRIES):
            block = await self._block(server, number)
            reasons = block.row.invalid_reasons
            if not reasons:
                return block
            self._discard(number, {server.arm: block})
        raise InvalidMeasurement(f"a block of pair {number + 1} is invalid {TRIES} times: {'; '.join(reasons)}")

    def _discard(self, number: int, blocks: dict[ArmName, _Block]) -> None:
        for name, block in blocks.items():
            self.measured.discarded.append(DiscardedRow(number=number, arm=name, block=block.row))
            for reason in block.row.invalid_reasons:
                self.view.say(f"pair {number + 1}, arm {name}: INVALID, measured again: {reason}")

    async def _block(self, server: Server, number: int) -> _Block:
        self.blocks_run += 1
        self.view.bracket = f"pair {number + 1}, {self._named(server)}"
        verdict = await server.block(self.plan.block, self.measured.ramp_s, number, self.view.progress)
        facts = verdict.facts
        name = f"blocks/{self.blocks_run:02d}-{server.arm}.parquet"
        write_whole(self.directory / name, lambda temporary: write_requests(temporary, facts))
        samples, power = server.bench.samples, server.bench.power(verdict)
        row = block_row(verdict, samples, ran=self.blocks_run, start=server.start, requests_file=name, power=power)
        self._check_memory(server, number, row)
        cohort = replace(
            cohort_of(verdict), power_mean_w=row.power_mean_w, joules_per_token=row.joules_per_output_token
        )
        return _Block(cohort, row, block_trend(facts))

    def _check_memory(self, server: Server, number: int, row: BlockRow) -> None:
        if self.plan.placement != "coresident" or is_cut_off(row.unfinished, row.n) or row.grows:
            # A server that does not keep up fills any cache.
            return
        use = row.kv_use_max_share or 0.0
        if row.preemptions or use > MOST_KV_USE_SHARE:
            self.measured.discarded.append(DiscardedRow(number=number, arm=server.arm, block=row))
            raise InvalidMeasurement(
                f"{self._named(server)} had {row.preemptions or 0} preemptions and {use:.0%} of its KV cache in use: "
                "side by side the servers have too little; lower the rate, give them more, or --placement restart"
            )

    def _keep(self, planned: PlannedPair, a: _Block, b: _Block) -> None:
        """Take a pair, look whether the arms can be compared, write the document and say how it stands."""
        measured = self.measured
        measured.pairs.append(
            Pair(planned.number, a.cohort, b.cohort, planned.a_first, planned.start_a, planned.start_b)
        )
        row = PairRow(number=planned.number, a_first=planned.a_first, a=a.row, b=b.row)
        measured.rows.append(row)
        measured.trends["A"].append(a.trend)
        measured.trends["B"].append(b.trend)
        self._compare_at_all()
        is_sequential = self.plan.until_share is not None
        so_far, _ = quick_look(measured.pairs, self.plan.known_offset_sd, is_sequential=is_sequential)
        labels = (measured.arms[0].label, measured.arms[1].label)
        self.view.say(pair_line(row, labels, so_far.shown))
        self._write("unfinished", is_over=False)

    def _compare_at_all(self) -> None:
        """Note what makes the arms incomparable: a load that one cannot keep up with, or requests that fail."""
        measured = self.measured
        labels = [arm.label for arm in measured.arms]
        growing = [
            label for name, label in zip(ARM_NAMES, labels, strict=True) if _falls_behind(measured.blocks(name)[-2:])
        ]
        if growing:
            who = (
                f"neither {labels[0]} nor {labels[1]} keeps up"
                if len(growing) > 1
                else f"{growing[0]} does not keep up"
            )
            measured.reasons.append(
                f"{who} with this load: requests in flight grew through a block, so there is no steady state to "
                "compare; lower the rate"
            )
        for name, label in zip(ARM_NAMES, labels, strict=True):
            blocks = measured.blocks(name)
            failed, n = sum(block.failed for block in blocks), sum(block.n for block in blocks)
            if not growing and failed > MOST_FAILED_SHARE * n:
                measured.reasons.append(
                    f"{failed} of {n} requests of {label} failed: what is left of them is no comparison"
                )

    def _write(self, outcome: Outcome, *, is_over: bool) -> EffectDocument:
        document = effect_document(self.measured, outcome, is_over=is_over)
        write_text(self.directory / DOCUMENT, to_json(document))
        return document


def _falls_behind(last: Sequence[BlockRow]) -> bool:
    """Whether an arm's last two blocks show that it does not keep up: cut off once, or growing twice."""
    is_growing = len(last) > 1 and all(block.grows for block in last)
    return is_growing or is_cut_off(last[-1].unfinished, last[-1].n)
