"""A running engine under one load: from rest to rest, fresh text, warm or said not to be."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import Scripted, ScriptedHost, answer, fail, loop_s, silent, words
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.slo import DEFAULT_SLO, parse_objective
from gates.validity import MEASURED, SMOKE
from gates.verdict import Outcome, ProbeVerdict
from slo_bench.bench import IDLE_LIMIT_S, Bench, Load, check_fits
from slo_bench.hosts import EngineFacts
from slo_bench.hosts.simulated import SimulatedHost
from traffic.chat_dataset import ChatDataset, chat_dataset
from traffic.conversations import Conversations
from traffic.errors import EngineError, UsageError
from traffic.probe import Stop
from traffic.records import End, Flight, Request
from traffic.schedule import shared_share
from traffic.shared_prefix import SharedPrefix
from traffic.step_model import EngineSettings
from traffic.traced import Traced
from traffic.traces import Trace
from traffic.virtual_time import run_virtual
from traffic.workload import CHAT_MIX, fixed_lengths

P90 = tuple(parse_objective(text) for text in ("ttft:p90:2000", "tpot:p90:50"))
LOAD = Load(fixed_lengths(30, 3), 1.0, 0, P90, ramp_s=2.0, bounds=MEASURED)


def on_bench(host: ScriptedHost, act: Callable[[Bench], Coroutine[Any, Any, Any]], load: Load = LOAD) -> Any:
    async def main() -> Any:
        return await act(await Bench.prepare(host, load))

    return run_virtual(main())


def window(host: ScriptedHost, **more: Any) -> ProbeVerdict:
    return on_bench(host, lambda bench: bench.window(5.0, 0, 10.0, **more))


def context(limit: int | None) -> EngineFacts:
    return EngineFacts("attached", "small-model", limit, None)


def test_a_mix_that_fits_is_taken() -> None:
    check_fits(replace(LOAD, workload=CHAT_MIX), context(9192))
    check_fits(replace(LOAD, workload=CHAT_MIX), context(None))


def test_what_an_engine_compiles_in_a_window_is_flagged_and_what_it_compiled_before_is_not() -> None:
    host = ScriptedHost(Scripted(answer()), told=["before the load"])
    answer_late = host.engine.act

    async def compiling(request: Request, flight: Flight) -> None:
        if request.index == 3:
            host.told.append("Starting torch.compile")
        await answer_late(request, flight)

    host.engine.act = compiling
    verdict = window(host)
    assert verdict.flags == ("the engine's log: Starting torch.compile",)
    assert verdict.outcome is Outcome.PASS


@settings(deadline=None)
@given(limit=st.integers(64, 9191))
def test_a_mix_that_does_not_fit_is_refused_with_the_scale_that_would(limit: int) -> None:  # R18
    load = replace(LOAD, workload=CHAT_MIX)
    with pytest.raises(UsageError, match=r"use --length-scale \d\.\d+ or less") as refused:
        check_fits(load, context(limit))
    scale = float(str(refused.value).split("--length-scale ")[1].split(" ")[0])
    assert 0 < scale < 1
    check_fits(replace(load, length_scale=scale), context(limit))


def test_a_trace_that_does_not_fit_may_be_cut_too() -> None:
    trace = Trace("long", np.arange(2.0), np.array([100, 20_000]), np.array([5, 1000]))
    with pytest.raises(UsageError, match=r"--length-scale 0\.378 or less, or --max-input-tokens 6946"):
        check_fits(replace(LOAD, workload=Traced(trace)), context(8192))
    check_fits(replace(LOAD, workload=Traced(trace, 6946)), context(8192))


def test_a_mix_that_does_not_fit_is_refused_before_anything_is_sent() -> None:
    host = ScriptedHost(Scripted(answer()), facts=context(32), needs_text=True, count=words)
    with pytest.raises(UsageError, match="small-model holds 32"):
        window(host)
    assert host.engine.received == []


def test_a_window_is_judged_and_the_server_left_idle() -> None:
    host = ScriptedHost(Scripted(answer()), idle_after_s=3.0)
    ended: list[float] = []

    async def act(bench: Bench) -> ProbeVerdict:
        verdict = await bench.window(5.0, 0, 10.0)
        ended.append(loop_s())
        return verdict

    verdict = on_bench(host, act)
    assert verdict.outcome is Outcome.PASS
    assert verdict.facts.window.rate_rps == 5.0
    assert host.waits == [IDLE_LIMIT_S]
    assert ended[0] >= verdict.facts.load_s + 3.0


def test_a_server_that_does_not_rest_is_told() -> None:
    class Restless(ScriptedHost):
        async def wait_idle(self, limit_s: float) -> None:
            raise EngineError(f"still busy after {limit_s:g} s")

    with pytest.raises(EngineError, match="still busy after 60 s"):
        window(Restless(Scripted(answer())))


def test_a_dead_engine_ends_the_window() -> None:
    with pytest.raises(EngineError, match="exited with 137"):
        window(ScriptedHost(Scripted(silent()), death=EngineError("the server exited with 137")))


def test_a_lost_window_ends_early_unless_it_must_be_whole() -> None:
    late = answer(ttft_s=2.05)
    early = window(ScriptedHost(Scripted(late)))
    whole = window(ScriptedHost(Scripted(late)), can_end_early=False)
    assert early.facts.stop.is_early
    assert whole.facts.stop is Stop.COMPLETE
    assert whole.summary.n == whole.facts.window.scheduled
    assert early.outcome in (Outcome.FAIL, Outcome.UNSTABLE)
    assert whole.outcome is Outcome.FAIL


def test_the_view_is_told_of_requests_over_each_limit() -> None:
    counts: list[list[int]] = []
    window(
        ScriptedHost(Scripted(answer(), {20: answer(ttft_s=2.5)})),
        observe=lambda _, over: counts.append(list(over)),
    )
    assert counts[0] == [0, 0]
    assert counts[-1] == [1, 0]


def test_no_text_comes_twice_on_one_server_whatever_is_measured() -> None:  # R17
    host = ScriptedHost(Scripted(answer()), needs_text=True, count=words)

    async def act(bench: Bench) -> None:
        await bench.warm_up(5.0, 4.0, 3)
        for rate_rps, repeat in ((5.0, 0), (5.0, 1), (6.25, 0), (5.0, 0), (5.0, 0)):
            await bench.window(rate_rps, repeat, 5.0)

    on_bench(host, act)
    openings = [" ".join(each.messages[0].text.split()[:16]) for each in host.engine.received]
    assert len(openings) > 150
    assert len(set(openings)) == len(openings)


def test_another_server_start_gets_the_same_load_in_other_words() -> None:
    hosts = [
        ScriptedHost(
            Scripted(answer()),
            facts=EngineFacts("attached", "m", None, None, start=start),
            needs_text=True,
            count=words,
        )
        for start in (0, 1)
    ]
    for host in hosts:
        window(host)
    first, second = (host.engine.received for host in hosts)
    assert [each.due_s for each in first] == [each.due_s for each in second]
    assert not {each.messages for each in first} & {each.messages for each in second}


def test_an_engine_that_cannot_force_lengths_is_not_asked_to() -> None:
    facts = EngineFacts("attached", "m", None, None, takes_forced_length=False)
    host = ScriptedHost(Scripted(answer()), facts=facts)
    window(host)
    assert {each.force_length for each in host.engine.received} == {False}


def test_warm_up_replays_one_schedule_in_fresh_words_and_ends_when_two_blocks_agree() -> None:
    host = ScriptedHost(Scripted(answer()), needs_text=True, count=words)
    warm = on_bench(host, lambda bench: bench.warm_up(5.0, 6.0, 6))
    assert warm.is_warm
    assert len(warm.tpot_mean_s) == 2
    received = host.engine.received
    half = len(received) // 2
    first, second = received[:half], received[half:]
    assert [(each.due_s, each.output_tokens) for each in first] == [(each.due_s, each.output_tokens) for each in second]
    assert not {each.messages for each in first} & {each.messages for each in second}
    assert len(host.waits) == 2


def counting_more(share: float) -> Scripted:
    """A server whose usage counts that much more than the words which its /tokenize counts."""
    good = answer()

    async def act(request: Request, flight: Flight) -> None:
        flight.prompt_tokens = round(words(request.messages) * (1 + share))
        await good(request, flight)

    return Scripted(act)


def test_prompts_that_the_warm_up_finds_too_long_are_as_meant_in_every_window_after_it() -> None:  # R18
    host = ScriptedHost(counting_more(0.0273), needs_text=True, count=words)
    load = replace(LOAD, workload=fixed_lengths(2048, 3), ramp_s=0.0)

    async def act(bench: Bench) -> list[ProbeVerdict]:
        before = await bench.window(2.0, 0, 4.0)
        await bench.warm_up(2.0, 8.0, 1)
        ratio = bench.text
        after = [await bench.window(rate_rps, 0, 4.0) for rate_rps in (2.0, 2.5)]
        await bench.warm_up(2.5, 2.0, 1)
        assert bench.text is ratio
        return [before, *after]

    before, *after = on_bench(host, act, load)
    assert before.flags == (
        "the server counts 2104 tokens in a mean prompt (2104 to 2104), +2.7% from the 2048 that were meant",
    )
    assert [verdict.flags for verdict in after] == [(), ()]
    counts = {each.prompt_tokens for verdict in after for each in verdict.facts.records} - {None}
    assert counts <= {2047, 2048, 2049}


def talk(folder: Path, words_each: int) -> ChatDataset:
    rows = [{"prompt": f"row {index} " + "word " * words_each, "response": "word " * 8} for index in range(60)]
    (folder / "talk.json").write_text(json.dumps(rows))
    return chat_dataset(str(folder / "talk.json"))


def test_a_data_sets_prompts_are_counted_and_its_answers_stay_what_they_were(tmp_path: Path) -> None:
    host = ScriptedHost(counting_more(0.05), needs_text=True, count=words)
    load = replace(LOAD, workload=talk(tmp_path, 100), ramp_s=0.0)

    async def act(bench: Bench) -> tuple[int, ProbeVerdict]:
        answers = bench.load.workload.max_output_tokens
        await bench.warm_up(5.0, 4.0, 2)
        assert bench.load.workload.max_output_tokens == answers
        return answers, await bench.window(5.0, 0, 10.0)

    answers, verdict = on_bench(host, act, load)
    assert 7 <= answers <= 9
    assert verdict.flags == ()
    assert verdict.invalid_reasons == ()


def test_a_data_set_that_does_not_fit_is_refused_with_the_limit_that_would(tmp_path: Path) -> None:  # R18
    load = replace(LOAD, workload=talk(tmp_path, 1000))
    with pytest.raises(UsageError, match="leave long prompts out with --max-input-tokens") as refused:
        check_fits(load, context(512))
    limit = int(str(refused.value).rpartition(" ")[2])
    with pytest.raises(UsageError, match="no row can be asked"):
        chat_dataset(str(tmp_path / "talk.json"), longest_prompt_tokens=limit)
    with pytest.raises(UsageError, match="give a smaller --output-tokens"):
        check_fits(load, context(8))


def by_block(tpot_s: Callable[[int], float]) -> Scripted:
    """An engine whose time per token depends on how many warm-up blocks it has begun."""
    engine: Scripted

    async def act(request: Request, flight: Flight) -> None:
        block = sum(each.index == 0 for each in engine.received) - 1
        await answer(tpot_s=tpot_s(block))(request, flight)

    engine = Scripted(act)
    return engine


def slowing(factor: float) -> Scripted:
    return by_block(lambda block: 0.01 * factor**block)


def test_a_server_that_keeps_changing_is_not_warm_after_the_last_block() -> None:
    warm = on_bench(ScriptedHost(slowing(1.1)), lambda bench: bench.warm_up(5.0, 6.0, 4))
    assert not warm.is_warm
    assert len(warm.tpot_mean_s) == 4


def test_blocks_within_three_percent_agree() -> None:
    assert on_bench(ScriptedHost(slowing(1.029)), lambda bench: bench.warm_up(5.0, 6.0, 6)).is_warm
    assert not on_bench(ScriptedHost(slowing(1.031)), lambda bench: bench.warm_up(5.0, 6.0, 6)).is_warm


def test_a_cold_first_block_costs_one_block_more() -> None:  # R30
    host = ScriptedHost(by_block(lambda block: 0.01 if block else 0.05))
    warm = on_bench(host, lambda bench: bench.warm_up(5.0, 6.0, 6))
    assert warm.is_warm
    assert len(warm.tpot_mean_s) == 3


def test_a_server_that_only_fails_is_never_warm() -> None:
    warm = on_bench(ScriptedHost(Scripted(fail(0.05))), lambda bench: bench.warm_up(5.0, 3.0, 3))
    assert (warm.is_warm, warm.tpot_mean_s) == (False, [None, None, None])


def test_a_closed_loop_claims_no_rate() -> None:
    host = ScriptedHost(Scripted(answer(0.2)))
    verdict = on_bench(host, lambda bench: bench.closed_loop(4, 0, 10.0))
    assert (verdict.facts.window.rate_rps, verdict.facts.window.concurrency) == (None, 4)
    assert verdict.outcome is Outcome.PASS
    assert host.engine.most_open == 4
    assert host.waits == [IDLE_LIMIT_S]
    finished = [each for each in verdict.facts.records if each.end is End.FINISHED]
    assert {round(each.ttft_s or 0.0, 6) for each in finished} == {0.2}


def test_a_closed_loop_states_what_share_its_prompts_repeat() -> None:
    load = replace(LOAD, workload=SharedPrefix(fixed_lengths(40, 3), 20))
    verdict = on_bench(ScriptedHost(Scripted(answer(0.2))), lambda bench: bench.closed_loop(4, 0, 10.0), load)
    assert verdict.facts.window.shared_share == 0.5


def test_conversations_state_the_share_of_the_turns_that_came_into_the_window() -> None:
    load = replace(LOAD, workload=Conversations())
    host = ScriptedHost(Scripted(answer(4.0)))
    verdict = on_bench(host, lambda bench: bench.window(5.0, 0, 20.0, can_end_early=False), load)
    sent = {each.index: each for each in host.engine.received}
    cohort = [sent[each.index] for each in verdict.facts.records if each.in_cohort]
    assert verdict.facts.window.shared_share == shared_share(cohort) > 0.3


def test_a_second_closed_loop_on_one_server_sends_no_text_again() -> None:  # R17
    host = ScriptedHost(Scripted(answer(0.5)), needs_text=True, count=words)

    async def act(bench: Bench) -> None:
        await bench.closed_loop(2, 0, 5.0)
        await bench.closed_loop(2, 0, 5.0)
        await bench.closed_loop(3, 0, 5.0)

    on_bench(host, act)
    texts = [each.messages for each in host.engine.received]
    assert len(set(texts)) == len(texts) > 60


def test_the_simulated_engine_goes_from_rest_to_rest() -> None:
    async def main() -> tuple[ProbeVerdict, ProbeVerdict]:
        load = replace(LOAD, workload=CHAT_MIX, slo=DEFAULT_SLO, bounds=SMOKE)
        async with SimulatedHost(
            EngineSettings(step_noise_share=0.0, wander_share=0.0, first_shape_cost_s=0.0)
        ) as running:
            bench = await Bench.prepare(running, load)
            assert bench.text is None
            return await bench.window(8.0, 0, 10.0), await bench.window(8.0, 0, 10.0)

    first, second = run_virtual(main())
    assert first.summary.mean_tpot_s == pytest.approx(second.summary.mean_tpot_s, rel=1e-6)


def test_the_longest_probe_is_ramp_window_and_the_longest_request() -> None:
    load = Load(CHAT_MIX, 1.0, 0, DEFAULT_SLO, ramp_s=20.0, bounds=MEASURED)
    assert load.longest_probe_s(120.0) == pytest.approx(20 + 120 + 2 + 999 * 0.05)
    assert replace(load, length_scale=0.5).longest_probe_s(120.0) == pytest.approx(20 + 120 + 2 + 499 * 0.05)
