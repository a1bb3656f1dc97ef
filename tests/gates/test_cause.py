"""Why a probe failed: each cause on an engine that has it, with its numbers, and no claim beyond the evidence."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from engines import failed, probe_facts, record

from gates.cause import Cause, CauseKind, ServerLimits, cause
from gates.evidence import SideBySide, side_by_side
from gates.referee import SloReferee
from gates.slo import DEFAULT_SLO, Metric, Objective, drain_limit_s, parse_objective
from gates.verdict import LimitedBy, ProbeVerdict, judge_probe
from slo_bench.scrape import Scraper, simulated_look
from slo_bench.simulate.metrics import ServerMetrics
from traffic.probe import run_probe
from traffic.records import End, RequestRecord
from traffic.schedule import Draw, open_loop
from traffic.server_facts import ServerSample
from traffic.simulated import SimulatedEngine
from traffic.step_model import EngineSettings, StepModel
from traffic.virtual_time import run_virtual
from traffic.workload import CHAT_MIX, Workload, fixed_lengths

Measured = tuple[ProbeVerdict, tuple[ServerSample, ...]]
DEFAULT = EngineSettings()


@functools.cache
def measure(
    settings: EngineSettings,
    rate_rps: float,
    workload: Workload = CHAT_MIX,
    slo: tuple[Objective, ...] = DEFAULT_SLO,
    *,
    ends_early: bool = False,
) -> Measured:
    """A window of 15 s after a ramp of 10 s on the simulated engine, and the looks at it."""

    async def run() -> Measured:
        model = StepModel(settings, 0)
        metrics = ServerMetrics(model, "m")
        async with SimulatedEngine(model, metrics.step) as engine, Scraper(simulated_look(metrics)) as scraper:
            plan = open_loop(
                Draw(workload, 0, 0),
                rate_rps=rate_rps,
                ramp_s=10.0,
                duration_s=15.0,
                drain_limit_s=lambda longest: min(20.0, drain_limit_s(slo, longest)),
                text=None,
            )
            facts = await run_probe(engine, plan, SloReferee(slo, plan) if ends_early else None)
            return judge_probe(facts, slo), scraper.samples

    return run_virtual(run())


FEW_SEQS = measure(replace(DEFAULT, max_num_seqs=24), 9.0)
SMALL_KV = replace(DEFAULT, kv_cache_tokens=30_000)
SLOW_PREFILL = replace(DEFAULT, compute_s_per_token=1e-4)
SMALL_STEPS = replace(SLOW_PREFILL, max_num_batched_tokens=2048)
SLOW_DECODE = replace(DEFAULT, overhead_s=0.05)
LONG_PROMPTS = fixed_lengths(4000, 20)


def test_an_admission_queue_is_told_by_a_batch_at_its_limit() -> None:
    for limits in (ServerLimits(), ServerLimits(max_num_seqs=24, max_num_batched_tokens=8192)):
        found = cause(*FEW_SEQS, limits)
        assert found.kind is CauseKind.ADMISSION
        assert "while late requests waited for their first token" in found.evidence[0]
        assert "24 of 24 ran" in found.evidence[0]
        assert ("the limit on sequences" in found.evidence[0]) == (limits.max_num_seqs is not None)
        assert found.missing == ()


def test_a_batch_below_its_known_limit_is_no_admission_queue() -> None:
    assert cause(*FEW_SEQS, ServerLimits(max_num_seqs=1024)).kind is not CauseKind.ADMISSION


def test_a_full_kv_cache_is_told_by_its_use_with_others_queued() -> None:
    found = cause(*measure(SMALL_KV, 7.0))
    assert found.kind is CauseKind.KV_FULL
    assert "the KV cache was at least 85% full" in found.evidence[0]
    assert any("preemptions in" in line for line in found.evidence[1:])


TPOT_ALONE = (parse_objective("tpot:p90:35"),)


def test_a_full_kv_cache_is_told_by_preemptions_where_tokens_are_late() -> None:
    verdict, samples = measure(SMALL_KV, 4.0, fixed_lengths(100, 900), TPOT_ALONE)
    assert verdict.limited_by is LimitedBy.TPOT
    found = cause(verdict, samples)
    assert found.kind is CauseKind.KV_FULL
    assert "while late requests got their tokens" in found.evidence[0]
    assert "requests were preempted" in found.evidence[0]


def test_requests_without_a_first_token_ask_for_it_whatever_objective_they_broke() -> None:
    verdict, samples = measure(SMALL_KV, 20.0, fixed_lengths(500, 500), TPOT_ALONE)
    assert verdict.limited_by is LimitedBy.TPOT
    found = cause(verdict, samples)
    assert found.kind is CauseKind.KV_FULL
    assert "while late requests waited for their first token" in found.evidence[0]


def test_prompts_that_wait_for_prompts_are_told_by_steps_full_of_them() -> None:
    verdict, samples = measure(SMALL_STEPS, 5.0, LONG_PROMPTS)
    assert verdict.limited_by is LimitedBy.TTFT
    for limits in (ServerLimits(), ServerLimits(1024, 2048)):
        found = cause(verdict, samples, limits)
        assert found.kind is CauseKind.PREFILL
        assert "prompt tokens beside" in found.evidence[0]
    assert "(at most 2048)" in found.evidence[0]


@pytest.mark.parametrize(
    ("settings", "rate_rps", "ends_early"), [(DEFAULT, 13.0, False), (DEFAULT, 16.0, True), (SLOW_PREFILL, 6.0, False)]
)
def test_tokens_held_up_by_prompts_are_told_from_the_decode_step(
    settings: EngineSettings, rate_rps: float, *, ends_early: bool
) -> None:
    verdict, samples = measure(settings, rate_rps, ends_early=ends_early)
    assert verdict.limited_by is LimitedBy.TPOT
    found = cause(verdict, samples)
    assert found.kind is CauseKind.PREFILL
    assert "(limit 50.0 ms)" in found.evidence[0]
    assert "for the decode step of" in found.evidence[0]


def test_a_decode_step_above_the_limit_is_told_from_prompts_that_add_to_it() -> None:
    verdict, samples = measure(SLOW_DECODE, 3.0)
    assert verdict.limited_by is LimitedBy.TPOT
    found = cause(verdict, samples)
    assert found.kind is CauseKind.DECODE
    truth_s = SLOW_DECODE.step_s(35, 45_000)
    read_s = float(found.evidence[0].rpartition("alone ")[2].removesuffix(" ms")) / 1000
    assert read_s == pytest.approx(truth_s, rel=0.15)


def test_a_limit_on_single_gaps_is_broken_by_prompts() -> None:
    verdict, samples = measure(DEFAULT, 6.0, slo=(parse_objective("itl:p90:100"),))
    assert verdict.limited_by is LimitedBy.ITL
    assert cause(verdict, samples).kind is CauseKind.PREFILL


def test_a_limit_on_whole_requests_asks_where_their_time_went() -> None:
    slo = (parse_objective("e2e:p90:8000"),)
    assert cause(*measure(replace(DEFAULT, max_num_seqs=24), 9.0, slo=slo)).kind is CauseKind.ADMISSION
    assert cause(*measure(replace(SLOW_DECODE, overhead_s=0.08), 2.0, slo=slo)).kind is CauseKind.DECODE


def changed(measured: Measured, **by: float) -> ProbeVerdict:
    """The same probe with every time of its requests moved by so many seconds."""
    facts = measured[0].facts

    def move(each: RequestRecord) -> RequestRecord:
        times = {name: getattr(each, name) for name in by}
        return replace(each, **{name: None if was is None else was + by[name] for name, was in times.items()})

    return judge_probe(replace(facts, records=tuple(move(each) for each in facts.records)), DEFAULT_SLO)


def test_a_client_that_sends_late_is_the_cause_itself() -> None:
    verdict = changed(measure(DEFAULT, 8.0), due_s=-3.0)
    assert verdict.limited_by is LimitedBy.TTFT
    for samples in ((), measure(DEFAULT, 8.0)[1]):
        found = cause(verdict, samples)
        assert found.kind is CauseKind.CLIENT
        assert "were in time counted from their send, which the client delayed by up to 3000 ms" in found.evidence[0]
    lagging = next(each for each in found.views if each.metric is Metric.TTFT)
    assert lagging.lag_mean_s == pytest.approx(3.0)
    assert "own lag, 3000 ms on average, explains its TTFT" in (lagging.invalid_reason or "")


def test_what_the_server_did_not_see_is_not_blamed_on_its_engine() -> None:
    verdict = changed(measure(DEFAULT, 8.0), first_token_s=3.0, last_token_s=3.0, ended_s=3.0)
    found = cause(verdict, measure(DEFAULT, 8.0)[1])
    assert found.kind is CauseKind.UNKNOWN
    assert "the time goes in the front-end or the network" in found.evidence[0]
    ttft = next(each for each in found.views if each.metric is Metric.TTFT)
    assert ttft.gap_s == pytest.approx(3.0, abs=0.05)
    assert ttft.invalid_reason is None


def few(bad: Sequence[RequestRecord]) -> ProbeVerdict:
    return judge_probe(probe_facts([*(record(index) for index in range(50)), *bad]), DEFAULT_SLO)


def test_failures_explain_themselves() -> None:
    found = cause(few([failed(record(index)) for index in range(50, 60)]), ())
    assert found.kind is CauseKind.UNKNOWN
    assert found.evidence == ("10 of 10 misses are failures, 10 of them: HTTP 500: out of memory",)
    ours = [replace(failed(record(index)), error="client: too many open files") for index in range(50, 60)]
    assert cause(few(ours), ()).kind is CauseKind.CLIENT


def test_without_a_look_nothing_is_concluded_and_what_is_missing_is_said() -> None:
    slow = few([record(index, ttft_s=3.0) for index in range(50, 60)])
    for samples in ([], [ServerSample(0.0, slow.facts.started_utc.timestamp() + 1.0)]):
        found = cause(slow, samples)
        assert (found.kind, found.evidence) == (CauseKind.UNKNOWN, ())
        assert found.missing == ("two looks at the server's metrics while the probe ran",)
        assert str(found) == "unknown: missing: two looks at the server's metrics while the probe ran"


def test_a_server_without_a_metric_is_told_by_name() -> None:
    verdict, samples = measure(SLOW_DECODE, 3.0)
    bare = [ServerSample(each.moment_s, each.utc_s, waiting=0, running=each.running) for each in samples]
    found = cause(verdict, bare)
    assert found.kind is CauseKind.UNKNOWN
    assert found.missing == (
        "requests running", "KV cache use", "preemptions", "tokens per step", "time between tokens",
    )  # fmt: skip


def test_a_server_that_began_anew_is_told() -> None:
    verdict, samples = FEW_SEQS
    anew = [replace(each, started_utc_s=samples[20].utc_s if each in samples[20:] else 0.0) for each in samples]
    found = cause(verdict, anew)
    assert "the server began anew while the probe ran" in found.evidence
    assert found.views == ()


def test_a_probe_that_passed_has_no_cause() -> None:
    verdict, samples = measure(DEFAULT, 4.0)
    with pytest.raises(ValueError, match="nothing limited"):
        cause(verdict, samples)


def test_the_classes_of_the_mix_stand_with_their_share_of_the_misses() -> None:
    bad = [record(index, ttft_s=3.0, kind="long", input_tokens=900) for index in range(50, 60)]
    good = [record(index, kind="long", input_tokens=900) for index in range(60, 75)]
    found = cause(few([*bad, record(80, ttft_s=3.0), *good]), ())
    assert [str(each) for each in found.classes] == [
        "long: 91% of the misses, 33% of the requests, 82% of the prompt tokens",
        "plain: 9% of the misses, 67% of the requests, 18% of the prompt tokens",
    ]


def test_unresolved_requests_of_an_early_end_count_nowhere() -> None:
    verdict, samples = measure(DEFAULT, 16.0, ends_early=True)
    found = cause(verdict, samples)
    assert any(each.end is End.UNRESOLVED for each in verdict.facts.records)
    assert sum(each.requests for each in found.classes) == verdict.summary.n


def test_client_and_server_read_the_same_of_the_same_requests() -> None:
    verdict, samples = measure(DEFAULT, 8.0)
    for view in side_by_side(verdict.facts, samples):
        assert view.is_same_load
        assert view.client_n == view.server_n
        assert view.gap_s == pytest.approx(0.0, abs=1e-6)
        assert view.invalid_reason is None


def view(client_s: float, server_s: float, *, n: int = 100, server_n: int = 100, lag_s: float = 0.0) -> SideBySide:
    return SideBySide(Metric.TPOT, client_s, n, server_s, server_n, lag_s)


def test_a_client_that_reads_less_than_the_server_is_flagged() -> None:
    assert view(0.030, 0.031).invalid_reason is None
    assert view(0.028, 0.031).reads_less
    assert "the client reads 3.0 ms less mean TPOT than the server's 31.0 ms" in (
        view(0.028, 0.031).invalid_reason or ""
    )
    assert not view(0.028, 0.031, server_n=150).reads_less
    assert not view(0.028, 0.031, n=10, server_n=10).reads_less
    other = str(view(0.028, 0.031, server_n=150))
    assert "not the same requests: 100 at the client, 150 at the server" in other


def test_the_evidence_starts_the_sentence_of_a_cause() -> None:
    found: Cause = cause(*FEW_SEQS)
    assert str(found) == f"admission queue: {found.evidence[0]}"
