"""Public reports R13 to R18 where they meet a whole sweep, a verdict or the prompts of one server's lifetime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import count
from pathlib import Path

import pytest
from engines import ScriptedHost, failed, probe_facts, record, schedule, words
from fake_server import DONE, Received, Script, finish, reply, timed, token
from memory_server import MemoryServer
from whole_path import SLO, probe

from gates.capacity import Capacity, CapacityVerdict, Observation
from gates.slo import DEFAULT_SLO, Metric
from gates.validity import MEASURED
from gates.verdict import LimitedBy, Outcome, ProbeVerdict, judge_probe
from reports.rows import probe_row
from reports.run_directory import ProbeRow, SweepDocument, to_json
from slo_bench.bench import Bench, Load
from slo_bench.modes import Mode
from slo_bench.search import Measure, SearchSettings, next_step
from slo_bench.store import RunStore
from slo_bench.sweep import Sweeper, SweepPlan
from traffic.endpoint import Endpoint
from traffic.http_engine import HttpEngine
from traffic.probe import Progress
from traffic.records import End
from traffic.virtual_time import run_virtual
from traffic.workload import fixed_lengths

BRIEF = Mode("brief", 3.0, 0.5, 0.5, 0, 1.0, 1, MEASURED, percentile=Decimal(80))
PREFIX_WORDS = 16
"""A prefix cache keeps blocks of this many tokens; here a word is one."""


class Quiet:
    """A view that shows nothing."""

    def warming(self, plan: SweepPlan) -> None:
        pass

    def started(self, step: Measure, capacity: Capacity) -> None:
        pass

    def progress(self, progress: Progress, over: Sequence[int]) -> None:
        pass

    def measured(self, verdict: ProbeVerdict, row: ProbeRow) -> None:
        pass


def load(seed: int = 0) -> Load:
    """Prompts of 24 words, answers of three tokens, judged at p80."""
    return Load(fixed_lengths(24, 3), 1.0, seed, BRIEF.slo(DEFAULT_SLO), ramp_s=0.5, bounds=MEASURED)


async def prepared(endpoint: Endpoint, load: Load) -> Bench:
    """A bench over HTTP, for a server whose tokens are words."""
    host = ScriptedHost(HttpEngine(endpoint, "m"), needs_text=True, count=words)  # type: ignore[arg-type]
    return await Bench.prepare(host, load)


def answer(*, prompt_tokens: int = 24, cached_tokens: int = 0, hold_s: float = 0.5) -> Script:
    """Three tokens in hold_s, with the server's counts."""
    details = {"cached_tokens": cached_tokens}
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": 3, "prompt_tokens_details": details}
    moments = [(0.1, token("a")), (0.12, token("b")), (0.14, token("c"))]
    return timed(*moments, (hold_s, finish("length")), (hold_s, {"choices": [], "usage": counts}), (hold_s, DONE))


class TestR13:
    def test_a_sweep_whose_server_falls_silent_under_load_goes_on_to_a_decision(self, tmp_path: Path) -> None:
        """While more than five are under way, every second answer stops after a token and stays open."""
        silent = timed((0.1, token("a")), ends=False)
        number = count()

        def handle(_: Received) -> Script:
            return silent if server.busy > 5 and next(number) % 2 else answer(hold_s=0.8)

        server = MemoryServer(handle)
        search = SearchSettings(3.0, 1.5, 0.5, pass_repeats=0, fail_repeats=0)

        async def run() -> SweepDocument:
            async with server, Endpoint(server.url, client=server.client) as endpoint:
                sweeper = SweepPlan("brief", BRIEF, load(), search, None)
                bench = await prepared(endpoint, load())
                return await Sweeper(bench, sweeper, RunStore(tmp_path), Quiet()).run()

        document = run_virtual(run())
        assert document.verdict is CapacityVerdict.FOUND
        assert document.capacity_rps is not None
        assert document.first_failed_rps is not None
        silent_requests = sum(row.failed for row in document.probes if row.outcome != "pass")
        assert silent_requests > 0


class TestR14:
    def test_failures_are_worse_than_any_limit(self) -> None:
        good = [record(index, ttft_s=0.5) for index in range(900)]
        bad = [failed(record(900 + index), End.TIMED_OUT) for index in range(100)]
        verdict = judge_probe(probe_facts([*good, *bad]), DEFAULT_SLO)
        ttft = verdict.result(Metric.TTFT)
        assert ttft is not None
        assert (ttft.n, ttft.over, ttft.allowed, ttft.value_s) == (1000, 100, 10, None)
        assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, LimitedBy.FAILURES)
        assert verdict.summary.mean_ttft_s == pytest.approx(0.5), "of the successes, and named so"

    def test_a_probe_without_a_success_fails_and_its_row_holds_no_nan(self) -> None:
        verdict = judge_probe(probe_facts([failed(record(index)) for index in range(1000)]), DEFAULT_SLO)
        assert (verdict.outcome, verdict.misses, verdict.goodput_rps) == (Outcome.FAIL, 1000, 0.0)
        text = to_json(probe_row(verdict, purpose="search", requests_file=None))
        row = json.loads(text, parse_constant=pytest.fail)
        assert (row["ttft_p99_s"], row["tpot_p99_s"], row["failed"], row["n"]) == (None, None, 1000, 1000)


