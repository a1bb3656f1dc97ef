"""Public reports R10 to R13: making the load, over the whole path."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from engines import schedule
from fake_server import (
    CLOSE,
    DONE,
    HOLD,
    Script,
    event,
    finish,
    in_turn,
    reply,
    streamed,
    timed,
    token,
    usage,
    whole_answer,
)
from flights import against, fly
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_server import MemoryServer
from whole_path import SLO, probe

from gates.verdict import LimitedBy, Outcome, judge_probe
from reports.rows import probe_row
from reports.run_directory import to_json
from traffic.endpoint import Endpoint
from traffic.engine import Engine
from traffic.http_client import Bounds
from traffic.http_engine import HttpEngine
from traffic.http_pool import KEEP_ALIVE_S
from traffic.probe import ProbeFacts, Stop
from traffic.records import End, Flight, Request

RATE_RPS = 11.18


def words(count: int, *, first_s: float = 0.1, gap_s: float = 0.02) -> Script:
    """An answer of that many tokens."""
    moments = [(first_s + gap_s * index, token("x", usage=index + 1)) for index in range(count)]
    last_s = moments[-1][0]
    return timed(*moments, (last_s, finish("length", usage=count)), (last_s, usage(count)), (last_s, DONE))


class TestR10:
    def test_more_than_100_are_in_flight_at_once_and_nobody_waits_for_a_connection(self) -> None:
        held = timed((0.1, token("x", usage=1)), (12.8, finish("length", usage=1)), (12.8, DONE))
        server = MemoryServer(in_turn(held))
        due_s = [index / RATE_RPS for index in range(160)]
        facts = probe(server, schedule(due_s, start_s=13.0, end_s=14.3, drain_s=20.0, tokens=1))
        assert server.most_busy == server.connections == 144, "143.1 in flight by Little's law"
        verdict = judge_probe(facts, SLO[:1])
        assert (verdict.is_valid, verdict.summary.achieved_share) == (True, 1.0)
        assert [each.ttft_s for each in facts.records if each.in_cohort] == pytest.approx([0.1] * verdict.summary.n)

    def test_waiting_for_a_connection_is_inside_the_time_to_the_first_token(self) -> None:
        facts = probe(MemoryServer(in_turn(words(2)), connect_s=0.5), schedule([0.1, 0.2], end_s=1.0))
        assert [each.ttft_s for each in facts.records] == pytest.approx([0.6, 0.6])

    @pytest.mark.parametrize(
        ("number", "text"),
        [
            (errno.EMFILE, "too many open files (limit "),
            (errno.ENFILE, "too many open files (limit "),
            (errno.EADDRNOTAVAIL, "cannot assign requested address: no local port left"),
            (errno.ENOBUFS, "no buffer space available"),
        ],
    )
    def test_a_limit_of_this_machine_is_the_clients_fault_and_no_result(self, number: int, text: str) -> None:
        """The third connection and all after it."""
        server = MemoryServer(in_turn(words(2, first_s=1.0)), refuse=lambda tried: number if tried >= 2 else None)
        facts = probe(server, schedule([0.1, 0.2, 0.3, 0.4], end_s=1.0, tokens=2))
        assert [each.error.startswith(f"client: {text}") for each in facts.records] == [False, False, True, True]
        verdict = judge_probe(facts, SLO)
        assert verdict.outcome is None
        assert any(f"2 requests failed in the client ({text}" in reason for reason in verdict.invalid_reasons)

    def test_a_server_that_refuses_is_no_fault_of_this_machine(self) -> None:
        server = MemoryServer(in_turn(words(2)), refuse=lambda _: errno.ECONNREFUSED)
        verdict = judge_probe(probe(server, schedule([0.1, 0.2], end_s=1.0)), SLO)
        assert {each.error for each in verdict.facts.records} == {"cannot connect: connection refused"}
        assert (verdict.outcome, verdict.limited_by) == (Outcome.FAIL, LimitedBy.FAILURES)

    @pytest.mark.process
    def test_a_process_that_may_open_128_files_has_no_result_and_says_why(self) -> None:
        """A server and its client together, 200 answers at once."""
        tests = Path(__file__).parents[1]
        command = f"ulimit -n 128 && exec {sys.executable} {Path(__file__).with_name('too_few_files.py')}"
        environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
        bash = ["bash", "-c", command]
        done = subprocess.run(bash, capture_output=True, text=True, timeout=60, check=True, env=environment)
        told = json.loads(done.stdout)
        assert told["outcome"] is None
        assert (
            "requests failed in the client (too many open files (limit 128; raise it with ulimit -n))"
            in told["reasons"]
        )


class TestR11:
    @pytest.mark.parametrize("apart_s", [1.0, 3.0, 4.5, 5.0, 6.0])
    @pytest.mark.parametrize("idle_s", [0.5, 3.0, 5.0])
    def test_a_server_that_closes_idle_connections_fails_no_request(self, idle_s: float, apart_s: float) -> None:
        async def use(server: MemoryServer, endpoint: Endpoint) -> None:
            for index in range(3):
                await asyncio.sleep(apart_s * index - asyncio.get_running_loop().time())
                assert (await fly(HttpEngine(endpoint, "m"))).end is End.FINISHED
            if apart_s != idle_s:  # else it may be closed under the request
                assert (endpoint.resent, len(server.received)) == (0, 3)

        handler = in_turn([(0.0, data) for _, data in whole_answer(4)])
        server = against(handler, use, server=MemoryServer(handler, idle_s=idle_s))
        is_kept = apart_s < min(idle_s, KEEP_ALIVE_S)
        assert (server.connections == 1) == is_kept

    def test_a_connection_that_is_closed_under_a_request_costs_it_time_and_no_failure(self) -> None:
        """The server takes the request, waits, and closes: the request goes out again and keeps its due time."""
        server = MemoryServer(in_turn(words(2), [(0.3, None)], words(2)))
        facts = probe(server, schedule([0.1, 0.6], end_s=1.0, tokens=2))
        assert [each.end for each in facts.records] == [End.FINISHED] * 2
        assert [each.ttft_s for each in facts.records] == pytest.approx([0.1, 0.4])
        assert len(server.received) == 3

    def test_a_429_is_a_failure_without_a_time_to_the_first_token_and_never_tried_again(self) -> None:
        slow_down = [(1.0, data) for _, data in reply(429, {"error": "slow down"})]
        server = MemoryServer(in_turn(slow_down, slow_down, words(2, first_s=0.3)))
        facts = probe(server, schedule([0.1, 2.0, 4.0], end_s=5.0, tokens=2))
        assert [each.error for each in facts.records] == ["HTTP 429: slow down"] * 2 + [""]
        assert [each.ttft_s for each in facts.records] == [None, None, pytest.approx(0.3)]
        assert len(server.received) == 3
        verdict = judge_probe(facts, SLO)
        assert (verdict.summary.failed, verdict.misses) == (2, 2)
        assert verdict.outcome is Outcome.FAIL


class CostlyDispatch:
    """An engine in front of which each request costs the event loop 4 ms."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def generate(self, request: Request, flight: Flight) -> None:
        loop: Any = asyncio.get_running_loop()
        loop._virtual_now_s += 0.004
        await self._engine.generate(request, flight)


