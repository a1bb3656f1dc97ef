"""One probe: due times, cohort, deadline, early end, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from engines import (
    Scripted,
    answer,
    blocking,
    broken,
    broken_when_cancelled,
    fail,
    loop_s,
    schedule,
    silent,
    stubborn,
)

from traffic.engine import Engine
from traffic.errors import EngineError
from traffic.probe import TICK_S, ProbeFacts, Progress, Referee, Stop, run_probe
from traffic.records import End, RequestRecord
from traffic.schedule import Draw, Schedule, open_loop
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel
from traffic.virtual_time import VirtualLoop, run_virtual
from traffic.workload import CHAT_MIX

EVERY_SECOND = [second + 0.1 for second in range(30)]
"""Due 0.1 to 29.1 s, never on a tick; the window of `schedule` is 0 to 10 s, its drain ends at 15 s."""


@dataclass
class Whistle:
    """A referee that ends the probe at a moment."""

    at_s: float = 1e9
    stop: Stop = Stop.LOST
    told: list[RequestRecord] = field(default_factory=list)
    looks: list[tuple[float, int, int]] = field(default_factory=list)

    def resolved(self, record: RequestRecord) -> None:
        self.told.append(record)

    def look(self, now_s: float, in_flight: int, sent: int) -> Stop | None:
        self.looks.append((now_s, in_flight, sent))
        return self.stop if now_s >= self.at_s else None


async def alone(work: Coroutine[Any, Any, ProbeFacts]) -> ProbeFacts:
    """Await the work and see that no task is left, whether it returns or raises."""
    try:
        return await work
    finally:
        await asyncio.sleep(0)  # a cancelled task needs one turn to end
        assert asyncio.all_tasks() == {asyncio.current_task()}


def probe(engine: Engine, plan: Schedule, referee: Referee | None = None, **more: Any) -> ProbeFacts:
    return run_virtual(alone(run_probe(engine, plan, referee, **more)))


def test_requests_go_out_at_their_due_times() -> None:
    facts = probe(Scripted(answer()), schedule(EVERY_SECOND))
    assert [each.sent_s for each in facts.records] == pytest.approx([each.due_s for each in facts.records])
    assert facts.records[0].ttft_s == pytest.approx(0.1)


def test_a_first_token_is_charged_from_the_due_time_when_the_client_is_late() -> None:
    plan = schedule([1.0, 1.1, 1.2, 5.0])
    facts = probe(Scripted(answer(0.1), {0: blocking(0.6, answer(0.1))}), plan)
    assert [each.sent_s for each in facts.records[:4]] == pytest.approx([1.0, 1.6, 1.6, 5.0])
    assert [each.ttft_s for each in facts.records[:4]] == pytest.approx([0.7, 0.6, 0.5, 0.1])
    assert [each.send_lag_s for each in facts.records[:4]] == pytest.approx([0.0, 0.5, 0.4, 0.0])
    assert facts.stall_max_s == pytest.approx(0.35)  # the tick at 1.25 s came at 1.6 s


def test_a_client_whose_every_turn_is_slow_has_stalls_of_that_length_and_no_longer() -> None:
    def slow_view(_: Progress) -> None:
        loop: Any = asyncio.get_running_loop()
        loop._virtual_now_s += 0.4

    facts = probe(Scripted(answer()), schedule(EVERY_SECOND), observe=slow_view)
    assert 0.1 < facts.stall_max_s <= 0.4


def test_a_dispatch_that_costs_time_does_not_slow_the_load_down() -> None:  # R12
    plan = open_loop(
        Draw(CHAT_MIX, 0, 0), rate_rps=8.0, ramp_s=0.0, duration_s=60.0, drain_limit_s=lambda _: 5.0, text=None
    )
    facts = probe(Scripted(blocking(0.004, answer(tokens=1))), plan)
    lags = [each.send_lag_s for each in facts.records if each.send_lag_s is not None]
    assert len(lags) == len(facts.records) >= plan.window.scheduled > 400
    assert max(lags) < 0.05
    assert min(lags) > -1e-9


def test_the_cohort_is_chosen_by_due_time() -> None:
    facts = probe(Scripted(answer(0.5)), schedule(EVERY_SECOND, start_s=4.0))
    assert [each.index for each in facts.records if each.in_cohort] == [4, 5, 6, 7, 8, 9]


def test_a_request_sent_late_stays_in_the_cohort_of_its_due_time() -> None:
    facts = probe(Scripted(answer(), {9: blocking(1.5, answer())}), schedule([*EVERY_SECOND[:10], 9.5, 10.0, 11.0]))
    late = facts.records[10]
    assert (late.due_s, late.sent_s, late.in_cohort) == (9.5, pytest.approx(10.6), True)


def test_load_goes_on_after_the_window_until_the_last_of_the_cohort_has_ended() -> None:
    engine = Scripted(answer(), {9: answer(ttft_s=3.5)})
    facts = probe(engine, schedule(EVERY_SECOND))
    assert facts.stop is Stop.COMPLETE
    assert facts.load_s == pytest.approx(12.62)
    assert [each.index for each in engine.received] == list(range(13))
    assert facts.saved_s == 0.0


def test_a_cohort_that_ended_in_time_is_waited_for_to_the_end_of_the_window() -> None:
    facts = probe(Scripted(answer()), schedule([0.0, 1.0]))
    assert facts.stop is Stop.COMPLETE
    assert 10.0 <= facts.load_s <= 10.0 + TICK_S


def test_an_empty_cohort_is_waited_for_too() -> None:
    facts = probe(Scripted(answer()), schedule([20.0]))
    assert (facts.stop, facts.records) == (Stop.COMPLETE, ())
    assert facts.load_s >= 10.0


def test_what_is_unfinished_at_the_drain_limit_is_told_so_with_its_facts() -> None:
    facts = probe(Scripted(answer(), {5: silent(tokens=2, every_s=0.25)}), schedule(EVERY_SECOND))
    assert facts.stop is Stop.DRAIN_LIMIT
    assert 15.0 <= facts.load_s <= 15.0 + TICK_S
    hung = facts.records[5]
    assert (hung.end, hung.output_tokens, hung.ended_s) == (End.UNFINISHED, 2, None)
    assert (hung.first_token_s, hung.last_token_s) == (pytest.approx(5.35), pytest.approx(5.6))
    assert {each.end for each in facts.records if each.in_cohort and each.index != 5} == {End.FINISHED}


def test_at_the_drain_limit_nothing_outside_the_cohort_counts_as_unfinished() -> None:
    facts = probe(Scripted(silent()), schedule(EVERY_SECOND, start_s=3.0))
    ends = {each.in_cohort: set() for each in facts.records}
    for each in facts.records:
        ends[each.in_cohort].add(each.end)
    assert ends == {True: {End.UNFINISHED}, False: {End.UNRESOLVED}}


@pytest.mark.parametrize(
    "act", [silent(), silent(tokens=3), fail(0.2), fail()], ids=["mute", "stalled", "bad", "at once"]
)
def test_the_deadline_holds_whatever_the_engine_does(act: Any) -> None:  # R13
    facts = probe(Scripted(act), schedule(EVERY_SECOND))
    assert facts.load_s <= 15.0 + TICK_S
    assert sum(each.in_cohort for each in facts.records) == 10


def test_an_early_end_leaves_the_rest_unresolved_and_says_what_it_saved() -> None:
    referee = Whistle(at_s=4.0)
    facts = probe(Scripted(answer(), {2: silent(), 3: silent(tokens=1)}), schedule(EVERY_SECOND), referee)
    assert facts.stop is Stop.LOST
    assert {each.index: each.end for each in facts.records} == {
        0: End.FINISHED,
        1: End.FINISHED,
        2: End.UNRESOLVED,
        3: End.UNRESOLVED,
    }
    assert facts.records[3].output_tokens == 1
    assert facts.load_s == pytest.approx(4.0)
    assert facts.saved_s == pytest.approx(6.0)


def test_an_end_in_the_drain_saves_nothing_of_the_window() -> None:
    facts = probe(Scripted(answer(), {9: silent()}), schedule(EVERY_SECOND), Whistle(at_s=12.0))
    assert (facts.stop, facts.saved_s) == (Stop.LOST, 0.0)


def test_the_referee_hears_of_the_cohort_alone_and_looks_every_second() -> None:
    referee = Whistle()
    probe(Scripted(answer(0.5), {9: answer(2.2)}), schedule(EVERY_SECOND, start_s=2.0), referee)
    assert [each.index for each in referee.told] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert [now_s for now_s, _, _ in referee.looks] == pytest.approx([1.0 * tick for tick in range(1, 12)])
    assert referee.looks[10] == (pytest.approx(11.0), 1, 11)


def test_a_request_that_was_due_but_never_sent_has_its_record() -> None:
    def stand_still(progress: Progress) -> None:
        if progress.now_s == pytest.approx(4.0):
            loop: Any = asyncio.get_running_loop()
            loop._virtual_now_s += 2.5

    class Late(Whistle):
        def look(self, now_s: float, in_flight: int, sent: int) -> Stop | None:
            return super().look(loop_s() - 0.05 if now_s >= 4.0 else now_s, in_flight, sent)

    facts = probe(Scripted(answer(0.5)), schedule(EVERY_SECOND), Late(at_s=6.0), observe=stand_still)
    assert facts.load_s == pytest.approx(6.5)
    unsent = [each for each in facts.records if each.sent_s is None]
    assert [each.index for each in unsent] == [4, 5, 6]
    assert {each.end for each in unsent} == {End.UNRESOLVED}
    assert [each.index for each in facts.records] == list(range(7))


def test_records_come_in_the_order_of_the_schedule() -> None:
    facts = probe(Scripted(answer(0.1), {0: answer(4.0), 3: answer(2.5)}), schedule(EVERY_SECOND))
    assert [each.index for each in facts.records] == sorted(each.index for each in facts.records)


def test_a_programming_error_of_the_engine_surfaces_within_a_tick() -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError, match="a fault"):
            await alone(
                run_probe(Scripted(answer(5.0), {3: broken(ZeroDivisionError("a fault"))}), schedule(EVERY_SECOND))
            )
        assert loop_s() <= 3.2 + 2 * TICK_S

    run_virtual(main())


def test_a_programming_error_of_the_last_request_surfaces_too() -> None:
    with pytest.raises(ZeroDivisionError, match="a fault"):
        probe(Scripted(answer(), {9: broken(ZeroDivisionError("a fault"), after_s=2.0)}), schedule(EVERY_SECOND))


def test_a_programming_error_on_cancellation_surfaces_too() -> None:
    engine = Scripted(answer(), {3: broken_when_cancelled(ZeroDivisionError("a fault"))})
    with pytest.raises(ZeroDivisionError, match="a fault"):
        probe(engine, schedule(EVERY_SECOND))


def test_a_dead_engine_ends_the_probe_with_its_cause() -> None:
    def check() -> None:
        if loop_s() > 3.2:
            raise EngineError("the server exited with 137")

    engine = Scripted(silent())
    with pytest.raises(EngineError, match="exited with 137"):
        probe(engine, schedule(EVERY_SECOND), check=check)
    assert engine.open == 0
    assert len(engine.received) == 4


def test_an_engine_that_does_not_let_go_is_told_as_broken() -> None:
    async def main() -> None:
        with pytest.raises(EngineError, match="did not end within 10 s"):
            await run_probe(Scripted(stubborn(60.0)), schedule(EVERY_SECOND))

    run_virtual(main())


def test_a_probe_that_is_cancelled_leaves_nothing_behind() -> None:
    engine = Scripted(silent())

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.3):
                await alone(run_probe(engine, schedule(EVERY_SECOND)))

    run_virtual(main())
    assert engine.open == 0


def test_an_error_of_the_view_leaves_nothing_behind() -> None:
    def burst(progress: Progress) -> None:
        if progress.now_s > 2:
            raise OSError("the terminal is gone")

    engine = Scripted(silent())
    with pytest.raises(OSError, match="terminal is gone"):
        probe(engine, schedule(EVERY_SECOND), observe=burst)
    assert engine.open == 0


def test_the_view_sees_a_quarter_second_at_a_time() -> None:
    seen: list[Progress] = []
    probe(Scripted(answer(1.5)), schedule(EVERY_SECOND), observe=seen.append)
    assert [each.now_s for each in seen[:8]] == pytest.approx([0.25 * tick for tick in range(1, 9)])
    counts = [(each.sent, each.in_flight, each.resolved) for each in seen[3:8]]
    assert counts == [(1, 1, 0), (2, 2, 0), (2, 2, 0), (2, 1, 1), (2, 1, 1)]


def stepping(step_s: float) -> Callable[[], VirtualLoop]:
    class Stepping(VirtualLoop):
        def utc_s(self) -> float:
            return super().utc_s() + (step_s if self.time() > 5 else 0.0)

    return Stepping


@pytest.mark.parametrize("step_s", [30.0, -30.0])
def test_a_step_of_utc_changes_no_record_and_is_told(step_s: float) -> None:  # R12
    plan = schedule(EVERY_SECOND)
    with asyncio.Runner(loop_factory=stepping(step_s)) as runner:
        facts = runner.run(run_probe(Scripted(answer()), plan))
    assert facts.records == probe(Scripted(answer()), plan).records
    assert facts.clock_step_s == pytest.approx(step_s)


def simulated(seed: int) -> ProbeFacts:
    async def main() -> ProbeFacts:
        plan = open_loop(
            Draw(CHAT_MIX, seed, 0), rate_rps=8.0, ramp_s=2.0, duration_s=10.0, drain_limit_s=lambda _: 20.0, text=None
        )
        async with SimulatedEngine(StepModel(EngineSettings(), seed)) as engine:
            return await alone(run_probe(engine, plan))

    return run_virtual(main())


def test_the_same_seed_gives_the_same_facts() -> None:
    assert simulated(3) == simulated(3)
    assert simulated(3).records != simulated(4).records


def test_the_simulated_engine_is_cancelled_with_its_facts_too() -> None:
    async def main() -> ProbeFacts:
        plan = open_loop(
            Draw(CHAT_MIX, 0, 0), rate_rps=8.0, ramp_s=2.0, duration_s=20.0, drain_limit_s=lambda _: 20.0, text=None
        )
        async with SimulatedEngine(StepModel(EngineSettings(), 0)) as engine:
            facts = await alone(run_probe(engine, plan, Whistle(at_s=12.0)))
            await engine.wait_idle()
            return facts

    cut = [each for each in run_virtual(main()).records if each.end is End.UNRESOLVED]
    running = [each for each in cut if each.output_tokens > 1]
    assert running
    assert all(each.tpot_s is not None and each.tpot_s > 0 for each in running)
