"""When a probe may end early: lost by arithmetic, growth that does not end, nothing but errors."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from engines import Act, Scripted, answer, fail, failed, loop_s, record, schedule, silent
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.margin import WindowSample
from gates.referee import RateSoFar, SloReferee, is_growing
from gates.slo import DEFAULT_SLO, Objective, ObjectiveResult, drain_limit_s, judge, parse_objective
from gates.verdict import LimitedBy, Outcome, ProbeVerdict, judge_probe
from traffic.conversations import Conversations
from traffic.engine import Engine
from traffic.probe import Stop, run_probe
from traffic.records import End, Flight, Request, RequestRecord
from traffic.schedule import Draw, Schedule, open_loop
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel
from traffic.summary import allowed
from traffic.virtual_time import run_virtual
from traffic.workload import CHAT_MIX, Workload, fixed_lengths

SLO = tuple(parse_objective(text) for text in ("ttft:p80:2000", "tpot:p90:50"))
CAPACITY_RPS = 11.34
"""True capacity of the default simulated engine (benchmarks/true_capacity.py)."""

GOOD = record(0)
fates = st.lists(
    st.sampled_from(
        [GOOD, GOOD, record(0, ttft_s=3.0), record(0, tpot_s=0.06), record(0, ttft_s=3.0, tpot_s=0.06), failed(GOOD)]
    ),
    min_size=1,
    max_size=40,
)


def calm(each: RequestRecord, index: int) -> RequestRecord:
    """The record as it ends ten seconds after the one before, so that no two errors fall together."""
    return record(
        index, ttft_s=each.ttft_s, tpot_s=each.tpot_s or 0.02, end=each.end, ended_s=10.0 * index,
        output_tokens=each.output_tokens,
    )  # fmt: skip


def stops(told: list[RequestRecord], scheduled: int) -> list[Stop | None]:
    """What the referee says after each record."""
    referee = SloReferee(SLO, schedule([0.0] * scheduled, end_s=1e6))
    looks = []
    for each in told:
        referee.resolved(each)
        assert each.ended_s is not None
        looks.append(referee.look(each.ended_s, 0, 0))
    return looks


@settings(deadline=None, max_examples=40)
@given(fates, st.integers(0, 40))
def test_it_is_lost_exactly_when_the_best_end_can_no_longer_win(drawn: list[RequestRecord], to_come: int) -> None:
    told = [calm(each, index) for index, each in enumerate(drawn)]
    for count, stop in enumerate(stops(told, len(told) + to_come), start=1):
        best = [*told[:count], *[GOOD] * (len(told) - count + to_come)]
        can_win = all(judge(objective, best).holds for objective in SLO)
        assert (stop is Stop.LOST) == (not can_win)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.one_of(fates.map(lambda some: some[0]), st.just(record(0, output_tokens=1))), min_size=1, max_size=40)
)
def test_answers_of_one_token_never_make_it_claim_a_loss_that_could_be_won(drawn: list[RequestRecord]) -> None:
    told = [calm(each, index) for index, each in enumerate(drawn)]
    if Stop.LOST in stops(told, len(told)):
        assert not all(judge(objective, told).holds for objective in SLO)


@settings(deadline=None, max_examples=40)
@given(fates, st.integers(0, 40))
def test_a_lost_probe_is_judged_a_fail_by_what_had_ended(drawn: list[RequestRecord], to_come: int) -> None:
    told = [calm(each, index) for index, each in enumerate(drawn)]
    for count, stop in enumerate(stops(told, len(told) + to_come), start=1):
        if stop is Stop.LOST:
            assert not all(judge(objective, told[:count]).holds for objective in SLO)


def with_later_turns(first: int, later_s: list[float]) -> Schedule:
    """First turns due at 0 s, and later ones due at these moments at the earliest, each after one of the first."""
    plan = schedule([0.0] * first + later_s)
    turns = [replace(each, after=each.index % first) for each in plan.requests[first:]]
    return Schedule(plan.window, (*plan.requests[:first], *turns))


def test_turns_that_may_still_come_count_as_good_ones_before_a_loss_is_claimed() -> None:
    bad = record(0, ttft_s=3.0, ended_s=4.0)

    def stop(plan: Schedule, misses: int) -> Stop | None:
        referee = SloReferee((parse_objective("ttft:p90:2000"),), plan)
        for _ in range(misses):
            referee.resolved(bad)
        return referee.look(20.0, 0, 0)

    assert [stop(with_later_turns(10, []), misses) for misses in (1, 2)] == [None, Stop.LOST]
    assert [stop(with_later_turns(10, [9.9] * 10), misses) for misses in (2, 3)] == [None, Stop.LOST]
    assert [stop(with_later_turns(10, [10.0] * 10), misses) for misses in (1, 2)] == [None, Stop.LOST]


def test_a_probe_of_conversations_that_is_ended_as_lost_is_a_fail() -> None:
    workload = Conversations(mean_turns=3.0, mean_think_s=2.0)
    verdict = probe(Scripted(answer(ttft_s=2.5)), rate_rps=5.0, workload=workload)
    assert verdict.facts.stop is Stop.LOST
    assert verdict.outcome is Outcome.FAIL
    assert verdict.facts.saved_s > 0


def test_conversations_that_go_well_are_measured_to_the_end() -> None:
    verdict = probe(Scripted(answer()), rate_rps=5.0, workload=Conversations(mean_think_s=2.0), duration_s=25.0)
    assert (verdict.facts.stop, verdict.outcome) == (Stop.COMPLETE, Outcome.PASS)
    assert verdict.summary.n == verdict.facts.window.scheduled


def test_requests_over_each_limit_are_counted_for_the_view() -> None:
    referee = SloReferee(SLO, schedule([0.0] * 10))
    for each in (GOOD, record(1, ttft_s=3.0), record(2, tpot_s=0.06), failed(record(3))):
        referee.resolved(each)
    assert referee.over == [2, 2]


def earlier(over: int, n: int) -> WindowSample:
    """A window with so many of n over the first objective's limit."""
    results = tuple(ObjectiveResult(each, n, over, allowed(n, each.percentile), None) for each in SLO)
    return WindowSample(10.0, 0, 120.0, Outcome.FAIL, is_whole=True, results=results, readings=(None, None))