class TestR16:
    def test_a_bracket_below_the_resolution_is_not_split(self) -> None:
        seen = [Observation(11.18, 0, passed=True), Observation(11.19, 0, passed=False)]
        settings = SearchSettings(pass_repeats=0, fail_repeats=0)
        found = next_step(settings, seen)
        assert isinstance(found, Capacity)
        assert (found.capacity_rps, found.first_failed_rps) == (11.18, 11.19)

    def test_a_limit_of_0_42_requests_a_second_is_found_between_fractions(self) -> None:
        seen: list[Observation] = []
        settings = SearchSettings(0.25, 1.25, 0.03, pass_repeats=0, fail_repeats=0)
        while isinstance(step := next_step(settings, seen), Measure):
            seen.append(Observation(step.rate_rps, step.repeat, step.rate_rps <= 0.42))
        rates = [each.rate_rps for each in seen]
        assert len(set(rates)) == len(rates), "no rate twice by rounding"
        assert all(0.2 < rate_rps < 0.6 for rate_rps in rates)
        assert step.capacity_rps is not None
        assert step.first_failed_rps is not None
        assert step.capacity_rps <= 0.42 < step.first_failed_rps <= step.capacity_rps * 1.03


def prompt(request: Received) -> str:
    return " ".join(message["content"] for message in request.json["messages"])


class Caching:
    """A server that remembers the beginnings of all prompts, as a prefix cache does; `server` plays it."""

    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.server = MemoryServer(self.handle)

    def handle(self, request: Received) -> Script:
        text = prompt(request).split()
        blocks = [" ".join(text[:end]) for end in range(PREFIX_WORDS, len(text) + 1, PREFIX_WORDS)]
        hits = sum(block in self.kept for block in blocks)
        self.kept.update(blocks)
        return answer(prompt_tokens=len(text), cached_tokens=hits * PREFIX_WORDS)


class TestR17:
    def test_no_beginning_of_a_prompt_is_sent_twice_to_one_server_and_two_servers_get_the_same(self) -> None:
        """A rate with its repeat, a rate above it, warm-up."""

        async def sent(*windows: tuple[float, int], warms_up: bool) -> list[str]:
            server = Caching().server
            async with server, Endpoint(server.url, client=server.client) as endpoint:
                bench = await prepared(endpoint, load())
                for rate_rps, repeat in windows:
                    assert (await bench.window(rate_rps, repeat, 3.0)).is_valid
                if warms_up:
                    await bench.warm_up(4.0, 1.0, 2)
            return [prompt(each) for each in server.received]

        texts = run_virtual(sent((4.0, 0), (4.0, 1), (6.0, 0), warms_up=True))
        beginnings = [" ".join(text.split()[:PREFIX_WORDS]) for text in texts]
        assert len(set(beginnings)) == len(beginnings) > 50
        others = run_virtual(sent((4.0, 0), warms_up=False))
        assert others == texts[: len(others)]

    def test_the_same_command_again_is_no_result_and_another_seed_is_one(self) -> None:
        server = Caching().server

        async def window(seed: int) -> ProbeVerdict:
            async with Endpoint(server.url, client=server.client) as endpoint:
                return await (await prepared(endpoint, load(seed))).window(4.0, 0, 3.0)

        async def commands() -> list[ProbeVerdict]:
            async with server:
                return [await window(seed) for seed in (0, 0, 1)]

        first, again, other = run_virtual(commands())
        assert [first.is_valid, again.is_valid, other.is_valid] == [True, False, True]
        assert again.invalid_reasons == (
            "66.7% of the prompt tokens came from a prefix cache: restart the server or use another --seed",
        )


class TestR18:
    def test_prompts_of_another_length_than_meant_are_flagged(self) -> None:
        meant = schedule([0.1, 0.2], end_s=1.0)
        requests = tuple(replace(request, input_tokens=2048) for request in meant.requests)
        server = MemoryServer(lambda _: answer(prompt_tokens=2104))
        verdict = judge_probe(probe(server, replace(meant, requests=requests)), SLO)
        assert verdict.flags == (
            "the server counts 2104 tokens in a mean prompt (2104 to 2104), +2.7% from the 2048 that were meant",
        )

    def test_a_prompt_that_does_not_fit_is_a_failed_request_with_the_servers_words(self) -> None:
        words = "This model's maximum context length is 2048 tokens. However, you requested 2054 tokens."
        server = MemoryServer(lambda _: reply(400, {"error": {"message": words, "code": 400}}))
        verdict = judge_probe(probe(server, schedule([0.1, 0.2], end_s=1.0)), SLO)
        assert [each.error for each in verdict.facts.records] == [f"HTTP 400: {words}"] * 2
        assert (verdict.summary.n, verdict.summary.failed, verdict.outcome) == (2, 2, Outcome.FAIL)
