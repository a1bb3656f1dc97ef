"""From options to the last lines on the terminal."""

from __future__ import annotations

from pathlib import Path

from engines import probe_facts, record

from gates.capacity import CapacityVerdict, Observation, Strategy, conclude
from gates.slo import DEFAULT_SLO
from gates.verdict import Outcome, judge_probe
from reports.rows import probe_row, sweep_document
from reports.run_directory import SweepDocument
from slo_bench.commands import TALK_MARK, answer, exit_code, forecast, load_line, marks, recorded, sweep_plan
from slo_bench.config import SweepOptions
from slo_bench.store import RunStore


def found(verdict: CapacityVerdict, *seen: tuple[float, bool]) -> SweepDocument:
    observations = [Observation(rate_rps, 0, passed) for rate_rps, passed in seen]
    return sweep_document(
        label="x",
        engine="simulated",
        seed=0,
        slo=DEFAULT_SLO,
        is_smoke=False,
        capacity=conclude(observations, verdict),
        warm_up=None,
        probes=[],
    )


def test_each_verdict_has_its_answer_and_its_exit_code(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "x")
    cases = {
        CapacityVerdict.FOUND: (
            ((11.18, True), (11.5, False)),
            "capacity: 11.18 req/s  (11.18: 1 of 1; 11.50: 0 of 1",
            0,
        ),
        CapacityVerdict.AT_LEAST: (((8.0, True),), "capacity: at least 8.00 req/s", 0),
        CapacityVerdict.NONE: (((8.0, False),), "capacity: none", 1),
        CapacityVerdict.UNFINISHED: (((8.0, True),), "capacity: unfinished, 8.00 req/s so far", 5),
    }
    for verdict, (seen, words, code) in cases.items():
        document = found(verdict, *seen)
        lines = answer(document, store)
        assert lines[0].startswith(words)
        assert lines[-1] == f"files: {store.directory}"
        assert exit_code(document) == code


def test_estimate_and_proof_are_shown_where_they_exist(tmp_path: Path) -> None:
    document = found(CapacityVerdict.FOUND, (11.18, True), (11.5, False))
    store = RunStore(tmp_path / "x")
    assert not any("estimate" in line or "proven" in line for line in answer(document, store)[:-1])
    shown = {"capacity_estimate_rps": 11.3, "capacity_interval_rps": (11.1, 11.6), "proven_pass_rps": 8.0}
    assert "estimate 11.30 req/s (90 %: 11.10 to 11.60); a pass is proven at 8.00" in answer(
        document.model_copy(update=shown), store
    )
    failed = document.model_copy(update={"proven_fail_rps": 12.5})
    assert "a fail is proven at 12.50" in answer(failed, store)


def test_windows_of_one_rate_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    verdict = judge_probe(probe_facts([record(index) for index in range(200)]), DEFAULT_SLO)
    row = probe_row(verdict, purpose="search", requests_file=None)
    rows = [
        row.model_copy(update={"rate_rps": rate_rps, "outcome": outcome})
        for rate_rps in (11.18, 11.3, 11.5)
        for outcome in (Outcome.PASS, Outcome.FAIL)
    ]
    document = found(CapacityVerdict.FOUND, (11.18, True), (11.5, False)).model_copy(
        update={"probes": rows, "strategy": Strategy.ECONOMICAL, "unclear_rps": [11.3]}
    )
    lines = answer(document, RunStore(tmp_path / "x"))
    assert "windows of one rate contradict each other: 11.30: 1 of 2, unclear" in lines


def test_the_forecast_has_two_times_since_a_failing_start_takes_longer() -> None:
    text = forecast(sweep_plan(SweepOptions(engine="simulated", label="x")))
    assert "at most 20 windows of 120 s in 96 minutes (230 if 8.00 req/s fails)" in text


def test_what_is_sent_and_when_is_said_before_it_is() -> None:
    plan = sweep_plan(SweepOptions(engine="simulated", label="x", arrivals="gamma", burstiness=0.5))
    assert load_line(plan.load) == "load: chat-mix, gamma arrivals of burstiness 0.5"
    assert load_line(plan.load, is_open=False) == "load: chat-mix"


def test_conversations_are_called_closed_loops_on_every_line() -> None:
    assert marks(SweepOptions(engine="simulated", workload="multi-turn")) == ["SIMULATED", TALK_MARK]
    assert TALK_MARK == "closed loop within conversations"
    assert marks(SweepOptions(engine="simulated")) == ["SIMULATED"]


def test_workload_and_arrivals_are_written_down() -> None:
    config = recorded(SweepOptions(engine="simulated", arrivals="gamma", burstiness=0.5), DEFAULT_SLO)
    assert (config["workload"], config["arrivals"], config["burstiness"]) == ("chat-mix", "gamma", 0.5)


def test_what_is_written_down_holds_no_secret() -> None:
    options = SweepOptions(base_url="http://h", api_key="hidden", header=["X-Key: hidden"])  # type: ignore[arg-type]
    text = str(recorded(options, DEFAULT_SLO))
    assert "hidden" not in text
    assert "X-Key" in text
