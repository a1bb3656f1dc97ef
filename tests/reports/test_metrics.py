"""The server's counts in Parquet: what is read is what was written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.metrics import SCHEMA, Metrics, read_metrics, write_metrics
from traffic.errors import UsageError
from traffic.server_facts import Gap, Histogram, ServerSample

seconds = st.floats(0, 1e9)
counts = st.none() | st.integers(0, 2**53)
histograms = st.none() | st.lists(st.integers(0, 10**6), max_size=4).map(
    lambda steps: Histogram(
        bounds=tuple(0.1 * (edge + 1) for edge in range(len(steps))),
        counts=tuple(sum(steps[: edge + 1]) for edge in range(len(steps))),
        sum=0.5 * sum(steps),
        count=sum(steps),
    )
)
samples = st.builds(
    ServerSample,
    moment_s=seconds,
    utc_s=seconds,
    engines=st.integers(0, 64),
    running=counts,
    running_max=counts,
    waiting=counts,
    waiting_max=counts,
    kv_use_share=st.none() | st.floats(0, 1),
    preemptions_total=counts,
    generation_tokens_total=counts,
    step_tokens=histograms,
    ttft_s=histograms,
    queue_s=histograms,
    started_utc_s=st.none() | seconds,
)
gaps = st.builds(Gap, moment_s=seconds, utc_s=seconds, reason=st.text(st.characters(codec="utf-8"), max_size=40))


@settings(deadline=None, max_examples=15)
@given(st.lists(samples, max_size=10), st.lists(gaps, max_size=3))
def test_what_is_read_is_what_was_written(seen: list[ServerSample], missed: list[Gap]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.parquet"
        write_metrics(path, seen, missed)
        assert read_metrics(path) == Metrics(tuple(seen), tuple(missed))


def test_each_look_is_a_row_and_every_column_has_its_unit(tmp_path: Path) -> None:
    first = ServerSample(1.0, 11.0, running=3, ttft_s=Histogram((0.1,), (1,), 0.7, 2))
    write_metrics(tmp_path / "metrics.parquet", [first, ServerSample(2.0, 12.0)], [Gap(3.0, 13.0, "no answer")])
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.column("running").to_pylist() == [3, None]
    assert table.column("ttft_s_sum").to_pylist() == [0.7, None]
    assert table.column("ttft_s_counts").to_pylist() == [[1], None]
    about = json.loads(table.schema.metadata[b"slo_bench.metrics"])
    assert about["schema_version"] == 1
    assert set(about["units"]) == set(table.column_names)
    assert {name: about["units"][name] for name in ("moment_s", "running", "kv_use_share", "ttft_s_bounds")} == {
        "moment_s": "s", "running": "requests", "kv_use_share": "share, 0 to 1", "ttft_s_bounds": "s",
    }  # fmt: skip
    units = {name: about["units"][name] for name in ("step_tokens_sum", "step_tokens_count", "prompt_tokens_total")}
    assert units == {"step_tokens_sum": "tokens", "step_tokens_count": "count", "prompt_tokens_total": "tokens"}


def test_only_the_time_of_a_look_and_its_engines_are_always_there() -> None:
    assert [field.name for field in SCHEMA if not field.nullable] == ["moment_s", "utc_s", "engines"]


@pytest.mark.parametrize("how", ["half a file", "another file", "no metadata", "a column less", "no file"])
def test_a_file_of_another_kind_is_refused_by_name(how: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.parquet"
    write_metrics(path, [ServerSample(1.0, 11.0)])
    table = pq.read_table(path)
    if how == "half a file":
        path.write_bytes(path.read_bytes()[:200])
    elif how == "another file":
        path.write_text("rate,passed\n8,yes\n")
    elif how == "no metadata":
        pq.write_table(table.replace_schema_metadata(None), path)
    elif how == "a column less":
        pq.write_table(table.drop_columns(["utc_s"]), path)
    else:
        path.unlink()
    with pytest.raises(UsageError, match=r"metrics\.parquet holds no metrics of a server"):
        read_metrics(path)


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.parquet"
    write_metrics(path, [ServerSample(1.0, 11.0)])
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"slo_bench.metrics"]) | {"schema_version": 2}
    pq.write_table(table.replace_schema_metadata({"slo_bench.metrics": json.dumps(about)}), path)
    with pytest.raises(UsageError, match="later version"):
        read_metrics(path)
