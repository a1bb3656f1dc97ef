"""Trace files: public formats are read as they are, and a damaged file is named with its line."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traffic.errors import UsageError
from traffic.traces import Trace, read_trace

DATA = Path(os.environ.get("SLO_BENCH_DATA", Path(__file__).parents[3] / "shared" / "data"))

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:46.6805900,396,109\r
2023-11-16 18:15:50.9951690,879,55\r
"""


def mooncake(time: object = 0, input_length: object = 1000, output_length: object = 7, **more: object) -> str:
    row = {"timestamp": time, "input_length": input_length, "output_length": output_length, "hash_ids": [4, 9], **more}
    return json.dumps({name: value for name, value in row.items() if value is not None})


def read(tmp_path: Path, text: str) -> Trace:
    file = tmp_path / "some.trace"
    file.write_bytes(text.encode())
    return read_trace(file, "some")


def test_azures_table_is_dates_prompts_and_answers(tmp_path: Path) -> None:
    trace = read(tmp_path, AZURE)
    assert trace.times_s.tolist() == pytest.approx([0.0, 0.0, 4.314579])
    assert trace.input_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert (trace.blocks, trace.name) == (None, "some")


def test_dates_with_a_zone_and_a_file_without_a_last_line_end_are_read(tmp_path: Path) -> None:
    trace = read(tmp_path, "\ufeff" + AZURE.replace("00\r", "00+00:00\r").replace(",374", "+01:00,374").rstrip())
    assert trace.times_s[1] == pytest.approx(3600.0)


def test_mooncakes_lines_count_milliseconds_and_name_their_blocks(tmp_path: Path) -> None:
    trace = read(tmp_path, "\n".join([mooncake(500), mooncake(500), mooncake(2000, 512, hash_ids=[4])]))
    assert trace.times_s.tolist() == [0.0, 0.0, 1.5]
    assert (trace.blocks, trace.block_tokens) == (((4, 9), (4, 9), (4,)), 512)


def test_vllms_timed_trace_counts_seconds_in_blocks_of_16(tmp_path: Path) -> None:
    trace = read(tmp_path, mooncake(0.5, 20) + "\n" + mooncake(2, 17) + "\n\n")
    assert trace.times_s.tolist() == [0.0, 1.5]
    assert (trace.blocks, trace.block_tokens) == (((4, 9), (4, 9)), 16)


