"""A comparison: blocks of two arms in turn, pair by pair, until there are enough of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from gates.block import block_trend, cohort_of, is_cut_off
from gates.block_order import PlannedPair, crossed_pair, nested_pairs
from gates.comparison import quick_look
from reports.compare_words import pair_line
from reports.effect_document import ARM_NAMES, ArmName, BlockRow, DiscardedRow, EffectDocument, Outcome, PairRow
from reports.effect_rows import block_row
from reports.numbers import plural
from reports.requests import write_requests
from reports.run_directory import to_json
from slo_bench.compare.document import Measurements, effect_document
from slo_bench.compare.earlier import DOCUMENT, Block, EarlierPart, block_of, blocks_run_in, pair_of, servers_begun_in
from slo_bench.compare.enough import Enough
from slo_bench.compare.plan import ComparisonPlan
from slo_bench.compare.servers import CompareArm, Server, ramp_s, started
from slo_bench.store import remove_partials, write_text, write_whole
from traffic.clock import running_clock
from traffic.errors import InvalidMeasurement, UsageError
from traffic.probe import Progress

TRIES = 3
"""A pair with an invalid block is measured again, with fresh text, twice at most."""

MOST_KV_USE_SHARE = 0.8
"""Servers side by side share the card's memory: above this a smaller cache would be what is compared."""

MOST_FAILED_SHARE = 0.01
"""Means know finished requests only: an arm that fails more of them is not compared by its means."""


class Watch(Protocol):
    """Somebody who watches a comparison. bracket: what stands above the running block."""

    bracket: str

    def say(self, text: str) -> None:
        """One line that stays."""
        ...

    def progress(self, progress: Progress, over: Sequence[int]) -> None:
        """A quarter second of a running block; over: requests over each limit so far."""
        ...


async def run_comparison(
    plan: ComparisonPlan,
    arms: tuple[CompareArm, CompareArm],
    directory: Path,
    view: Watch,
    *,
    command: Sequence[str] = (),
    on_ready: Callable[[], object] = lambda: None,
    earlier: EarlierPart | None = None,
) -> EffectDocument:
    """Compare two arms and write effect.json into `directory`, anew after every pair.

    on_ready: called once, when the first server answers: before, nothing is written. earlier: what the directory holds
    of this comparison, which goes on.

    Raises InvalidMeasurement when a pair stays invalid, or servers side by side ran short of KV cache; UsageError for
    arms that serve different models; EngineError for a server that dies. What was measured until then is written down.
    """
    measured = Measurements(arms, plan, directory, command, running_clock().utc().isoformat())
    return await _Running(measured, view, on_ready, earlier).run()