@pytest.mark.parametrize(
    ("windows", "more_windows", "misses"),
    [([], 3, 80), ([earlier(0, 100)], 2, 80), ([earlier(50, 100)], 2, 30), ([earlier(50, 100)], 0, 0), ([], 0, 20)],
)
def test_where_windows_are_judged_together_it_is_lost_when_no_window_to_come_could_save_the_rate(
    windows: list[WindowSample], more_windows: int, misses: int
) -> None:
    """One in five may be over. `misses`: the most of this window's hundred that may still be."""
    referee = SloReferee(SLO[:1], schedule([0.0] * 100, end_s=1e6), RateSoFar(windows, more_windows))
    looks = []
    for index in range(misses + 1):
        assert referee.look(10.0, 0, 0) is None
        referee.resolved(record(index, ttft_s=3.0, ended_s=4.0))
        looks.append(referee.look(10.0, 0, 0))
    assert looks == [*[None] * misses, Stop.LOST]


def test_a_long_window_ends_when_its_outcome_is_proven_and_only_where_windows_are_judged_together() -> None:
    plan = planned(3.0, fixed_lengths(100, 20), DEFAULT_SLO, 0, 200.0)

    def stop(so_far: RateSoFar | None) -> tuple[Stop, float]:
        async def main() -> ProbeVerdict:
            referee = SloReferee(DEFAULT_SLO, plan, so_far)
            return judge_probe(await run_probe(Scripted(uneven()), plan, referee), DEFAULT_SLO)

        verdict = run_virtual(main())
        assert verdict.outcome is Outcome.PASS
        return verdict.facts.stop, verdict.facts.saved_s

    assert stop(None) == (Stop.COMPLETE, 0.0)
    assert stop(RateSoFar([], 3)) == (Stop.PROVEN, 60.0)  # six blocks and one of grace after the ramp