def test_lines_without_hashes_are_lengths_and_times_in_seconds(tmp_path: Path) -> None:
    trace = read(tmp_path, mooncake(1, hash_ids=None) + "\n" + mooncake(3, hash_ids=None))
    assert (trace.blocks, trace.times_s.tolist()) == (None, [0.0, 2.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (AZURE.splitlines()[0], "holds no requests"),
        ("time,in,out\n1,2,3\n", "line 1: neither JSON nor the columns TIMESTAMP,ContextTokens,GeneratedTokens"),
        ("[1, 2]\n", "line 1: neither JSON nor the columns"),
        (AZURE + "yesterday,5,5\n", "line 5: TIMESTAMP 'yesterday' is not a date with a time"),
        (AZURE[:-9], "line 4: 1 columns, not 3"),
        (AZURE + "2023-11-16 18:16,,5\n", "line 5: ContextTokens '' is not a number of tokens"),
        (AZURE + "2023-11-16 18:16,5,-5\n", "line 5: GeneratedTokens '-5'"),
        (AZURE + "2023-11-16 18:16,5,0\n", "line 5: GeneratedTokens 0"),
        (AZURE + "2023-11-16 18:16,1e3,5\n", "line 5: ContextTokens '1e3'"),
        (AZURE + "2023-11-16 18:16,99999999999999999999,5\n", "line 5: ContextTokens '9999"),
        (AZURE + "2023-11-16 18:15:50,5,5\n", "line 5: its time is before that of the line above"),
        (AZURE + "NaN,5,5\n", "line 5: TIMESTAMP 'NaN' is not a date with a time"),
        (AZURE + "\n" + AZURE, "line 5: 0 columns, not 3"),
        (mooncake() + "\n" + mooncake()[:30], "line 2: not JSON, or half a line"),
        (mooncake() + "\n" + "[" * 100_000, "line 2: not JSON, or half a line"),
        (mooncake() + "\n[1]\n", "line 2: not a JSON object"),
        (mooncake() + "\n\n" + mooncake(), "line 2: not JSON, or half a line"),
        (mooncake(None), "line 1: timestamp (missing) is not a time"),
        (mooncake(-1), "line 1: timestamp -1 is not a time"),
        (mooncake(float("nan")), "line 1: timestamp nan is not a time"),
        (mooncake(float("inf")), "line 1: timestamp inf is not a time"),
        (mooncake(10**30), "line 1: timestamp 1000000"),
        (mooncake("5"), "line 1: timestamp '5' is not a time"),
        (mooncake(True), "line 1: timestamp True is not a time"),
        (mooncake(5) + "\n" + mooncake(4), "line 2: its time is before that of the line above"),
        (mooncake(input_length=None), "line 1: input_length (missing) is not a number of tokens"),
        (mooncake(input_length=10.5), "line 1: input_length 10.5"),
        (mooncake(output_length=0), "line 1: output_length 0"),
        (mooncake(output_length=10**9), "line 1: output_length 1000000000"),
        (mooncake(hash_ids="4"), "line 1: hash_ids is not a list of whole numbers"),
        (mooncake(hash_ids=[4, None]), "line 1: hash_ids is not a list of whole numbers"),
        (mooncake() + "\n" + mooncake(hash_ids=None), "line 2: no hash_ids, while line 1 has them"),
        (mooncake() + "\n" + mooncake(input_length=1025), "line 2: 2 hash_ids do not fit 1025 tokens in blocks of 512"),
    ],
)
def test_a_bad_file_is_one_line_that_says_where_and_what(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    message = str(refused.value)
    assert said in message
    assert message.startswith(str(tmp_path / "some.trace"))
    assert "\n" not in message
    assert len(message) < len(str(tmp_path)) + 200


def test_what_is_no_text_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_trace(tmp_path / "missing", "missing")
    with pytest.raises(UsageError, match="Is a directory"):
        read_trace(tmp_path, "folder")
    (tmp_path / "binary").write_bytes(b"\x1f\x8b\x08\xff")
    with pytest.raises(UsageError, match="is not a text file"):
        read_trace(tmp_path / "binary", "binary")


@settings(deadline=None, max_examples=50)
@given(cut=st.integers(0, 250), text=st.sampled_from([AZURE, "\n".join([mooncake(), mooncake(7), mooncake(9)])]))
def test_a_file_that_ends_anywhere_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "cut.trace"
    file.write_text(text[:cut])
    try:
        trace = read_trace(file, "cut")
    except UsageError:
        return
    assert (np.diff(trace.times_s) >= 0).all()
    assert len(trace.times_s) == len(trace.input_tokens) == len(trace.output_tokens)


def test_the_period_is_the_span_and_one_mean_gap() -> None:
    trace = Trace("t", np.array([0.0, 1.0, 4.0]), np.ones(3, dtype=np.int64), np.ones(3, dtype=np.int64))
    assert (trace.period_s, trace.mean_rate_rps) == (6.0, 0.5)


def test_every_moment_of_the_period_is_as_likely_a_start() -> None:
    trace = Trace("t", np.array([0.0, 1.0, 4.0]), np.ones(3, dtype=np.int64), np.ones(3, dtype=np.int64))
    starts = [trace.start(seed, 0) for seed in range(1000)]
    assert np.mean([moment_s for moment_s, _ in starts]) == pytest.approx(3.0, abs=4 * 6 / math.sqrt(12 * 1000))
    shares = np.bincount([row for _, row in starts], minlength=4) / 1000
    assert shares == pytest.approx([0.0, 1 / 6, 3 / 6, 2 / 6], abs=4 * math.sqrt(0.25 / 1000))


@pytest.mark.parametrize(
    ("file", "rows", "hours", "mean_in", "mean_out"),
    [
        ("azure_llm_conv_2023.csv", 19_366, 0.973, 1155, 211),
        ("azure_llm_code_2023.csv", 8_819, 0.955, 2048, 28),
        ("mooncake_conversation.jsonl", 12_031, 0.982, 12_035, 343),
    ],
)
def test_the_public_traces_are_what_their_sources_say(
    file: str, rows: int, hours: float, mean_in: float, mean_out: float
) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"{DATA / file} is absent; SLO_BENCH_DATA names the folder")
    trace = read_trace(DATA / file, "public")
    assert len(trace.times_s) == rows
    assert trace.times_s[-1] / 3600 == pytest.approx(hours, abs=0.001)
    assert trace.input_tokens.mean() == pytest.approx(mean_in, abs=0.5)
    assert trace.output_tokens.mean() == pytest.approx(mean_out, abs=0.5)
    assert (trace.blocks is None) == file.startswith("azure")
