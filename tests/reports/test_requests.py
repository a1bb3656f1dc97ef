"""Per-request facts in Parquet: what is read is what was written."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engines import failed, probe_facts, record
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.requests import SCHEMA, read_requests, write_requests
from traffic.errors import UsageError
from traffic.probe import ProbeFacts, Stop
from traffic.records import End, RequestRecord
from traffic.schedule import Window

seconds = st.floats(-1e-6, 1e6)
maybe_seconds = st.one_of(st.none(), seconds)
counts = st.integers(0, 10**6)
text = st.text(st.characters(codec="utf-8"), max_size=40)

records = st.builds(
    RequestRecord,
    index=counts,
    kind=text,
    in_cohort=st.booleans(),
    due_s=seconds,
    sent_s=maybe_seconds,
    first_token_s=maybe_seconds,
    last_token_s=maybe_seconds,
    ended_s=maybe_seconds,
    end=st.sampled_from(End),
    error=text,
    input_tokens=counts,
    prompt_tokens=st.one_of(st.none(), counts),
    cached_tokens=st.one_of(st.none(), counts),
    requested_output_tokens=counts,
    force_length=st.booleans(),
    output_tokens=counts,
    output_tokens_estimated=st.booleans(),
    chunk_gap_max_s=maybe_seconds,
    malformed_frames=counts,
)
windows = st.builds(
    Window,
    rate_rps=st.one_of(st.none(), st.floats(0.001, 1e4)),
    repeat=counts,
    window_start_s=seconds,
    window_end_s=seconds,
    drain_end_s=seconds,
    scheduled=counts,
    longest_output_tokens=counts,
    duplicate_prompts=counts,
    concurrency=st.one_of(st.none(), counts),
)
probes = st.builds(
    ProbeFacts,
    window=windows,
    records=st.lists(records, max_size=30).map(tuple),
    stop=st.sampled_from(Stop),
    started_utc=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    load_s=seconds,
    saved_s=seconds,
    stall_max_s=seconds,
    clock_step_s=seconds,
    cpu_share=st.one_of(st.none(), seconds),
    workers=counts,
    client_fault=st.one_of(st.none(), st.text(max_size=20)),
    abandoned_turns=counts,
)


@settings(deadline=None, max_examples=30)
@given(probes)
def test_what_is_read_is_what_was_written(facts: ProbeFacts) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.parquet"
        write_requests(path, facts)
        assert read_requests(path) == facts


def test_each_request_is_a_row_and_each_fact_a_column_for_other_readers(tmp_path: Path) -> None:
    facts = probe_facts([record(0), failed(record(1)), record(2, prompt_tokens=None)])
    write_requests(tmp_path / "probe.parquet", facts)
    table = pq.read_table(tmp_path / "probe.parquet")
    assert table.column_names == [field.name for field in dataclasses.fields(RequestRecord)]
    assert table.column("end").to_pylist() == ["finished", "failed", "finished"]
    assert table.column("first_token_s").to_pylist() == [pytest.approx(0.2), None, pytest.approx(0.4)]
    assert table.column("prompt_tokens").to_pylist() == [100, 100, None]


def test_absent_is_null_and_only_where_it_may_be() -> None:
    nullable = {field.name for field in SCHEMA if field.nullable}
    assert nullable == {
        "sent_s", "first_token_s", "last_token_s", "ended_s", "prompt_tokens", "cached_tokens", "chunk_gap_max_s",
    }  # fmt: skip


def test_a_file_from_before_clients_told_of_themselves_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "probe.parquet"
    write_requests(path, probe_facts([record(0)], cpu_share=0.5, workers=2))
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"slo_bench.probe"])
    for name in ("cpu_share", "workers", "client_fault", "abandoned_turns"):
        del about[name]
    pq.write_table(table.replace_schema_metadata({b"slo_bench.probe": json.dumps(about).encode()}), path)
    assert read_requests(path) == probe_facts([record(0)])


def test_a_probe_without_requests_is_a_file_too(tmp_path: Path) -> None:
    facts = probe_facts([], window={"window_end_s": 10.0})
    write_requests(tmp_path / "probe.parquet", facts)
    assert read_requests(tmp_path / "probe.parquet") == facts


def spoiled(path: Path, how: str) -> None:
    """Make of a good file one that no probe wrote."""
    write_requests(path, probe_facts([record(0), record(1)]))
    table = pq.read_table(path)
    if how == "half a file":
        path.write_bytes(path.read_bytes()[:200])
    elif how == "another file":
        path.write_text("rate,passed\n8,yes\n")
    elif how == "no metadata":
        pq.write_table(table.replace_schema_metadata(None), path)
    elif how == "a column less":
        pq.write_table(table.drop_columns(["sent_s"]), path)
    elif how == "other metadata":
        pq.write_table(table.replace_schema_metadata({"slo_bench.probe": '{"window": {}}'}), path)
    elif how == "an unknown end":
        ends = table.schema.get_field_index("end")
        pq.write_table(table.set_column(ends, "end", pa.array(["finished", "eaten"])), path)
    else:
        path.unlink()


HOW = ["half a file", "another file", "no metadata", "a column less", "other metadata", "an unknown end", "no file"]


@pytest.mark.parametrize("how", HOW)
def test_a_file_of_another_kind_is_refused_by_name(how: str, tmp_path: Path) -> None:
    path = tmp_path / "probe.parquet"
    spoiled(path, how)
    with pytest.raises(UsageError, match=r"probe\.parquet holds no requests of a probe"):
        read_requests(path)
