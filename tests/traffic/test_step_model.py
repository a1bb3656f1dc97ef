import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from traffic.arrivals import POISSON
from traffic.step_model import Driven, EngineSettings, Job, Stage, StepModel
from traffic.workload import CHAT_MIX

QUIET = EngineSettings(step_noise_share=0.0, wander_share=0.0, first_shape_cost_s=0.0)
TINY = replace(QUIET, max_num_seqs=4, max_num_batched_tokens=12, max_model_len=24, kv_cache_tokens=40)

Plan = list[tuple[float, int, int]]
"""Due time (s), tokens in, tokens out."""


@dataclass(eq=False)
class Naive:
    """A request in the naive model: every token's time is kept."""

    due_s: float
    prompt: int
    wanted: int
    computed: int = 0
    times_s: list[float] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return self.prompt + len(self.times_s) - self.computed


def naive_run(settings: EngineSettings, plan: Plan) -> tuple[list[Naive], int]:  # noqa: C901 (it is the scheduler)
    """vLLM's scheduler word for word, with a loop over everything in every step; and the number of preemptions."""
    jobs = [Naive(*each) for each in plan]
    waiting, running, preemptions, now_s = list(jobs), list[Naive](), 0, 0.0
    while waiting or running:
        budget, batch, has_preempted = settings.max_num_batched_tokens, list[tuple[Naive, int]](), False

        def used() -> int:
            return sum(job.computed for job in running)

        for job in list(running):
            tokens = min(job.missing, budget)
            while job in running and used() + tokens > settings.kv_cache_tokens:
                victim = running.pop()
                victim.computed = 0
                waiting.insert(0, victim)
                preemptions, has_preempted = preemptions + 1, True
            if job in running:
                job.computed += tokens
                budget -= tokens
                batch.append((job, tokens))
        while waiting and budget and not has_preempted and len(running) < settings.max_num_seqs:
            job = waiting[0]
            if job.due_s > now_s or used() + job.missing > settings.kv_cache_tokens:
                break
            tokens = min(job.missing, budget)
            running.append(waiting.pop(0))
            job.computed += tokens
            budget -= tokens
            batch.append((job, tokens))
        if not batch:
            now_s = waiting[0].due_s
            continue
        now_s += settings.step_s(sum(tokens for _, tokens in batch), used())
        for job, _ in batch:
            if job.missing == 0:
                job.times_s.append(now_s)
            if len(job.times_s) == job.wanted:
                running.remove(job)
    return jobs, preemptions


def drive(model: StepModel, plan: Plan, until_s: float = math.inf) -> Driven:
    due_s, inputs, outputs = zip(*plan, strict=True)
    return model.drive(np.array(due_s), np.array(inputs), np.array(outputs), until_s=until_s)


def run_to_rest(model: StepModel, now_s: float = 0.0) -> float:
    while (end_s := model.begin_step(now_s)) is not None:
        model.end_step()
        now_s = end_s
    return now_s


def chat(rate_rps: float, horizon_s: float) -> Plan:
    due_s = POISSON.due_s(rate_rps, 0, 0, horizon_s)
    lengths = CHAT_MIX.draw(0, 0, len(due_s))
    return list(zip(due_s.tolist(), lengths.input_tokens.tolist(), lengths.output_tokens.tolist(), strict=True))


gaps_s = st.sampled_from([0.0, 0.0, 0.001, 0.011, 0.07])
plans = st.lists(st.tuples(gaps_s, st.integers(1, 16), st.integers(1, 8)), min_size=1, max_size=14).map(
    lambda each: list(
        zip(
            np.cumsum([gap for gap, _, _ in each]).tolist(),
            [i for _, i, _ in each],
            [o for _, _, o in each],
            strict=True,
        )
    )
)
small_settings = st.builds(
    lambda seqs, spare, cache: replace(
        TINY, max_num_seqs=seqs, max_num_batched_tokens=seqs + spare, kv_cache_tokens=cache
    ),
    st.integers(1, 5),
    st.integers(0, 12),
    st.integers(24, 60),
)


