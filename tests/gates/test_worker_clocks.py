"""A window that other machines sent counts only where their clocks are known well enough, and its row says how well."""

from __future__ import annotations

import pytest
from engines import probe_facts, record

from gates.slo import DEFAULT_SLO
from gates.validity import MEASURED, SMOKE, Bounds, invalid_reasons
from gates.verdict import judge_probe
from reports.rows import probe_row
from traffic.clock_offset import ClockOffset, WorkerClock
from traffic.probe import ProbeFacts
from traffic.summary import summarise

GOOD = WorkerClock("10.0.0.1/7", ClockOffset(5.0, 0.0001), ClockOffset(5.0, 0.0001))


def clock(bound_s: float, drift_s: float = 0.0, after_s: float = 0.0001) -> WorkerClock:
    return WorkerClock("10.0.0.2/9", ClockOffset(5.0, bound_s), ClockOffset(5.0 + drift_s, after_s))


def facts(*clocks: WorkerClock, fault: str | None = None) -> ProbeFacts:
    records = [record(index) for index in range(200)]
    return probe_facts(records, workers=2, worker_clocks=clocks, client_fault=fault)


def reasons(of: ProbeFacts, bounds: Bounds = MEASURED) -> tuple[str, ...]:
    return invalid_reasons(of, summarise(of), DEFAULT_SLO, bounds)


@pytest.mark.parametrize("inside", [clock(0.0009), clock(0.0001, 0.0008), clock(0.0001, -0.0008)])
def test_clocks_known_to_a_millisecond_are_good_enough(inside: WorkerClock) -> None:
    assert reasons(facts(GOOD, inside)) == ()


def test_long_round_trips_spoil_a_window_and_nearer_nodes_are_the_remedy() -> None:
    assert reasons(facts(GOOD, clock(0.0012))) == (
        (
            "the clock of worker 10.0.0.2/9 is known to 1.20 ms, above 1 ms (drift +0.00 ms): take nodes nearer "
            "to this machine, or less busy ones"
        ),
    )


def test_clocks_that_drift_apart_spoil_a_window_and_time_keeping_is_the_remedy() -> None:
    assert reasons(facts(clock(0.0001, -0.003), GOOD)) == (
        (
            "the clock of worker 10.0.0.2/9 is known to 3.10 ms, above 1 ms (drift -3.00 ms): keep the nodes' "
            "clocks by one time server"
        ),
    )


def test_a_smoke_run_and_other_bounds_bear_more() -> None:
    assert reasons(facts(clock(0.005)), SMOKE) == ()
    assert reasons(facts(clock(0.005)), Bounds(worker_clock_s=0.006)) == ()


def test_a_lost_node_is_named_once_and_the_remedy_is_there() -> None:
    lost = WorkerClock("10.0.0.2/9", ClockOffset(5.0, 0.0001), None)
    found = reasons(facts(GOOD, lost, fault="a load worker on 10.0.0.2/9 was lost (its node or its actor is gone)"))
    assert found == (
        (
            "a load worker on 10.0.0.2/9 was lost (its node or its actor is gone): free memory and cores of its "
            "node, then measure again"
        ),
    )


def test_the_row_has_a_line_for_each_clock_and_none_for_processes_of_this_machine() -> None:
    row = probe_row(judge_probe(facts(clock(0.0002, 0.0003)), DEFAULT_SLO), purpose="single", requests_file=None)
    assert row.worker_clocks is not None
    (line,) = row.worker_clocks
    assert (line.worker, line.offset_s, line.bound_s) == ("10.0.0.2/9", 5.0, 0.0002)
    assert (line.drift_s, line.error_s) == (pytest.approx(0.0003), pytest.approx(0.0004))
    near = probe_row(judge_probe(facts(), DEFAULT_SLO), purpose="single", requests_file=None)
    assert near.worker_clocks is None
