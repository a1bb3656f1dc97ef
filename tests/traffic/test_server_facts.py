"""What a page of metrics says, and what happened between two of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.server_facts import Change, Histogram, ServerSample, difference, relevant, sample

SAMPLES = Path(__file__).parents[1] / "vllm_samples"
IDLE = (SAMPLES / "metrics_idle.txt").read_text()
HISTOGRAMS = ("step_tokens", "ttft_s", "tpot_s", "token_gap_s", "queue_s", "prefill_s")


def read(text: str, moment_s: float = 0.0) -> ServerSample:
    return sample(text, moment_s=moment_s, utc_s=1000.0 + moment_s)


def page(engine: int = 0, *, running: float = 3, preemptions: float = 2, ttft: tuple[float, ...] = (1, 4, 5)) -> str:
    """A page of one engine; ttft: how many were within 0.1 s, within 1 s, and in all, each of 0.5 s."""
    label = f'engine="{engine}",model_name="m"'
    name = "vllm:time_to_first_token_seconds"
    return f"""
# HELP vllm:num_requests_running Requests in the batch.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{label}}} {running}
vllm:num_requests_waiting{{{label}}} {engine}
vllm:num_requests_waiting_by_reason{{{label},reason="capacity"}} 77.0
vllm:kv_cache_usage_perc{{{label}}} 0.{engine + 1}
vllm:num_preemptions_total{{{label}}} {preemptions}
vllm:num_preemptions_created{{{label}}} 1.79e+09
{name}_bucket{{{label},le="0.1"}} {ttft[0]}
{name}_bucket{{{label},le="1.0"}} {ttft[1]}
{name}_bucket{{{label},le="+Inf"}} {ttft[2]}
{name}_count{{{label}}} {ttft[2]}
{name}_sum{{{label}}} {ttft[2] * 0.5}
"""


def test_a_page_of_vllm_gives_every_fact() -> None:
    seen = read(IDLE)
    assert all(getattr(seen, field.name) is not None for field in dataclasses.fields(seen))
    assert (seen.engines, seen.running, seen.waiting, seen.kv_use_share) == (1, 0, 0, 0.0)
    assert seen.preemptions_total == seen.prompt_tokens_total == seen.cached_tokens_total == 0
    assert seen.ttft_s is not None
    assert (seen.ttft_s.count, seen.ttft_s.sum, seen.ttft_s.mean) == (0, 0.0, None)
    assert {1.0, 2.5} < set(seen.ttft_s.bounds)
    assert seen.tpot_s is not None
    assert 0.05 in seen.tpot_s.bounds
    assert math.inf not in seen.tpot_s.bounds
    assert seen.started_utc_s == pytest.approx(1796162120.52)


def test_the_lines_that_are_kept_say_as_much_as_the_page() -> None:
    assert read(relevant(IDLE)) == read(IDLE)
    assert len(relevant(IDLE)) < len(IDLE) / 3


def test_engines_and_replicas_are_added_up_and_the_largest_is_told() -> None:
    seen = read(page(0, running=3) + page(1, running=5, preemptions=4, ttft=(0, 0, 2)))
    assert (seen.engines, seen.running, seen.running_max) == (2, 8, 5)
    assert (seen.waiting, seen.waiting_max, seen.kv_use_share) == (1, 1, 0.2)
    assert seen.preemptions_total == 6
    assert seen.ttft_s == Histogram(bounds=(0.1, 1.0), counts=(1, 4), sum=3.5, count=7)
    assert seen.tpot_s is None
    assert seen.generation_tokens_total is None


def cache(cached: str, looked_up: str, counts: tuple[int, int] = (40, 100)) -> str:
    return f"vllm:{cached}_total {counts[0]}\nvllm:{looked_up}_total {counts[1]}\n"


PROMPTS = cache("prompt_tokens_cached", "prompt_tokens", (30, 90))
PREFIXES = cache("prefix_cache_hits", "prefix_cache_queries")
OLD_PREFIXES = cache("gpu_prefix_cache_hits", "gpu_prefix_cache_queries", (4, 10))


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (PREFIXES, (40, 100)),
        (OLD_PREFIXES, (4, 10)),
        (PREFIXES + PROMPTS, (30, 90)),
        ("vllm:prefix_cache_hits_total 40\n", (None, None)),
        ("vllm:prompt_tokens_total 90\n" + PREFIXES, (40, 100)),
    ],
)
def test_a_prefix_cache_is_read_by_any_of_its_names_and_only_with_what_it_is_a_part_of(
    text: str, counts: tuple[int | None, int | None]
) -> None:
    seen = read(text)
    assert (seen.cached_tokens_total, seen.looked_up_tokens_total) == counts
    assert read(relevant(text)) == seen


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>Bad gateway</html>",
        page().replace("} 3", "} three"),
        "vllm:num_requests_running{",
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:num_preemptions_total +Inf\n",
        "vllm:kv_cache_usage_perc 45.0\n",
    ],
)
def test_what_cannot_be_read_is_absent_and_not_zero(text: str) -> None:
    assert read(text) == ServerSample(moment_s=0.0, utc_s=1000.0, engines=read(text).engines)


@pytest.mark.parametrize(
    "broken",
    [
        page().replace(
            '_bucket{engine="0",model_name="m",le="0.1"} 1', '_bucket{engine="0",model_name="m",le="0.1"} 9'
        ),
        page(0) + page(1).replace('le="0.1"', 'le="0.2"'),
        page().replace("_sum", "_summe"),
        page().replace("_sum{engine", "_sum{motor").replace("} 2.5", "} NaN"),
    ],
)
def test_a_histogram_that_makes_no_sense_is_absent(broken: str) -> None:
    assert read(page()).ttft_s is not None
    assert read(broken).ttft_s is None


def test_a_histogram_knows_between_which_edges_and_no_more() -> None:
    seen = Histogram(bounds=(0.01, 0.05, 0.1), counts=(2, 8, 9), sum=0.4, count=10)
    assert seen.mean == pytest.approx(0.04)
    assert seen.quantile_bounds(0.1) == (0.0, 0.01)
    assert seen.quantile_bounds(0.2) == (0.0, 0.01)
    assert seen.quantile_bounds(0.5) == (0.01, 0.05)
    assert seen.quantile_bounds(0.9) == (0.05, 0.1)
    assert seen.quantile_bounds(0.99) == (0.1, math.inf)
    assert seen.over(0.05) == (2, 2)
    assert seen.over(0.04) == (2, 8)
    assert seen.over(0.005) == (8, 10)
    assert seen.over(0.1) == (1, 1)
    assert seen.over(3.0) == (0, 1)
    nothing = Histogram((0.01,), (0,), 0.0, 0)
    assert (nothing.mean, nothing.quantile_bounds(0.5), nothing.over(0.01)) == (None, None, (0, 0))


def counts(**changes: Any) -> ServerSample:
    """A server that has generated 100 tokens in 10 steps of 30 tokens."""
    given: dict[str, Any] = {
        "moment_s": 0.0,
        "utc_s": 0.0,
        "generation_tokens_total": 100,
        "prompt_tokens_total": 200,
        "cached_tokens_total": 0,
        "looked_up_tokens_total": 200,
        "preemptions_total": 5,
        "step_tokens": Histogram((8.0,), (0,), 300.0, 10),
        "ttft_s": Histogram((1.0,), (4,), 2.0, 4),
        "token_gap_s": Histogram((1.0,), (96,), 1.92, 96),
    }
    return ServerSample(**(given | changes))


LATER = counts(
    moment_s=2.0,
    generation_tokens_total=160,
    prompt_tokens_total=400,
    cached_tokens_total=50,
    looked_up_tokens_total=400,
    preemptions_total=6,
    step_tokens=Histogram((8.0,), (0,), 560.0, 20),
    ttft_s=Histogram((1.0,), (14,), 7.0, 14),
    token_gap_s=Histogram((1.0,), (146,), 2.92, 146),
)


def test_what_happened_between_two_looks() -> None:
    change = difference(counts(), LATER)
    assert (change.span_s, change.has_restarted, change.preemptions) == (2.0, False, 1)
    assert change.tokens_per_step == pytest.approx(26.0)
    assert change.prompt_tokens_per_step == pytest.approx(20.0)
    assert change.s_per_token == pytest.approx(1.0 / 50)
    assert change.cached_share == pytest.approx(0.25)
    assert change.ttft_s == Histogram((1.0,), (10,), 5.0, 10)
    assert change.queue_s is None


def test_without_gaps_between_tokens_the_steps_tell_the_time() -> None:
    change = difference(counts(token_gap_s=None), dataclasses.replace(LATER, token_gap_s=None))
    assert change.s_per_token == pytest.approx(0.2)


def test_a_moment_without_work_has_no_means() -> None:
    change = difference(counts(), counts(moment_s=1.0))
    assert (change.tokens_per_step, change.prompt_tokens_per_step, change.s_per_token) == (None, None, None)
    assert (change.cached_share, change.preemptions) == (None, 0)


@pytest.mark.parametrize(
    "after",
    [
        dataclasses.replace(LATER, generation_tokens_total=99),
        dataclasses.replace(LATER, ttft_s=Histogram((1.0,), (3,), 9.0, 3)),
        dataclasses.replace(LATER, started_utc_s=1500.0),
    ],
)
def test_a_server_that_began_anew_says_so_and_nothing_else(after: ServerSample) -> None:
    change = difference(counts(started_utc_s=1000.0), after)
    assert change == Change(span_s=2.0, has_restarted=True)


def test_other_edges_after_an_upgrade_are_no_difference() -> None:
    change = difference(counts(), dataclasses.replace(LATER, ttft_s=Histogram((2.0,), (14,), 7.0, 14)))
    assert (change.has_restarted, change.ttft_s, change.preemptions) == (False, None, 1)


names = st.sampled_from(
    ["vllm:num_requests_running", "vllm:num_preemptions_total", "vllm:time_to_first_token_seconds_bucket",
     "vllm:time_to_first_token_seconds_sum", "vllm:iteration_tokens_total_count", "process_start_time_seconds", "#", ""]
)  # fmt: skip
noise = st.one_of(
    st.text(max_size=30),
    st.text('{}",=\\le +-.019naif\t#', max_size=30),
    st.floats().map(lambda value: f" {value}"),
    st.floats().map(lambda value: f'{{le="{value}"}} {value}'),
)
garbage = st.lists(st.tuples(names, noise).map("".join), max_size=12).map("\n".join)


@settings(deadline=None, max_examples=100)
@given(garbage, garbage)
def test_no_text_is_too_strange_and_nothing_is_ever_negative(one: str, other: str) -> None:
    before, after = read(one), read(other, 1.0)
    for seen in (before, after):
        for field in dataclasses.fields(seen):
            value = getattr(seen, field.name)
            assert isinstance(value, Histogram) or value is None or math.isfinite(value)
    check_not_negative(difference(before, after))


totals = st.integers(0, 50)
histograms = st.lists(totals, min_size=3, max_size=3).map(
    lambda steps: Histogram((0.1, 1.0), (steps[0], steps[0] + steps[1]), float(sum(steps)), sum(steps))
)
servers = st.builds(
    ServerSample,
    moment_s=st.just(0.0),
    utc_s=st.just(0.0),
    preemptions_total=st.none() | totals,
    prompt_tokens_total=st.none() | totals,
    cached_tokens_total=st.none() | totals,
    looked_up_tokens_total=st.none() | totals,
    generation_tokens_total=st.none() | totals,
    **{name: st.none() | histograms for name in HISTOGRAMS},
)


@settings(deadline=None, max_examples=60)
@given(servers, servers)
def test_a_count_that_goes_back_is_a_restart(before: ServerSample, after: ServerSample) -> None:
    change = difference(before, after)
    check_not_negative(change)
    if before.preemptions_total is not None and after.preemptions_total is not None:
        assert change.has_restarted or change.preemptions == after.preemptions_total - before.preemptions_total
    assert not difference(before, before).has_restarted


def check_not_negative(change: Change) -> None:
    for field in dataclasses.fields(change):
        value = getattr(change, field.name)
        if isinstance(value, Histogram):
            assert value.sum >= 0
            assert value.count >= max(value.counts, default=0)
            assert min(value.counts, default=0) >= 0
        else:
            assert value is None or value >= 0
    for number in (change.tokens_per_step, change.prompt_tokens_per_step, change.s_per_token, change.cached_share):
        assert number is None or number >= 0