def uneven() -> Act:
    """Answers far below the limits, no two alike."""

    async def act(request: Request, flight: Flight) -> None:
        factor = math.exp(0.1 * math.sin(request.index))
        await asyncio.sleep(0.2 * factor)
        flight.token(loop_s())
        await asyncio.sleep(0.01 * factor * (request.output_tokens - 1))
        flight.token(loop_s(), request.output_tokens - 1)
        flight.finish(loop_s(), End.FINISHED)

    return act


def errors_at(failed_s: list[float], fine_s: list[float], now_s: float) -> Stop | None:
    referee = SloReferee(DEFAULT_SLO, schedule([0.0] * 10_000, end_s=1e6))
    ends = [(moment_s, End.FAILED) for moment_s in failed_s] + [(moment_s, End.FINISHED) for moment_s in fine_s]
    for index, (ended_s, end) in enumerate(sorted(ends)):
        referee.resolved(record(index, ended_s=ended_s, end=end))
    return referee.look(now_s, 0, 0)


def test_a_fifth_of_errors_within_five_seconds_ends_it() -> None:
    assert errors_at([12.0] * 5, [11.0] * 20, 14.0) is Stop.ERRORS
    assert errors_at([12.0] * 5, [11.0] * 21, 14.0) is None


def test_a_handful_of_errors_does_not_end_it() -> None:
    assert errors_at([12.0] * 4, [], 14.0) is None


def test_errors_of_more_than_five_seconds_ago_are_forgotten() -> None:
    assert errors_at([8.9] * 9, [11.0] * 5, 14.0) is None
    assert errors_at([9.1] * 9, [11.0] * 5, 14.0) is Stop.ERRORS


def probe(
    engine: Engine,
    *,
    rate_rps: float,
    workload: Workload = CHAT_MIX,
    slo: tuple[Objective, ...] = DEFAULT_SLO,
    seed: int = 0,
    duration_s: float = 120.0,
) -> ProbeVerdict:
    plan = planned(rate_rps, workload, slo, seed, duration_s)

    async def main() -> ProbeVerdict:
        return judge_probe(await run_probe(engine, plan, SloReferee(slo, plan)), slo)

    return run_virtual(main())


def planned(rate_rps: float, workload: Workload, slo: tuple[Objective, ...], seed: int, duration_s: float) -> Schedule:
    return open_loop(
        Draw(workload, seed, 0),
        rate_rps=rate_rps,
        ramp_s=20.0,
        duration_s=duration_s,
        drain_limit_s=lambda longest: drain_limit_s(slo, longest),
        text=None,
    )


def simulated(settings_: EngineSettings, slo: tuple[Objective, ...], *, rate_rps: float, seed: int) -> ProbeVerdict:
    plan = planned(rate_rps, CHAT_MIX, slo, seed, 120.0)

    async def main() -> ProbeVerdict:
        async with SimulatedEngine(StepModel(settings_, seed)) as engine:
            return judge_probe(await run_probe(engine, plan, SloReferee(slo, plan)), slo)

    return run_virtual(main())


SHORT = fixed_lengths(100, 3)


def test_an_engine_that_answers_one_in_four_by_an_error_is_ended_within_seconds() -> None:
    engine = Scripted(answer(), {index: fail(0.2) for index in range(0, 2000, 4)})
    verdict = probe(engine, rate_rps=10.0, workload=SHORT)
    assert verdict.facts.stop is Stop.ERRORS
    assert verdict.facts.load_s < 20.0 + 10.0
    assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, LimitedBy.FAILURES)
    assert verdict.facts.saved_s > 100.0


def test_an_engine_that_is_always_late_is_ended_soon_after_the_window_began() -> None:
    verdict = probe(Scripted(answer(ttft_s=3.0)), rate_rps=10.0, workload=fixed_lengths(100, 100))
    assert verdict.facts.stop is Stop.LOST
    assert verdict.facts.load_s < 20.0 + 4.0 + 5.0
    assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, LimitedBy.TTFT)