class TestR12:
    def test_a_dispatch_that_costs_4_ms_does_not_slow_8_requests_a_second_down(self) -> None:
        plan = schedule([index / 8 + 0.01 for index in range(64)], end_s=8.0, tokens=2)
        facts = probe(MemoryServer(in_turn(words(2))), plan, around=CostlyDispatch)
        verdict = judge_probe(facts, SLO)
        assert (verdict.summary.n, verdict.summary.achieved_share, verdict.outcome) == (64, 1.0, Outcome.PASS)
        sent_s = [each.sent_s for each in facts.records if each.sent_s is not None]
        assert (sent_s[-1] - sent_s[0]) / 63 == pytest.approx(1 / 8), "7.75 req/s where every gap is slept in full"
        assert verdict.summary.send_lag_max_s == pytest.approx(0.004)

    @staticmethod
    def run(jumps: Callable[[float], float]) -> ProbeFacts:
        """A probe under a UTC that is off by jumps(loop time)."""

        class Jumping(CostlyDispatch):
            def __init__(self, engine: Engine) -> None:
                super().__init__(engine)
                loop: Any = asyncio.get_running_loop()
                honest = loop.utc_s
                loop.utc_s = lambda: honest() + jumps(loop.time())

        return probe(
            MemoryServer(in_turn(words(2))), schedule([index / 8 for index in range(24)], tokens=2), around=Jumping
        )

    def test_jumps_of_the_wall_clock_change_no_time_and_are_seen_although_they_cancel_out(self) -> None:
        still, jumping = self.run(lambda _: 0.0), self.run(lambda now_s: -30.0 if 1.0 < now_s < 2.0 else 0.0)
        assert jumping.records == still.records
        assert all(0.0 <= each.due_s <= (each.sent_s or 0.0) + 1e-9 for each in jumping.records)
        assert (still.clock_step_s, judge_probe(still, SLO).is_valid) == (pytest.approx(0.0), True)
        verdict = judge_probe(jumping, SLO)
        assert verdict.outcome is None
        assert verdict.invalid_reasons == ("UTC and the monotonic clock moved apart by -30.0 s: check time keeping",)


