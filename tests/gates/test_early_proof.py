"""When a running window's margins end it, and that an open request counts against whatever is claimed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engines import failed, probe_facts, record

from gates.early_proof import EarlyProof
from gates.margin import WindowSample, window_sample
from gates.slo import parse_objective
from gates.verdict import judge_probe
from traffic.records import Request, RequestRecord
from traffic.schedule import Schedule, Window

SLO = tuple(parse_objective(text) for text in ("ttft:p99:2000", "tpot:p99:50"))
RAMP_S = 20.0
WINDOW_S = 200.0
GAP_S = 0.25


def schedule() -> Schedule:
    """Four requests a second for 200 s, after a ramp."""
    requests = tuple(
        Request(
            index=index,
            due_s=RAMP_S + index * GAP_S,
            kind="plain",
            messages=(),
            input_tokens=100,
            output_tokens=11,
            force_length=True,
            in_cohort=True,
        )
        for index in range(int(WINDOW_S / GAP_S))
    )
    end_s = RAMP_S + WINDOW_S
    return Schedule(Window(1 / GAP_S, 0, RAMP_S, end_s, end_s + 60.0, len(requests), 11), requests)


def records(tpot_s: float, seconds: float, seed: int = 0) -> list[RequestRecord]:
    noise = np.exp(np.random.default_rng(seed).normal(0.0, 0.1, int(seconds / GAP_S)))
    return [
        record(index, due_s=RAMP_S + index * GAP_S, tpot_s=tpot_s * float(each), ttft_s=0.2 * float(each))
        for index, each in enumerate(noise)
    ]


def earlier(tpot_s: float) -> WindowSample:
    members = records(tpot_s, 120.0, seed=1)
    return window_sample(judge_probe(probe_facts(members, window={"window_start_s": RAMP_S}), SLO), None)


def proven_at(members: Sequence[RequestRecord], before: Sequence[WindowSample] = ()) -> float | None:
    """The second after the window's begin at which it would end, if requests resolve at once."""
    looking = EarlyProof(SLO, schedule(), before)
    waiting = list(members)
    for now_s in range(1, int(RAMP_S + WINDOW_S)):
        while waiting and waiting[0].due_s <= now_s:
            looking.resolved(waiting.pop(0))
        if looking.look(float(now_s)):
            return now_s - RAMP_S
    return None


@pytest.mark.parametrize("tpot_s", [0.02, 0.09])
def test_a_wide_margin_ends_a_long_window_after_six_blocks_and_one_of_grace(tpot_s: float) -> None:
    assert proven_at(records(tpot_s, WINDOW_S)) == 140.0


def test_a_narrow_margin_ends_nothing() -> None:
    assert proven_at(records(0.0395, WINDOW_S)) is None


@pytest.mark.parametrize("tpot_s", [0.02, 0.09])
def test_blocks_of_earlier_windows_count_but_none_ends_before_sixty_seconds(tpot_s: float) -> None:
    assert proven_at(records(tpot_s, WINDOW_S), [earlier(tpot_s)]) == 60.0


def test_an_earlier_window_that_contradicts_keeps_it_going() -> None:
    assert proven_at(records(0.02, 140.0), [earlier(0.09)]) is None


def test_one_open_request_holds_a_pass_back_until_it_ends() -> None:
    members = records(0.02, WINDOW_S)
    assert proven_at([each for each in members if each.index != 100]) is None


def test_a_failed_request_holds_a_pass_back_for_good() -> None:
    members = records(0.02, WINDOW_S)
    members[100] = failed(members[100])
    assert proven_at(members) is None


def test_open_requests_count_as_quick_where_a_fail_is_claimed() -> None:
    """Of all requests 0.8 % are over, which is allowed; of those that ended it would be 1.7 %."""
    some_over = [
        each if each.index % 120 else record(each.index, due_s=each.due_s, tpot_s=0.5, ttft_s=8.0)
        for each in records(0.02, WINDOW_S)
    ]
    assert proven_at([each for each in some_over if each.index % 2 == 0]) is None


def test_every_metric_is_looked_at() -> None:
    slow_first = [
        record(each.index, due_s=each.due_s, ttft_s=200 * (each.tpot_s or 0)) for each in records(0.02, WINDOW_S)
    ]
    assert proven_at(slow_first) == 140.0