@pytest.mark.parametrize("answered", [0, 500])
def test_an_engine_that_hangs_never_passes(answered: int) -> None:
    engine = Scripted(silent(), {index: answer() for index in range(answered)})
    verdict = probe(engine, rate_rps=10.0, workload=SHORT)
    assert verdict.outcome in (Outcome.FAIL, Outcome.UNSTABLE)


def test_a_queue_that_grows_without_end_is_unstable() -> None:
    patient = (parse_objective("ttft:p99:900000"), parse_objective("tpot:p99:900"))
    few_seats = EngineSettings(max_num_seqs=48)
    verdict = simulated(few_seats, patient, rate_rps=14.0, seed=0)
    assert verdict.facts.stop is Stop.GROWTH
    assert verdict.outcome is Outcome.UNSTABLE
    assert verdict.facts.saved_s > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_server_at_nineteen_twentieths_of_its_capacity_is_not_unstable(seed: int) -> None:
    verdict = simulated(EngineSettings(), DEFAULT_SLO, rate_rps=0.95 * CAPACITY_RPS, seed=seed)
    assert verdict.facts.stop is not Stop.GROWTH


def grows(rate_rps: float, seed: int) -> bool:
    """Whether a referee that only counts would call the default engine unstable at that rate."""
    plan = planned(rate_rps, CHAT_MIX, DEFAULT_SLO, seed, 120.0)
    referee = SloReferee(DEFAULT_SLO, plan)
    due_s = np.array([each.due_s for each in plan.requests])
    inputs = np.array([each.input_tokens for each in plan.requests])
    outputs = np.array([each.output_tokens for each in plan.requests])
    driven = StepModel(EngineSettings(), seed).drive(due_s, inputs, outputs, until_s=142.0)
    ended_s = np.nan_to_num(driven.ended_s, nan=np.inf)
    looks = set()
    for now_s in np.arange(1.0, 141.0):
        is_sent = due_s <= now_s
        looks.add(referee.look(now_s, int(np.sum(is_sent & (ended_s > now_s))), int(np.sum(is_sent))))
    return Stop.GROWTH in looks


@pytest.mark.parametrize(
    ("rate_rps", "seeds"),
    [
        (4.0, [0, 75, 88, 160, 167, 182]),
        (8.0, [0, 72, 79, 134]),
        (10.77, [0, 41, 47, 72]),
    ],
)
def test_no_draw_below_capacity_is_called_growth(rate_rps: float, seeds: list[int]) -> None:
    """Seeds of two digits and more are those in 400 whose in-flight rises evenly over three blocks by luck."""
    assert [seed for seed in seeds if grows(rate_rps, seed)] == []


def test_a_server_that_meets_every_limit_is_not_unstable_however_its_requests_bunch() -> None:
    """Each request takes 5.5 s of the 6.95 s that its limits allow; in flight, Poisson, goes above rate x 6.95 s."""

    async def in_limits(request: Request, flight: Flight) -> None:
        await asyncio.sleep(1.0)
        flight.token(loop_s())
        await asyncio.sleep(0.045 * (request.output_tokens - 1))
        flight.token(loop_s(), request.output_tokens - 1)
        flight.finish(loop_s(), End.FINISHED)

    verdict = probe(Scripted(in_limits), rate_rps=2.0, workload=fixed_lengths(100, 100))
    assert verdict.misses == 0
    assert (verdict.facts.stop, verdict.outcome) == (Stop.COMPLETE, Outcome.PASS)


def test_a_steady_count_is_no_growth() -> None:
    plan = planned(10.0, CHAT_MIX, DEFAULT_SLO, 0, 120.0)
    referee = SloReferee(DEFAULT_SLO, plan)
    sent = [sum(request.due_s <= now_s for request in plan.requests) for now_s in range(1, 141)]
    assert {referee.look(float(now_s), 60, sent[now_s - 1]) for now_s in range(1, 141)} == {None}


def test_too_few_blocks_are_no_growth() -> None:
    assert not is_growing([])