class _Running:
    """A comparison under way."""

    def __init__(
        self, measured: Measurements, view: Watch, on_ready: Callable[[], object], earlier: EarlierPart | None
    ) -> None:
        self.measured = measured
        self.plan = measured.plan
        self.directory = measured.directory
        self.view = view
        self.on_ready = on_ready
        self.clock = running_clock()
        self.enough = Enough(measured.plan, self.clock.now_s)
        self.blocks_run = 0
        self.servers_begun: dict[ArmName, int] = {"A": 0, "B": 0}
        if earlier is not None:
            self._go_on_from(earlier)

    def _go_on_from(self, part: EarlierPart) -> None:
        """Files of pairs and servers that never came to their end keep their names, and the numbers go on after."""
        remove_partials(self.directory)
        self.measured.go_on_from(part)
        if part.document is not None:
            spent_s, longest_s = part.document.spent_s + part.lost_s, part.document.longest_step_s
            self.enough = Enough(self.plan, self.clock.now_s, spent_s=spent_s, longest_s=longest_s)
        self.blocks_run = blocks_run_in(self.directory)
        self.servers_begun = {name: servers_begun_in(self.directory, name) for name in ARM_NAMES}
        if part.document is not None and not self._is_over():
            self.measured.resumed_utc.append(self.clock.utc().isoformat())
            servers = "" if self.plan.placement == "attached" else ", on new starts of the servers"
            self.view.say(f"goes on after {plural(len(self.measured.pairs), 'pair')}{servers}")
            self._write("unfinished", is_over=False)

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
        if self._is_over():
            return
        servers: dict[ArmName, list[Server]] = {"A": [], "B": []}
        async with AsyncExitStack() as stack:
            names: list[ArmName] = [*ARM_NAMES * self.plan.instances, *ARM_NAMES[:1] * self.plan.controls]
            for name in names:
                server = await stack.enter_async_context(self._started(name, tuple(self.measured.servers)))
                servers[name].append(server)
            for server in self.measured.servers:
                await self._warm_up(server)
            self._set_ramp(self.measured.servers)
            while not self._is_over():
                number, seed = len(self.measured.pairs), self.plan.block.load.seed
                planned = crossed_pair(number, self.plan.order, seed, self.plan.instances, self.plan.controls)
                began_s = self.clock.now_s()
                await self._pair(planned, servers["A"][planned.start_a], servers["B"][planned.start_b])
                self._took(began_s)

    async def _one_at_a_time(self) -> None:
        """A server of one arm with its blocks, then one of the other arm with blocks of the same schedules."""
        while not self._is_over():
            start = len(self.measured.pairs) // self.plan.pairs_per_start
            planned = nested_pairs(start, self.plan.order, self.plan.block.load.seed, self.plan.pairs_per_start)
            names: tuple[ArmName, ArmName] = ("A", "B") if planned[0].a_first else ("B", "A")
            blocks: dict[ArmName, list[Block]] = {}
            began_s = self.clock.now_s()
            for name in names:
                async with self._started(name, ()) as server:
                    await self._warm_up(server)
                    if len(self.measured.servers) == 1:  # partners share their ramp, so the first server sets it
                        self._set_ramp([server])
                    blocks[name] = [await self._valid_block(server, each.number) for each in planned]
            for each, a, b in zip(planned, blocks["A"], blocks["B"], strict=True):
                self._keep(each, a, b)
            self._took(began_s)

    def _took(self, began_s: float) -> None:
        """A pair, or a start of each arm with all its pairs, is measured: write it down whole."""
        self.enough.took(self.clock.now_s() - began_s)
        self._write("unfinished", is_over=False)

    def _set_ramp(self, servers: Sequence[Server]) -> None:
        """The ramp of all pairs, also of those to come after a stop."""
        if not self.measured.pairs:
            self.measured.ramp_s = ramp_s(self.plan.block, servers)

    @asynccontextmanager
    async def _started(self, name: ArmName, others: Sequence[Server]) -> AsyncIterator[Server]:
        measured, number = self.measured, self.servers_begun[name]
        self.servers_begun[name] += 1
        arm = measured.arms[0 if name == "A" else 1]
        # To connect once more to a server of somebody else starts none.
        start = 0 if self.plan.placement == "attached" else number
        plan, directory = self.plan.block, self.directory / "starts" / f"{name}-{number + 1}"
        async with started(arm, name, start, plan=plan, directory=directory, others=others) as server:
            measured.servers.append(server)
            if len(measured.servers) == 1:
                self.on_ready()
                self._write("unfinished", is_over=False)
            self._check_model(name)
            yield server

    def _check_model(self, name: ArmName) -> None:
        """Raise UsageError for arms that serve different models, and for an arm that serves another one than before."""
        measured = self.measured
        now = measured.starts(name)[-1]
        for before in measured.earlier_starts(name):
            if (before.model, before.version) != (now.model, now.version):
                raise UsageError(
                    f"arm {name} was {before.model}, version {before.version}, and is {now.model}, version "
                    f"{now.version}: this comparison cannot go on, measure again under another --label"
                )
        models = sorted({row.model for each in ARM_NAMES for row in measured.starts(each)})
        if len(models) > 1 and not self.plan.allow_different_models:
            raise UsageError(f"the arms serve different models, {' and '.join(models)}: --allow-different-models")

    async def _warm_up(self, server: Server) -> None:
        self.view.bracket = f"warming up {self._named(server)}"
        await server.warm_up(self.plan.block)
        warmed = server.warmed
        if warmed is not None:
            word = "warm" if warmed.is_warm else "NOT WARM"
            self.view.say(f"{self._named(server)}: {word} after {len(warmed.tpot_mean_s)} blocks")

    def _named(self, server: Server) -> str:
        label = self.measured.arms[0 if server.arm == "A" else 1].label
        return label if self.plan.servers == len(ARM_NAMES) else f"{label}, start {server.start + 1}"

    def _is_over(self) -> bool:
        return bool(self.measured.reasons) or self.enough.is_reached(self.measured.pairs)

    async def _pair(self, planned: PlannedPair, a: Server, b: Server) -> None:
        """Both partners, again when one is invalid: they are partners because they ran next to each other."""
        reasons: list[str] = []
        for _ in range(TRIES):
            blocks: dict[ArmName, Block] = {}
            for server in (a, b) if planned.a_first else (b, a):
                blocks[server.arm] = await self._block(server, planned.number)
                if reasons := blocks[server.arm].row.invalid_reasons:
                    break
            if not reasons:
                self._keep(planned, blocks["A"], blocks["B"])
                return
            self._discard(planned.number, blocks)
        raise InvalidMeasurement(f"pair {planned.number + 1} is invalid {TRIES} times: {'; '.join(reasons)}")

    async def _valid_block(self, server: Server, number: int) -> Block:
        """One block, again when it is invalid: its partner runs on a server that is not up now anyway."""
        reasons: list[str] = []
        for _ in range(TRIES):
            block = await self._block(server, number)
            reasons = block.row.invalid_reasons
            if not reasons:
                return block
            self._discard(number, {server.arm: block})
        raise InvalidMeasurement(f"a block of pair {number + 1} is invalid {TRIES} times: {'; '.join(reasons)}")

    def _discard(self, number: int, blocks: dict[ArmName, Block]) -> None:
        for name, block in blocks.items():
            self.measured.discarded.append(DiscardedRow(number=number, arm=name, block=block.row))
            for reason in block.row.invalid_reasons:
                self.view.say(f"pair {number + 1}, arm {name}: INVALID, measured again: {reason}")

    async def _block(self, server: Server, number: int) -> Block:
        self.blocks_run += 1
        self.view.bracket = f"pair {number + 1}, {self._named(server)}"
        verdict = await server.block(self.plan.block, self.measured.ramp_s, number, self.view.progress)
        facts = verdict.facts
        name = f"blocks/{self.blocks_run:02d}-{server.arm}.parquet"
        write_whole(self.directory / name, lambda temporary: write_requests(temporary, facts))
        samples, power = server.bench.samples, server.bench.power(verdict)
        row = block_row(verdict, samples, ran=self.blocks_run, start=server.start, requests_file=name, power=power)
        self._check_memory(server, number, row)
        return block_of(cohort_of(verdict), row, block_trend(facts))

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

    def _keep(self, planned: PlannedPair, a: Block, b: Block) -> None:
        """Take a pair, look whether the arms can be compared, and say how it stands."""
        measured = self.measured
        measured.pairs.append(pair_of(planned.number, a, b, a_first=planned.a_first))
        row = PairRow(number=planned.number, a_first=planned.a_first, a=a.row, b=b.row)
        measured.rows.append(row)
        measured.trends["A"].append(a.trend)
        measured.trends["B"].append(b.trend)
        self._compare_at_all()
        is_sequential = self.plan.until_share is not None
        so_far, _ = quick_look(measured.pairs, self.plan.known_offset_sd, is_sequential=is_sequential)
        labels = (measured.arms[0].label, measured.arms[1].label)
        self.view.say(pair_line(row, labels, so_far.shown))

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
        self.measured.spent_s, self.measured.longest_step_s = self.enough.spent_s, self.enough.longest_s
        document = effect_document(self.measured, outcome, is_over=is_over)
        write_text(self.directory / DOCUMENT, to_json(document))
        return document


def _falls_behind(last: Sequence[BlockRow]) -> bool:
    """Whether an arm's last two blocks show that it does not keep up: cut off once, or growing twice."""
    is_growing = len(last) > 1 and all(block.grows for block in last)
    return is_growing or is_cut_off(last[-1].unfinished, last[-1].n)