@given(small_settings, plans)
@effort(max_examples=60, deadline=None)
def test_it_gives_the_token_times_of_a_model_that_loops_over_everything(settings: EngineSettings, plan: Plan) -> None:
    expected, preemptions = naive_run(settings, plan)
    model = StepModel(settings, 0)
    driven = drive(model, plan)
    assert driven.output_tokens.tolist() == [job.wanted for job in expected]
    assert driven.first_token_s.tolist() == [job.times_s[0] for job in expected]
    assert driven.last_token_s.tolist() == driven.ended_s.tolist() == [job.times_s[-1] for job in expected]
    for gap_s, job in zip(driven.gap_max_s.tolist(), expected, strict=True):
        gaps = np.diff(job.times_s)
        assert gap_s == gaps.max() if len(gaps) else math.isnan(gap_s)
    assert model.preemptions_total == preemptions
    assert model.generation_tokens_total == sum(out for _, _, out in plan)
    assert model.prompt_tokens_total == sum(prompt for _, prompt, _ in plan)


@given(small_settings, st.lists(st.tuples(st.sampled_from("ssbbbbea"), st.integers(0, 15)), max_size=60))
@effort(max_examples=60, deadline=None)
def test_limits_hold_and_nothing_leaks_whatever_is_submitted_and_aborted(
    settings: EngineSettings, calls: list[tuple[str, int]]
) -> None:
    model, jobs, end_s, now_s = StepModel(settings, 0), list[Job](), None, 0.0
    for call, number in calls:
        if call == "s":
            jobs.append(model.submit(now_s, number + 1, 1 + number // 2))
        elif call == "a" and jobs:
            model.abort(jobs[number % len(jobs)])
        elif end_s is None:
            end_s = model.begin_step(now_s)
        else:
            model.end_step()
            now_s, end_s = end_s, None
        assert model.running <= settings.max_num_seqs
        assert 0 <= model.kv_tokens <= settings.kv_cache_tokens
    if end_s is not None:
        model.end_step()
        now_s = end_s
    run_to_rest(model, now_s)
    assert (model.running, model.waiting, model.kv_tokens) == (0, 0, 0)
    assert {job.stage for job in jobs} <= {Stage.FINISHED, Stage.ABORTED}
    assert model.generation_tokens_total == sum(model.tokens(job) for job in jobs)
    assert all(model.tokens(job) == job.output_tokens for job in jobs if job.stage is Stage.FINISHED)


def test_first_tokens_come_in_the_order_of_arrival() -> None:
    model = StepModel(EngineSettings(), 0)
    first_token_s = drive(model, chat(11.0, 60.0)).first_token_s
    assert model.preemptions_total == 0
    assert (np.diff(first_token_s) >= 0).all()


def test_a_lone_request_gets_one_token_per_step_after_its_prefill() -> None:
    model = StepModel(QUIET, 0)
    driven = drive(model, [(5.0, 100, 3)])
    prefill_s, second_s, third_s = QUIET.step_s(100, 100), QUIET.step_s(1, 101), QUIET.step_s(1, 102)
    assert driven.first_token_s[0] == pytest.approx(5.0 + prefill_s)
    assert driven.last_token_s[0] == pytest.approx(5.0 + prefill_s + second_s + third_s)
    assert driven.gap_max_s[0] == pytest.approx(third_s)


def test_a_long_prompt_is_computed_in_chunks_beside_running_requests() -> None:
    model = StepModel(TINY, 0)
    short, long = model.submit(0.0, 1, 10), model.submit(0.0, 20, 1)
    model.begin_step(0.0)
    assert model.end_step().prefill_tokens == 12
    model.begin_step(1.0)
    assert model.end_step()[2:4] == (1, 9)
    assert (model.tokens(short), model.tokens(long)) == (2, 1)


def test_a_step_does_not_see_a_request_that_arrives_after_its_start() -> None:
    model = StepModel(QUIET, 0)
    model.submit(1.0, 10, 1)
    assert model.begin_step(0.5) is None
    assert model.waiting == 1
    assert model.begin_step(1.0) is not None


def test_a_full_cache_preempts_the_latest_and_it_recovers() -> None:
    model = StepModel(TINY, 0)
    jobs = [model.submit(0.0, 16, 8), model.submit(0.0, 16, 8)]
    run_to_rest(model)
    assert [job.preemptions for job in jobs] == [0, 1]
    assert model.preemptions_total == 1
    early, late = (model.progress(job) for job in jobs)
    assert early.output_tokens == late.output_tokens == 8
    assert (late.last_token_s or 0.0) > (early.last_token_s or math.inf)
    assert (late.gap_max_s or 0.0) > 2 * (early.gap_max_s or math.inf)


def test_an_overloaded_server_keeps_its_limits_and_finishes_everything() -> None:
    settings = replace(EngineSettings(), max_num_seqs=64, kv_cache_tokens=50_000)
    model = StepModel(settings, 0)
    plan = chat(30.0, 20.0)
    driven = drive(model, plan)
    assert model.preemptions_total > 0
    assert driven.output_tokens.tolist() == [out for _, _, out in plan]
    assert model.kv_tokens == 0


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("is_in_step", [False, True])
def test_aborting_frees_the_cache_and_keeps_the_facts(steps: int, is_in_step: bool) -> None:
    model, now_s, ends_s = StepModel(TINY, 0), 0.0, list[float]()
    job = model.submit(0.0, 14, 9)  # two steps of prefill
    for _ in range(steps):
        end_s = model.begin_step(now_s)
        assert end_s is not None
        model.end_step()
        now_s = end_s
        ends_s.append(end_s)
    if is_in_step:
        model.begin_step(now_s)
    model.abort(job)
    assert (model.running, model.waiting, model.kv_tokens) == (0, 0, 0)
    facts = model.progress(job)
    assert facts.output_tokens == max(0, steps - 1)
    assert facts.first_token_s == (ends_s[1] if steps > 1 else None)
    assert facts.last_token_s == (ends_s[-1] if steps > 1 else None)
    assert facts.gap_max_s == (max(np.diff(ends_s[1:])) if steps > 2 else None)
    if is_in_step:
        assert model.end_step().finished == []
    assert model.begin_step(now_s + 1.0) is None


def test_progress_of_a_running_request_is_exact_between_steps() -> None:
    model, now_s = StepModel(EngineSettings(), 3), 0.0
    job = model.submit(0.0, 50, 400)
    seen: list[float] = []
    while job.stage is not Stage.FINISHED:
        end_s = model.begin_step(now_s)
        assert end_s is not None
        model.end_step()
        now_s = end_s
        seen.append(end_s)
        gap_max_s = max(np.diff(seen)) if len(seen) > 1 else None
        assert model.progress(job) == (len(seen), seen[0], end_s, gap_max_s)


def test_the_largest_gap_survives_the_forgetting_of_old_steps() -> None:
    settings = replace(TINY, max_num_seqs=1, step_noise_share=0.3)
    model, now_s = StepModel(settings, 0), 0.0
    for _ in range(40):
        job = model.submit(now_s, 2, 20)
        ends_s: list[float] = []
        while (end_s := model.begin_step(now_s)) is not None:
            model.end_step()
            now_s = end_s
            ends_s.append(end_s)
        assert model.progress(job).gap_max_s == max(np.diff(ends_s))
    assert len(model._gaps) <= 4 * settings.max_model_len + 1


def test_equal_calls_give_equal_times_and_other_seeds_or_starts_do_not() -> None:
    plan = chat(10.0, 20.0)

    def last_token_s(seed: int, start: int) -> tuple[float, ...]:
        return tuple(drive(StepModel(EngineSettings(), seed, start), plan).last_token_s.tolist())

    assert last_token_s(0, 0) == last_token_s(0, 0)
    assert last_token_s(0, 0) != last_token_s(1, 0)
    assert last_token_s(0, 0) != last_token_s(0, 1)


def test_the_cost_of_a_batch_shape_is_paid_once_per_start() -> None:
    settings = replace(QUIET, first_shape_cost_s=0.5)
    model = StepModel(settings, 0)
    plan = [(0.0, 100, 4)]
    first, again = drive(model, plan), drive(model, [(10.0, 100, 4)])
    assert first.last_token_s[0] == pytest.approx(
        again.last_token_s[0] - 10.0 + 2 * 0.5
    )  # a prefill and a decode shape
    assert drive(StepModel(settings, 0), plan).last_token_s.tolist() == first.last_token_s.tolist()


def test_a_slower_step_shows_in_every_request() -> None:
    plan = chat(8.0, 20.0)
    default = drive(StepModel(QUIET, 0), plan)
    slower = drive(StepModel(replace(QUIET, step_time_factor=1.05), 0), plan)
    assert ((slower.last_token_s - default.last_token_s)[5:] > 0).all()


def test_drift_moves_a_later_probe_and_not_the_first() -> None:
    settings = replace(QUIET, drift_share_per_hour=0.1)
    model, plan = StepModel(settings, 0), [(0.0, 1, 200)]
    early = drive(model, plan).ended_s[0]
    late = drive(model, [(3600.0, 1, 200)]).ended_s[0] - 3600.0
    assert late == pytest.approx(1.1 * early, rel=1e-3)


def test_driving_stops_at_the_limit_and_leaves_an_idle_model() -> None:
    model = StepModel(QUIET, 0)
    driven = drive(model, [(0.0, 10, 1), (0.0, 10, 500), (2.0, 10, 500), (99.0, 10, 1)], until_s=2.5)
    assert np.isnan(driven.ended_s).tolist() == [False, True, True, True]
    assert np.isnan(driven.first_token_s).tolist() == [False, False, False, True]
    assert 0 < driven.output_tokens[2] < driven.output_tokens[1] < 500
    assert (model.running, model.waiting, model.kv_tokens) == (0, 0, 0)


def test_two_equal_blocks_of_a_warm_server_differ_by_about_one_and_a_half_percent() -> None:
    logs: list[list[float]] = []
    plan = chat(8.0, 20.0)
    for start in range(8):
        model, now_s, log = StepModel(EngineSettings(), 0, start), 0.0, list[float]()
        for _ in range(6):
            driven = drive(model, [(now_s + due_s, prompt, out) for due_s, prompt, out in plan])
            tokens = driven.output_tokens - 1
            log.append(math.log(((driven.last_token_s - driven.first_token_s)[tokens > 0] / tokens[tokens > 0]).mean()))
            now_s = float(driven.ended_s.max()) + 2.0
        logs.append(log)
    blocks = np.array(logs)
    assert 0.009 < np.std(np.diff(blocks[:, 2:], axis=1)) < 0.02
    assert (blocks[:, 0] - blocks[:, 2:].mean(axis=1)).mean() > 0.05  # unseen shapes: the first block is no measurement


@pytest.mark.parametrize(("prompt", "out"), [(0, 1), (1, 0), (20, 5)])
def test_a_request_that_can_never_run_is_refused(prompt: int, out: int) -> None:
    with pytest.raises(ValueError, match=r"tokens|lengths"):
        StepModel(TINY, 0).submit(0.0, prompt, out)


def test_steps_are_begun_and_ended_in_turn() -> None:
    model = StepModel(TINY, 0)
    with pytest.raises(RuntimeError, match="no step"):
        model.end_step()
    model.submit(0.0, 1, 2)
    model.begin_step(0.0)
    with pytest.raises(RuntimeError, match="under way"):
        model.begin_step(0.0)