class TestR13:
    @staticmethod
    def one_in_four_is_silent() -> MemoryServer:
        """Five chunks and then nothing, for every fourth request."""
        silent = timed(*((0.1 * index, token("x", usage=index)) for index in range(1, 6)), ends=False)
        number = count(1)
        return MemoryServer(lambda _: silent if next(number) % 4 == 0 else words(8))

    def test_the_probe_ends_by_its_own_deadline_and_the_others_keep_their_results(self) -> None:
        plan = schedule([index * 0.5 + 0.1 for index in range(20)], end_s=10.0, drain_s=5.0, tokens=8)
        facts = probe(self.one_in_four_is_silent(), plan)
        assert (facts.stop, facts.load_s) == (Stop.DRAIN_LIMIT, pytest.approx(15.0))
        ends = [each.end for each in facts.records]
        assert ends == [End.FINISHED, End.FINISHED, End.FINISHED, End.UNFINISHED] * 5
        assert {each.output_tokens for each in facts.records} == {5, 8}
        verdict = judge_probe(facts, SLO)
        assert (verdict.summary.failed, verdict.misses, verdict.summary.n) == (5, 5, 20)
        assert verdict.summary.mean_tpot_s == pytest.approx(0.02)

    def test_a_stream_that_is_silent_for_longer_than_its_bound_has_stalled(self) -> None:
        plan = schedule([index * 0.5 + 0.1 for index in range(4)], end_s=2.0, drain_s=60.0, tokens=8)
        facts = probe(self.one_in_four_is_silent(), plan, bounds=Bounds(stall_s=20.0))
        assert facts.stop is Stop.COMPLETE
        last = facts.records[-1]
        assert (last.end, last.error) == (End.TIMED_OUT, "stalled: nothing for 20 s")
        assert last.ended_s == pytest.approx(1.6 + 0.5 + 20.0)

    def test_a_slow_answer_is_no_stalled_one(self) -> None:
        """300 s of one token every 20 s: no total of a few minutes cuts it."""
        plan = schedule([0.1, 0.2], end_s=1.0, drain_s=400.0, tokens=16)
        facts = probe(MemoryServer(in_turn(words(16, gap_s=20.0))), plan)
        assert [(each.end, each.output_tokens) for each in facts.records] == [(End.FINISHED, 16)] * 2


PAYLOADS = st.sampled_from(
    [
        event(token("x")),
        event(token("x", usage=3)),
        event(token("", role="assistant")),
        event(finish()),
        event(finish("abort")),
        event(usage(2)),
        event(DONE),
        event({"error": "engine failed"}),
        b": ping\n\n",
        b"data: {\n\n",
        b"data: 5\n\n",
        b"\r",
        b"data",
        b"\xff",
    ]
)
DELAYS_S = st.sampled_from([0.0, 0.001, 0.1, 1.0, 30.0])


def body(pieces: list[tuple[float, bytes]], end: str) -> Script:
    """A stream of these pieces that ends as HTTP wants it, or closes, or falls silent."""
    whole = streamed(pieces)
    return {"whole": whole, "close": [*whole[:-1], CLOSE], "hold": [*whole[:-1], HOLD]}[end]


BODIES = st.builds(
    body, st.lists(st.tuples(DELAYS_S, PAYLOADS), max_size=8), st.sampled_from(["whole", "close", "hold"])
)
SCRIPTS = st.one_of(
    BODIES,
    st.just([HOLD]),
    st.just([CLOSE]),
    st.sampled_from([429, 503]).map(lambda status: reply(status, {"error": "no"})),
    st.binary(max_size=30).map(lambda data: [(0.1, data), CLOSE]),
)


@settings(max_examples=20, deadline=None)
@given(scripts=st.lists(SCRIPTS, min_size=1, max_size=4), refuses=st.booleans())
def test_whatever_a_server_does_every_request_of_the_cohort_has_one_record_by_the_deadline(
    scripts: list[Script], refuses: bool
) -> None:
    number = count()
    server = MemoryServer(
        lambda _: scripts[next(number) % len(scripts)],
        refuse=lambda tried: errno.ECONNREFUSED if refuses and tried % 3 == 2 else None,
    )
    plan = schedule([index * 0.25 for index in range(6)], end_s=1.5, drain_s=10.0)
    facts = probe(server, plan)
    assert facts.load_s <= plan.window.drain_end_s + 0.25
    assert [each.index for each in facts.records if each.in_cohort] == list(range(6))
    for each in facts.records:
        moments_s = [each.sent_s, each.first_token_s, each.last_token_s, each.ended_s]
        known_s = [moment_s for moment_s in moments_s if moment_s is not None]
        assert known_s == sorted(known_s)
        assert each.sent_s is not None
        assert each.sent_s >= each.due_s - 1e-9
        assert (each.first_token_s is None) == (each.last_token_s is None)
        assert each.end is not End.UNRESOLVED
        assert (each.error == "") == (each.end in (End.FINISHED, End.UNFINISHED))
        assert each.tpot_s is None or each.tpot_s > 0
    verdict = judge_probe(facts, SLO)
    assert verdict.summary.n == 6
    json.loads(to_json(probe_row(verdict, purpose="single", requests_file=None)), parse_constant=pytest.fail)
