"""doctor.json: an entry per host and client, and nothing that a broken file could stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_bench.doctor.checks import no_vllm
from slo_bench.doctor.document import (
    CheckRow,
    DoctorDocument,
    Fitness,
    HeldRow,
    HostKey,
    doctor_path,
    find_doctor,
    keep_doctor,
    this_client,
)
from traffic.errors import UsageError

KEY = HostKey(host="one", cpu="EPYC", cores=8, python="3.11.7", slo_bench="0.1.0")


def held(rate_rps: float, output_tokens: int) -> HeldRow:
    return HeldRow(
        rate_rps=rate_rps,
        output_tokens=output_tokens,
        failed_rps=None,
        is_least=True,
        send_lag_p99_s=0.001,
        ttft_error_p99_s=None,
    )


def document(key: HostKey = KEY, *, rate_rps: float = 200.0, load_workers: int = 1) -> DoctorDocument:
    return DoctorDocument(
        schema_version=1,
        key=key,
        measured_utc="2026-01-01T00:00:00+00:00",
        load_workers=load_workers,
        short=held(rate_rps, 16),
        long=held(rate_rps / 4, 128),
        checks=[no_vllm()],
    )


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path) -> None:
    assert doctor_path({"XDG_CACHE_HOME": "/c"}, tmp_path) == Path("/c/slo-bench/doctor.json")
    for env in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert doctor_path(env, tmp_path) == tmp_path / ".cache/slo-bench/doctor.json"


def test_each_host_and_each_version_has_an_entry_of_its_own_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "new" / "doctor.json"
    other = KEY.model_copy(update={"host": "two"})
    newer = KEY.model_copy(update={"slo_bench": "0.2.0"})
    for entry in (document(), document(other, rate_rps=90.0), document(rate_rps=300.0)):
        keep_doctor(path, entry)
    assert find_doctor(path, KEY) == document(rate_rps=300.0)
    assert find_doctor(path, other) == document(other, rate_rps=90.0)
    assert find_doctor(path, newer) is None


@pytest.mark.parametrize(
    "text", ["", "{", '{"schema_version": 99, "hosts": []}', '{"schema_version": 1, "hosts": [3]}']
)
def test_a_file_that_cannot_be_read_is_an_empty_cache_and_is_written_anew(text: str, tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    path.write_text(text)
    assert find_doctor(path, KEY) is None
    keep_doctor(path, document())
    assert find_doctor(path, KEY) == document()


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        keep_doctor(tmp_path / "file" / "doctor.json", document())


def test_the_ceiling_is_that_of_one_worker_of_those_that_measured_it() -> None:
    ceiling = document(rate_rps=400.0, load_workers=4).ceiling
    assert ceiling is not None
    assert ceiling.short.rate_rps == 100.0
    assert ceiling.highest_rps(16, 4) == pytest.approx(400.0)
    assert ceiling.cores == KEY.cores
    assert document().model_copy(update={"long": None}).ceiling is None


def test_one_bad_finding_makes_a_client_unfit_and_a_warning_does_not() -> None:
    rows = [CheckRow(name="x", fitness=fitness, figure="") for fitness in (Fitness.OK, Fitness.WARN)]
    assert document().model_copy(update={"checks": rows}).is_fit
    rows.append(CheckRow(name="y", fitness=Fitness.BAD, figure=""))
    assert not document().model_copy(update={"checks": rows}).is_fit


def test_this_client_has_the_same_key_each_time() -> None:
    assert this_client() == this_client()
    assert this_client().cores >= 1
