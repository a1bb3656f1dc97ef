"""What is sent and when: options name a workload and arrivals, and contradictions are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from slo_bench.config import LoadOptions, ProbeOptions
from traffic.arrivals import POISSON, Constant, Gamma, Replay
from traffic.conversations import Conversations
from traffic.errors import UsageError
from traffic.shared_prefix import SharedPrefix
from traffic.traced import Traced
from traffic.workload import CHAT_MIX, fixed_lengths

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:50,396,109\n"


@pytest.fixture(autouse=True)
def _no_data_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLO_BENCH_DATA", raising=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "mine.csv"
    file.write_text(AZURE)
    return file


def test_the_default_is_chat_mix_at_random() -> None:
    assert LoadOptions().the_workload() is CHAT_MIX
    assert LoadOptions().the_arrivals() is POISSON


def test_fixed_lengths_need_both_lengths() -> None:
    for given in ({"workload": "fixed", "input_tokens": 5}, {"input_tokens": 5, "output_tokens": 5}):
        with pytest.raises(ValidationError, match="--input-tokens and --output-tokens"):
            LoadOptions(**given)
    assert LoadOptions(workload="fixed", input_tokens=5, output_tokens=7).the_workload() == fixed_lengths(5, 7)


def test_a_shared_prefix_goes_before_the_mix_or_one_length() -> None:
    assert LoadOptions(shared_prefix_tokens=500).the_workload() == SharedPrefix(CHAT_MIX, 500)
    with pytest.raises(ValidationError, match="not multi-turn"):
        LoadOptions(shared_prefix_tokens=500, workload="multi-turn")


def test_conversations_take_turns_and_think_time() -> None:
    assert LoadOptions(workload="multi-turn").the_workload() == Conversations(3.0, 8, 5.0)
    given = LoadOptions(workload="multi-turn", turns_mean=2, turns_max=4, think_time=0)
    assert given.the_workload() == Conversations(2.0, 4, 0.0)
    for option in ({"turns_mean": 2}, {"turns_max": 4}, {"think_time": 1}):
        with pytest.raises(ValidationError, match="go with --workload multi-turn"):
            LoadOptions(**option)  # type: ignore[arg-type]


def test_arrivals_are_what_their_name_says() -> None:
    assert LoadOptions(arrivals="constant").the_arrivals() == Constant()
    assert LoadOptions(arrivals="gamma", burstiness=0.5).the_arrivals() == Gamma(0.5)
    for given in ({"arrivals": "gamma"}, {"burstiness": 0.5}):
        with pytest.raises(ValidationError, match="--arrivals gamma goes with --burstiness"):
            LoadOptions(**given)


def test_a_trace_of_ones_own_gives_lengths_times_or_both(trace: Path) -> None:
    lengths = LoadOptions(workload="trace", trace=trace)
    assert (lengths.the_workload().name, lengths.the_arrivals()) == ("mine", POISSON)
    times = LoadOptions(arrivals="trace", trace=trace)
    assert (times.the_workload(), times.the_arrivals().name) == (CHAT_MIX, "arrivals of mine")
    both = LoadOptions(workload="trace", arrivals="trace", trace=trace)
    workload, arrivals = both.the_workload(), both.the_arrivals()
    assert isinstance(workload, Traced)
    assert isinstance(arrivals, Replay)
    assert workload.trace is arrivals.trace


def test_a_public_trace_is_read_from_the_folder_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "azure_llm_conv_2023.csv").write_text(AZURE)
    monkeypatch.setenv("SLO_BENCH_DATA", str(tmp_path))
    workload = LoadOptions(workload="azure-conv", max_input_tokens=380).the_workload()
    assert (workload.name, workload.max_input_tokens, workload.max_output_tokens) == ("azure-conv-cut-380", 380, 109)


def test_a_public_trace_may_be_a_file_that_is_named(trace: Path) -> None:
    assert LoadOptions(workload="azure-code", trace=trace).the_workload().name == "azure-code"


@pytest.mark.parametrize(
    ("workload", "source"), [("azure-code", "github.com/Azure/AzurePublicDataset"), ("mooncake", "kvcache-ai/Mooncake")]
)
def test_a_public_trace_that_is_nowhere_is_an_error_that_says_where_to_get_it(
    workload: str, source: str, tmp_path: Path
) -> None:
    for data in (None, tmp_path):
        with pytest.raises(UsageError, match=source) as refused:
            LoadOptions(workload=workload, data=data).the_workload()
        assert "--data DIR (SLO_BENCH_DATA)" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_trace_that_is_needed_is_asked_for_and_one_that_is_not_is_refused(trace: Path) -> None:
    for given in ({"workload": "trace"}, {"arrivals": "trace"}):
        with pytest.raises(ValidationError, match="--trace FILE"):
            LoadOptions(**given)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="--trace goes with"):
        LoadOptions(trace=trace)
    with pytest.raises(ValidationError, match="--max-input-tokens goes with"):
        LoadOptions(max_input_tokens=100)


def test_a_probe_may_go_at_a_factor_of_the_traces_own_rate(trace: Path) -> None:
    options = ProbeOptions(arrivals="trace", trace=trace, rate_scale=3.0)
    assert options.the_rate_rps() == pytest.approx(3 * 2 / 8)
    assert ProbeOptions(request_rate=2.5).the_rate_rps() == 2.5
    assert ProbeOptions(concurrency=2).the_rate_rps() is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either"),
        ({"request_rate": 1.0, "concurrency": 2}, "either"),
        ({"request_rate": 1.0, "rate_scale": 2.0}, "either"),
        ({"rate_scale": 2.0}, "--rate-scale goes with --arrivals trace"),
        ({"concurrency": 2, "arrivals": "constant"}, "--arrivals would change nothing"),
        ({"concurrency": 2, "workload": "multi-turn"}, "closed loop within conversations"),
    ],
)
def test_a_probe_has_one_rate_or_one_concurrency(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ProbeOptions(**given)  # type: ignore[arg-type]
