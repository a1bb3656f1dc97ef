"""A doctor's finding decides what sweeps and probes of real servers may ask of this client."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gates.capacity import CapacityVerdict, Observation, conclude
from gates.slo import DEFAULT_SLO
from reports.rows import sweep_document
from slo_bench.cli import main
from slo_bench.commands import answer, sweep_plan
from slo_bench.config import SweepOptions
from slo_bench.doctor.ceiling import ClientLimit
from slo_bench.doctor.client_limit import NOT_MEASURED, client_limit, mean_answer_tokens
from slo_bench.doctor.document import DoctorDocument, HeldRow, doctor_path, keep_doctor, this_client
from slo_bench.store import RunStore
from traffic.workload import fixed_lengths

NOBODY = "http://127.0.0.1:9"
"""Refusals come before the first connection."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def held(rate_rps: float, output_tokens: int) -> HeldRow:
    return HeldRow(
        rate_rps=rate_rps,
        output_tokens=output_tokens,
        failed_rps=None,
        is_least=False,
        send_lag_p99_s=0.001,
        ttft_error_p99_s=None,
    )


def examined(short_rps: float = 80.0, long_rps: float = 20.0) -> None:
    """A finding of this client: with chat-mix's answers of 211 tokens about 12.9 req/s a worker."""
    document = DoctorDocument(
        schema_version=1,
        key=this_client(),
        measured_utc="2026-01-01T00:00:00+00:00",
        load_workers=1,
        short=held(short_rps, 16),
        long=held(long_rps, 128),
        checks=[],
    )
    keep_doctor(doctor_path(os.environ, Path.home()), document)


def limit_of(options: SweepOptions, said: list[str] | None = None) -> ClientLimit | None:
    return client_limit(options, sweep_plan(options).load, (said if said is not None else []).append)


def test_without_a_finding_there_is_one_line_of_notice_and_no_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    assert limit_of(SweepOptions(base_url=NOBODY), said) is None
    assert said == [NOT_MEASURED]
    assert main(["probe", "--base-url", NOBODY, "--request-rate", "500"]) == 4
    assert NOT_MEASURED in capsys.readouterr().err


def test_the_simulated_engine_knows_no_client() -> None:
    said: list[str] = []
    assert limit_of(SweepOptions(engine="simulated"), said) is None
    assert said == []


@pytest.mark.parametrize(
    "argv",
    [
        ["sweep", "--base-url", NOBODY, "--sweep-start", "14", "--label", "x", "--dry-run"],
        ["sweep", "--base-url", NOBODY, "--sweep-start", "14", "--label", "x"],
        ["probe", "--base-url", NOBODY, "--request-rate", "14"],
    ],
)
def test_a_rate_that_the_client_cannot_send_is_refused_in_one_line(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examined()
    assert main(argv) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("slo-bench: 14.00 req/s with answers of 2")
    assert "--load-workers 2" in last or "more cores" in last
    assert not (tmp_path / "runs").exists()


def test_the_same_rate_of_shorter_answers_is_not() -> None:
    examined()
    limit = limit_of(SweepOptions(base_url=NOBODY, workload="fixed", input_tokens=8, output_tokens=16))
    assert limit is not None
    limit.check(79.0)


def test_a_closed_loop_has_no_rate_to_refuse() -> None:
    examined(0.1, 0.05)
    assert main(["probe", "--base-url", NOBODY, "--concurrency", "4"]) == 4


def test_a_search_is_capped_and_says_whose_ceiling_ended_it(tmp_path: Path) -> None:
    examined()
    options = SweepOptions(base_url=NOBODY, label="x")
    plan = sweep_plan(options)
    limit = limit_of(options)
    assert limit is not None
    capped = plan.within(limit)
    assert capped.client_limit_rps == capped.search.ceiling_rps == limit.highest_rps
    assert 8.0 < limit.highest_rps < 14.0
    document = sweep_document(
        label="x",
        engine="attached",
        seed=0,
        slo=DEFAULT_SLO,
        is_smoke=False,
        capacity=conclude([Observation(limit.highest_rps, 0, passed=True)], CapacityVerdict.AT_LEAST),
        warm_up=None,
        probes=[],
        client_limit_rps=capped.client_limit_rps,
    )
    first = answer(document, RunStore(tmp_path / "x"))[0]
    assert first.startswith("capacity: at least 1")
    assert "the client's ceiling ended the search, not the server: give more --load-workers" in first


def test_a_search_that_ends_below_the_ceiling_does_not_mention_it() -> None:
    examined()
    options = SweepOptions(base_url=NOBODY, label="x", max_request_rate=9.0)
    plan = sweep_plan(options)
    limit = limit_of(options)
    assert limit is not None
    assert plan.within(limit).client_limit_rps is None
    assert plan.within(limit).search.ceiling_rps == 9.0


def test_mean_answers_follow_the_mix_and_the_length_scale() -> None:
    load = sweep_plan(SweepOptions(base_url=NOBODY, label="x")).load
    assert mean_answer_tokens(load) == pytest.approx(211, rel=0.05)
    assert mean_answer_tokens(replace(load, length_scale=0.1)) == pytest.approx(21.1, rel=0.05)
    assert mean_answer_tokens(replace(load, workload=fixed_lengths(8, 64))) == 64
