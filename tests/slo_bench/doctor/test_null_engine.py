"""The null engine as a process: what our client reads is held against what the server knows."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from engines import failed, record

from slo_bench.doctor import null_server
from slo_bench.doctor.null_engine import (
    NullEngine,
    TrueAnswer,
    Truth,
    null_engine,
    null_load,
    read_truth,
    readings,
)
from traffic.endpoint import Endpoint
from traffic.probe import ProbeFacts, Stop, run_probe
from traffic.real_time import RealLoop

CHECKOUT = Path(__file__).resolve().parents[3]


def test_readings_pair_the_cohorts_answers_with_the_truth() -> None:
    records = [
        record(0),
        record(1, in_cohort=False),
        failed(record(2)),
        record(3),
        record(4, output_tokens=1),
    ]
    answers = {index: TrueAnswer(10.0, 10.19, 10.39, 11) for index in (0, 1, 2, 4)}
    answers[4] = TrueAnswer(10.0, 10.19, 10.19, 1)
    found = readings(records, Truth(answers, None))
    assert [(each.ttft_s, each.true_ttft_s) for each in found] == [
        (pytest.approx(0.2), pytest.approx(0.19)),
        (pytest.approx(0.2), pytest.approx(0.19)),
    ]
    assert (found[0].tpot_s, found[0].true_tpot_s) == (pytest.approx(0.02), pytest.approx(0.02))
    assert (found[1].tpot_s, found[1].true_tpot_s) == (None, None)


def test_answers_to_other_callers_are_not_of_the_load() -> None:
    page = {
        "answers": [["7", 1.0, 1.05, 1.1, 6], ["Answer", 2.0, 2.1, 2.2, 6], ["", 2.0, 2.1, 2.2, 6]],
        "late_p99_s": None,
    }
    assert read_truth(page) == Truth({7: TrueAnswer(1.0, 1.05, 1.1, 6)}, None)


def test_a_load_names_each_request_by_its_index_and_ramps_for_a_whole_answer() -> None:
    schedule = null_load(50.0, 16, duration_s=2.0, answer_s=0.2, prompt_words=5)
    assert schedule.window.window_start_s == pytest.approx(0.22)
    assert schedule.window.duration_s == pytest.approx(2.0)
    assert all(each.messages[0].text == f"{each.index} word word word word" for each in schedule.requests)
    assert {each.output_tokens for each in schedule.requests} == {16}
    assert null_load(50.0, 16, duration_s=2.0, answer_s=0.2, prompt_words=5, repeat=1).requests != schedule.requests


async def one_load(null: NullEngine) -> tuple[ProbeFacts, Truth]:
    facts = await run_probe(null.engine, null_load(20.0, 8, duration_s=1.0, answer_s=0.1, prompt_words=20))
    return facts, await null.truth()


@pytest.mark.process
def test_what_the_client_reads_is_what_the_server_did_and_never_less() -> None:
    async def run() -> tuple[ProbeFacts, Truth, Truth]:
        async with null_engine(ttft_s=0.05, itl_s=0.01) as null:
            return *(await one_load(null)), await null.truth()

    with asyncio.Runner(loop_factory=RealLoop) as runner:
        facts, truth, again = runner.run(run())
    found = readings(facts.records, truth)
    assert facts.stop is Stop.COMPLETE
    assert len(found) == facts.window.scheduled > 5
    for reading in found:
        assert reading.true_ttft_s >= 0.05
        assert reading.ttft_s > reading.true_ttft_s  # the due time is before, the reading after
        assert reading.tpot_s is not None
        assert reading.true_tpot_s is not None
    assert truth.late_p99_s is not None
    assert truth.late_p99_s >= 0
    assert again == Truth({}, None)


@pytest.mark.process
def test_in_step_all_tokens_leave_on_one_grid() -> None:
    async def run() -> Truth:
        async with null_engine(ttft_s=0.05, itl_s=0.1, in_step=True) as null:
            return (await one_load(null))[1]

    with asyncio.Runner(loop_factory=RealLoop) as runner:
        truth = runner.run(run())
    on_grid = [each for each in truth.answers.values() if each.first_token_s % 0.1 < 0.02]
    assert len(on_grid) > len(truth.answers) / 2  # one in five without it, and a busy machine makes some late


@pytest.mark.process
def test_it_ends_with_its_parent_however_that_ends() -> None:
    source = (
        "import asyncio, sys\n"
        "from slo_bench.doctor.null_engine import null_engine\n"
        "async def main():\n"
        "    async with null_engine(ttft_s=0.05, itl_s=0.01) as null:\n"
        "        print(null.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, cwd=CHECKOUT) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=10)
    deadline_s = time.monotonic() + 10
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.kill(pid, 0)
            time.sleep(0.02)
        pytest.fail("the null server outlived its parent")


@pytest.mark.process
def test_it_runs_alone_and_lists_its_model_and_its_health() -> None:
    with subprocess.Popen(
        [sys.executable, null_server.__file__, "--end-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        url = process.stdout.readline().decode().strip()

        async def look() -> tuple[list[str], bool, str | None]:
            async with Endpoint(url) as endpoint:
                models = await endpoint.models()
                return [each.name for each in models or []], await endpoint.is_healthy(), await endpoint.version()

        assert asyncio.run(look()) == ([null_server.MODEL_ID], True, None)
        process.stdin.close()
        assert process.wait(timeout=10) == 0
