"""What a comparison will do: its design, checked, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gates.block_order import Order
from gates.capacity import rate_text
from gates.comparison import MIN_PAIRS
from reports.effect_document import Placement
from reports.numbers import plural
from reports.run_directory import EngineKind
from slo_bench.bench import Load
from slo_bench.compare.options import DesignOptions
from slo_bench.compare.servers import LEAST_RAMP_S, BlockPlan
from traffic.errors import UsageError

PAIRS = 6
"""Of servers that are all up: about twenty minutes of load at a usual rate."""

STARTS = 4
"""Of each arm where servers take turns: with three and two orders a single degree of freedom would be left."""

PAIRS_PER_START = 2
"""One could not tell the noise between blocks from the offset of a start."""

CONTROLLED_ROWS = 4
"""Two of each order: with three the control and the order would share what little is left for noise."""

LEAST_ROWS = 3
"""Blocks of each start that stands beside others: two would leave nothing to tell noise from offsets by."""

MINUTES_UNTIL = 120.0
METHOD_WINDOW_S = 60.0

_PLACES = {
    "coresident": "all servers up, load takes turns",
    "restart": "one server at a time",
    "attached": "servers that somebody else runs, load takes turns",
}


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """The design of a comparison.

    instances: starts of each arm; controls: how many A has beyond these. pairs: of blocks, the fewest where until_share
    is set. until_share: go on until the interval of mean TPOT reaches no further to each side. known_offset_share: sd
    of mean TPOT between starts.
    """

    block: BlockPlan
    placement: Placement
    instances: int
    pairs: int
    order: Order
    until_share: float | None = None
    max_minutes: float | None = None
    known_offset_share: float | None = None
    allow_different_models: bool = False
    controls: int = 0

    @property
    def servers(self) -> int:
        """All that are started, or connected to."""
        return 2 * self.instances + self.controls

    @property
    def row(self) -> int:
        """Pairs in which each server of A runs once."""
        return self.instances + self.controls

    @property
    def pairs_per_start(self) -> int:
        """Pairs of one start of each arm, where servers take turns."""
        return math.ceil(self.pairs / self.instances)

    @property
    def known_offset_sd(self) -> float | None:
        """The known offset on the logarithm."""
        return None if self.known_offset_share is None else math.log1p(self.known_offset_share)

    def design(self) -> dict[str, object]:
        """What all parts of one comparison have in common, by the names of the options."""
        block, load = self.block, self.block.load
        return {
            "request_rate": block.rate_rps,
            "concurrency": block.concurrency,
            "placement": self.placement,
            "instances": self.instances,
            **({"control": True} if self.controls else {}),
            "blocks": self.pairs,
            "order": self.order.value,
            "until_resolution": self.until_share,
            "start_offset": self.known_offset_share,
            "duration": block.window_s,
            "ramp": block.ramp_s,
            "warm_up": [block.warm_block_s, block.warm_blocks],
            "seed": load.seed,
            "workload": load.workload.name,
            "arrivals": load.arrivals.name,
            "length_scale": load.length_scale,
            "slo": [str(objective) for objective in load.slo],
        }

    @property
    def load_minutes(self) -> float:
        """The most load that the pairs take, with the shortest ramp."""
        return 2 * self.pairs * self.block.longest_s / 60

    def load_text(self) -> str:
        """The load in a few words."""
        rate_rps = self.block.rate_rps
        return f"{self.block.concurrency} in flight" if rate_rps is None else f"{rate_text(rate_rps)} req/s"

    def said(self) -> str:
        """The design in one line."""
        block = self.block
        orders = {Order.ABBA: "in the order A B B A", Order.RANDOM: "in a drawn, balanced order"}
        ramp = f"at least {LEAST_RAMP_S:g}" if block.ramp_s is None else f"{block.ramp_s:g}"
        count = f"{self.pairs} pairs" if self.until_share is None else f"at least {self.pairs} pairs"
        starts = "1 start" if self.instances == 1 else f"{self.instances} starts"
        control = " and a second one of arm A" if self.controls else ""
        return (
            f"{self.load_text()}, {block.load.workload.name}; {self.placement} ({_PLACES[self.placement]}), "
            f"{starts} of each arm{control}; {count} of blocks {orders[self.order]}, "
            f"each a ramp of {ramp} s and {block.window_s:g} s measured"
        )

    @property
    def warm_minutes(self) -> float:
        """The most warm-up that all servers take."""
        return self.servers * self.block.warm_blocks * self.block.longest_warm_s / 60

    @property
    def longest_minutes(self) -> float:
        """The most load, warm-up included; without the time in which servers start."""
        minutes = self.load_minutes if self.until_share is None else self.max_minutes or MINUTES_UNTIL
        return minutes + self.warm_minutes

    def cost(self) -> str:
        """The load in one line."""
        most = f"at most {_minutes(self.load_minutes)} of load"
        if self.until_share is not None:
            most = f"up to {self.max_minutes or MINUTES_UNTIL:.0f} minutes, until ±{self.until_share:.2%}".replace(
                "%", " %"
            )
        starts = f", {self.servers} server starts" if self.placement != "attached" else ""
        return f"{2 * self.pairs} blocks{starts}; {most}, before it at most {_minutes(self.warm_minutes)} of warm-up"


def _minutes(minutes: float) -> str:
    return plural(math.ceil(minutes), "minute")


def comparison_plan(options: DesignOptions, load: Load, kind: EngineKind, **more: bool) -> ComparisonPlan:
    """The plan that the options describe. more: allow_different_models. Raises UsageError for an impossible one."""
    placement = options.placement or placement_of(kind)
    _check_placement(placement, kind, options.instances)
    instances = options.instances or (STARTS if placement == "restart" else 1)
    if options.control and (placement != "coresident" or instances > 1):
        raise UsageError("--control is a third server: it goes with --placement coresident and one start of each arm")
    return ComparisonPlan(
        block=BlockPlan(
            load=load,
            rate_rps=options.request_rate,
            concurrency=options.concurrency,
            window_s=options.duration,
            ramp_s=options.ramp,
        ),
        placement=placement,
        instances=instances,
        pairs=_controlled_pairs(options.blocks) if options.control else _pairs(options.blocks, placement, instances),
        controls=int(options.control),
        order=Order(options.order),
        until_share=options.until_resolution,
        max_minutes=options.max_minutes if options.until_resolution is None else options.max_minutes or MINUTES_UNTIL,
        known_offset_share=options.start_offset,
        **more,
    )


def placement_of(kind: EngineKind) -> Placement:
    """Where the servers stand unless it is said: two vLLM servers rarely fit on one GPU."""
    placements: dict[EngineKind, Placement] = {"attached": "attached", "simulated": "coresident", "vllm": "restart"}
    return placements[kind]


def _check_placement(placement: Placement, kind: EngineKind, instances: int | None) -> None:
    if (placement == "attached") != (kind == "attached"):
        raise UsageError("--placement attached goes with --base-url, and --base-url with it")
    if placement == "attached" and (instances or 1) > 1:
        raise UsageError("--instances starts servers, and those behind --base-url are somebody else's")
    if placement == "restart" and instances == 1:
        raise UsageError("--placement restart needs two starts of each arm at least, or one arm would always run first")


def _pairs(asked: int | None, placement: Placement, instances: int) -> int:
    if asked is not None and asked < MIN_PAIRS:
        raise UsageError(f"--blocks {asked}: {MIN_PAIRS} pairs are the fewest that have an interval")
    if placement == "restart":
        pairs = PAIRS_PER_START * instances if asked is None else asked
        if pairs % instances:
            raise UsageError(f"--blocks {asked} with {instances} starts of each arm: give a multiple of {instances}")
        return pairs
    if instances == 1:
        return PAIRS if asked is None else asked
    rows = LEAST_ROWS if asked is None else asked / instances
    if rows < LEAST_ROWS or rows != int(rows):
        least = f"a multiple of {instances}, at least {LEAST_ROWS * instances}"
        raise UsageError(f"--blocks {asked} with {instances} starts of each arm: give {least}")
    return int(rows) * instances


def _controlled_pairs(asked: int | None) -> int:
    """Half of them with each server of arm A, in both orders."""
    pairs = 2 * CONTROLLED_ROWS if asked is None else asked
    if pairs % 2 or pairs < 2 * LEAST_ROWS:
        raise UsageError(f"--blocks {asked} with --control: give an even number, at least {2 * LEAST_ROWS}")
    return pairs


def shortened(plan: ComparisonPlan) -> Sequence[str]:
    """In what the plan falls short of the method."""
    block = plan.block
    said = []
    if block.window_s < METHOD_WINDOW_S:
        said.append(f"blocks of {block.window_s:g} s are shorter than the method's {METHOD_WINDOW_S:g} s")
    if block.ramp_s is not None and block.ramp_s < LEAST_RAMP_S:
        said.append(
            f"a ramp of {block.ramp_s:g} s is shorter than the method's {LEAST_RAMP_S:g} s: a server that was empty "
            "looks faster at first"
        )
    return said
