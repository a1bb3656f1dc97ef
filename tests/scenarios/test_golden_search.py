"""The published search, end to end on the simulated engine: the design's golden case, window by window."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from gates.capacity import CapacityVerdict, Observation, conclude, rate_text
from gates.slo import DEFAULT_SLO
from gates.verdict import LimitedBy, Outcome
from reports.run_directory import SweepDocument, read_document
from slo_bench.bench import Bench, Load
from slo_bench.hosts.simulated import SimulatedHost
from slo_bench.modes import mode_named
from slo_bench.search import SearchSettings
from slo_bench.store import RunStore
from slo_bench.sweep import Sweeper, SweepPlan
from slo_bench.view import SweepView
from traffic.step_model import EngineSettings
from traffic.virtual_time import run_virtual
from traffic.workload import CHAT_MIX

ENGINE = EngineSettings(step_noise_share=0.0, wander_share=0.0)
"""The default calibration without noise on its steps. Its true limit, by benchmarks/true_capacity.py with the same
settings, is 11.29 req/s."""

SEED = 370
"""Poisson draws of 120 s differ from the nominal rate by 2.7 %, as much as the bracket is wide. Under most seeds the
bracket therefore moves; this one's three draws have their own limits between 11.18 and 11.50 req/s too. After a change
to randomness or calibration look for another: about one in a hundred will do."""

QUICK = mode_named("quick")
PLAN = SweepPlan(
    label="golden",
    mode=QUICK,
    load=Load(CHAT_MIX, 1.0, SEED, DEFAULT_SLO, QUICK.ramp_s, QUICK.bounds),
    search=SearchSettings(
        resolution_share=QUICK.resolution_share, pass_repeats=QUICK.repeats, fail_repeats=QUICK.repeats
    ),
    max_minutes=None,
)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> SweepDocument:
    """The sweep.json of the golden search."""
    directory: Path = tmp_path_factory.mktemp("golden") / "golden"

    async def main() -> None:
        async with SimulatedHost(ENGINE, seed=SEED) as running:
            bench = await Bench.prepare(running, PLAN.load)
            with SweepView(PLAN.load.slo, console=Console(file=io.StringIO())) as view:
                await Sweeper(bench, PLAN, RunStore(directory), view).run()

    run_virtual(main())
    return read_document(directory / "sweep.json", SweepDocument)


def test_the_windows_come_in_the_order_of_the_golden_case(golden: SweepDocument) -> None:
    walk = [
        f"{rate_text(row.rate_rps or 0.0)} #{row.repeat} {row.outcome.value if row.outcome else 'invalid'}"
        for row in golden.probes
    ]
    assert walk == [
        "8.00 #0 pass",
        "10.00 #0 pass",
        "12.50 #0 fail",
        "11.18 #0 pass",
        "11.82 #0 fail",
        "11.50 #0 fail",
        "11.18 #1 pass",
        "11.18 #2 pass",
        "11.50 #1 fail",
        "11.50 #2 fail",
    ]


def test_the_answer_is_the_golden_one(golden: SweepDocument) -> None:
    seen = [
        Observation(row.rate_rps, row.repeat, row.outcome is Outcome.PASS)
        for row in golden.probes
        if row.rate_rps is not None
    ]
    boundary = conclude(seen, CapacityVerdict.FOUND).boundary
    assert "; ".join(str(each) for each in boundary) == "11.18: 3 of 3; 11.50: 0 of 3"
    assert golden.verdict is CapacityVerdict.FOUND
    assert golden.capacity_rps is not None
    assert golden.first_failed_rps is not None
    assert golden.resolution_share is not None
    assert (rate_text(golden.capacity_rps), rate_text(golden.first_failed_rps)) == ("11.18", "11.50")
    assert f"{golden.resolution_share:.1%}" == "2.8%"
    assert golden.contradictions_rps == []


def test_the_server_was_warm_and_decoding_limited_it(golden: SweepDocument) -> None:
    assert golden.warm_up is not None
    assert golden.warm_up.is_warm
    assert golden.limited_by is LimitedBy.TPOT


def test_a_lost_window_spares_time_and_a_passed_one_is_whole(golden: SweepDocument) -> None:
    for row in golden.probes:
        if row.outcome is Outcome.PASS:
            assert row.is_whole
            assert (row.saved_s, row.load_s >= QUICK.ramp_s + QUICK.duration_s) == (0.0, True)
        assert row.n <= 1800
    assert golden.saved_s > 60


def test_the_estimate_and_the_proofs_agree_with_the_true_limit(golden: SweepDocument) -> None:
    assert golden.capacity_estimate_rps == pytest.approx(11.29, rel=0.05)
    assert golden.capacity_interval_rps is not None
    low, high = golden.capacity_interval_rps
    assert low <= 11.29 <= high
    assert golden.proven_pass_rps is not None
    assert golden.proven_pass_rps < 11.29
    assert golden.proven_fail_rps is None or golden.proven_fail_rps > 11.29
    proven = {row.rate_rps for row in golden.probes if row.is_proven}
    assert golden.proven_pass_rps in proven
