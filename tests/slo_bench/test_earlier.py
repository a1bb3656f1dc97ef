"""What an earlier part of a run left behind is read back as it was judged."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from engines import failed, probe_facts, record

from gates.capacity import CapacityVerdict, Observation, conclude
from gates.slo import DEFAULT_SLO
from gates.verdict import Outcome, judge_probe
from reports.rows import probe_row, sweep_document
from reports.run_directory import ProbeRow, RunDocument, Status
from slo_bench.earlier import Earlier, read_earlier
from slo_bench.store import RunStore
from traffic.errors import UsageError

GOOD = probe_facts([record(index) for index in range(200)])
BAD = probe_facts([failed(each) if each.index < 10 else each for each in GOOD.records], window={"rate_rps": 12.0})


def run_document(status: Status = "running", resumed_utc: tuple[str, ...] = ()) -> RunDocument:
    return RunDocument(
        schema_version=1,
        kind="sweep",
        label="one",
        status=status,
        engine="attached",
        seed=0,
        config={},
        environment={},
        started_utc=datetime(2026, 12, 1, tzinfo=UTC).isoformat(),
        resumed_utc=list(resumed_utc),
        ended_utc=None,
    )


def stored(directory: Path, verdict: CapacityVerdict = CapacityVerdict.UNFINISHED) -> list[ProbeRow]:
    """A run directory with a window that passed, an invalid one and one that failed."""
    store = RunStore(directory)
    store.run(run_document())
    judged = [judge_probe(facts, DEFAULT_SLO) for facts in (GOOD, GOOD, BAD)]
    judged[1] = replace(judged[1], outcome=None, invalid_reasons=("the client was late",))
    rows = [probe_row(each, purpose="search", requests_file=store.requests(each.facts)) for each in judged]
    store.sweep(
        sweep_document(
            label="one",
            engine="attached",
            seed=0,
            slo=DEFAULT_SLO,
            is_smoke=False,
            capacity=conclude([Observation(10.0, 0, passed=True), Observation(12.0, 0, passed=False)], verdict),
            warm_up=None,
            probes=rows,
        )
    )
    return rows


def test_windows_come_back_in_order_as_they_were_judged_and_invalid_ones_are_none(tmp_path: Path) -> None:
    rows = stored(tmp_path)
    found = read_earlier(tmp_path, DEFAULT_SLO)
    assert [each is None for each in found.verdicts] == [False, True, False]
    windows = list(found.windows())
    assert [row for row, _ in windows] == [rows[0], rows[2]]
    assert [verdict.outcome for _, verdict in windows] == [Outcome.PASS, Outcome.FAIL]
    assert windows[1][1].facts == BAD
    assert windows[1][1].results == judge_probe(BAD, DEFAULT_SLO).results


def test_a_run_that_stopped_before_its_first_window_has_none(tmp_path: Path) -> None:
    RunStore(tmp_path).run(run_document())
    found = read_earlier(tmp_path, DEFAULT_SLO)
    assert (found.sweep, list(found.windows()), found.answer) == (None, [], None)


def test_a_row_that_its_file_contradicts_is_refused(tmp_path: Path) -> None:
    rows = stored(tmp_path)
    RunStore(tmp_path / "other").requests(GOOD)
    (tmp_path / "other" / "probes" / "01-10.00.parquet").replace(tmp_path / str(rows[2].requests_file))
    with pytest.raises(UsageError, match=r"03-12\.00\.parquet and its row in sweep\.json disagree"):
        read_earlier(tmp_path, DEFAULT_SLO)


def test_a_row_whose_file_is_gone_is_refused(tmp_path: Path) -> None:
    rows = stored(tmp_path)
    (tmp_path / str(rows[0].requests_file)).unlink()
    with pytest.raises(UsageError, match=r"01-10\.00\.parquet holds no requests of a probe"):
        read_earlier(tmp_path, DEFAULT_SLO)


def test_server_starts_are_counted_on() -> None:
    assert Earlier(run_document()).server_start == 1
    assert Earlier(run_document(resumed_utc=("2026-12-01T01:00:00+00:00",))).server_start == 2


@pytest.mark.parametrize(
    ("status", "verdict", "is_answered"),
    [
        ("done", CapacityVerdict.FOUND, True),
        ("done", CapacityVerdict.NONE, True),
        ("done", CapacityVerdict.UNFINISHED, False),
        ("running", CapacityVerdict.FOUND, False),
        ("interrupted", CapacityVerdict.FOUND, False),
    ],
)
def test_only_a_run_that_came_to_its_end_has_an_answer(
    tmp_path: Path, status: Status, verdict: CapacityVerdict, is_answered: bool
) -> None:
    stored(tmp_path, verdict)
    RunStore(tmp_path).run(run_document(status))
    assert (read_earlier(tmp_path, DEFAULT_SLO).answer is not None) is is_answered
