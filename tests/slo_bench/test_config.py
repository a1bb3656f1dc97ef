"""What the options of each command resolve to."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import ValidationError

from gates.capacity import Strategy
from slo_bench.config import LoadOptions, ProbeOptions, SweepOptions
from traffic.errors import UsageError


def test_no_engine_is_a_usage_error_that_names_the_simulated_one() -> None:
    with pytest.raises(UsageError, match="--engine simulated"):
        SweepOptions().engine_kind()


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"engine": "simulated"}, "simulated"),
        ({"base_url": "http://127.0.0.1:1"}, "attached"),
        ({"base_url": "http://127.0.0.1:1", "model": "m"}, "attached"),
        ({"model": "m"}, "vllm"),
        ({"model": "m", "engine": "vllm"}, "vllm"),
    ],
)
def test_the_engine_follows_from_what_is_given(given: dict[str, str], kind: str) -> None:
    assert LoadOptions(**given).engine_kind() == kind  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {"engine": "simulated", "model": "m"},
        {"engine": "simulated", "base_url": "http://x"},
        {"engine": "attached"},
        {"engine": "vllm", "base_url": "http://x"},
    ],
)
def test_contradictions_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        LoadOptions(**given).engine_kind()  # type: ignore[arg-type]


def test_the_default_slo_is_p99_ttft_2_s_and_p99_tpot_50_ms() -> None:
    assert [str(each) for each in LoadOptions().objectives()] == ["ttft:p99:2000", "tpot:p99:50"]


def test_a_short_form_replaces_one_default_and_keeps_the_other() -> None:
    assert [str(each) for each in LoadOptions(tpot_p99_ms=30).objectives()] == ["ttft:p99:2000", "tpot:p99:30"]


def test_given_objectives_stand_alone() -> None:
    assert [str(each) for each in LoadOptions(slo=["e2e:p95:9000"]).objectives()] == ["e2e:p95:9000"]


def test_two_limits_on_one_metric_are_refused() -> None:
    with pytest.raises(UsageError, match="same metric"):
        LoadOptions(slo=["ttft:p99:1000"], ttft_p99_ms=500).objectives()


@pytest.mark.parametrize("label", ["a/b", "", "..", "-x", "a b", "ü", "x" * 101])
def test_a_label_is_one_plain_name(label: str) -> None:
    with pytest.raises(ValidationError, match="label"):
        SweepOptions(label=label)


def test_load_workers_go_with_an_open_loop_on_a_server() -> None:
    assert SweepOptions(model="m", load_workers=4).load_workers == 4
    assert SweepOptions(engine="simulated").load_workers == 1
    with pytest.raises(ValidationError, match="simulated engine lives in one process"):
        SweepOptions(engine="simulated", load_workers=2)
    with pytest.raises(ValidationError, match="goes with an open loop"):
        ProbeOptions(model="m", concurrency=8, load_workers=2)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        SweepOptions(model="m", load_workers=0)


def test_the_smoke_mode_judges_p90_and_grows_faster() -> None:
    options = SweepOptions(engine="simulated", mode="smoke")
    slo = options.the_mode().slo(options.objectives())
    assert {each.percentile for each in slo} == {Decimal(90)}
    assert options.search().growth == 1.5
    assert SweepOptions(mode="smoke", sweep_growth=2.0).search().growth == 2.0


def test_options_override_the_mode() -> None:
    mode = SweepOptions(duration=30, ramp=0, resolution=0.1, repeats=1).the_mode()
    assert (mode.duration_s, mode.ramp_s, mode.resolution_share, mode.repeats) == (30, 0, 0.1, 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (SweepOptions(), Strategy.PUBLISHED),
        (SweepOptions(mode="full"), Strategy.ECONOMICAL),
        (SweepOptions(strategy="economical"), Strategy.ECONOMICAL),
        (SweepOptions(mode="full", strategy="published"), Strategy.PUBLISHED),
    ],
)
def test_a_given_strategy_overrides_that_of_the_mode(options: SweepOptions, expected: Strategy) -> None:
    assert options.the_mode().strategy is expected


def test_headers_and_extra_body_are_checked() -> None:
    with pytest.raises(ValidationError, match="NAME: VALUE"):
        LoadOptions(header=["no colon"])
    with pytest.raises(ValidationError, match="NAME: VALUE"):
        LoadOptions(header=["X-A: b\r\nX-Evil: c"])
    with pytest.raises(ValidationError, match="not JSON"):
        LoadOptions(extra_body="{")
    with pytest.raises(ValidationError, match="JSON object"):
        LoadOptions(extra_body="[1]")


@pytest.mark.parametrize(
    "given", [{"max_num_seqs": 4}, {"enable_prefix_caching": False}, {"vllm_image": "i"}, {"vllm_arg": ["--x"]}]
)
def test_what_only_a_server_of_ours_can_take_is_refused_elsewhere(given: dict[str, object]) -> None:
    for engine in ({"engine": "simulated"}, {"base_url": "http://127.0.0.1:1"}):
        with pytest.raises(UsageError, match="would change nothing"):
            LoadOptions(**engine, **given).engine_kind()  # type: ignore[arg-type]
    assert LoadOptions(model="m", **given).engine_kind() == "vllm"  # type: ignore[arg-type]


def test_there_is_one_way_to_start_a_server() -> None:
    with pytest.raises(UsageError, match="one of --vllm-image, --server-command"):
        LoadOptions(model="m", vllm_image="i", server_command="serve {model} {port}").engine_kind()
    assert LoadOptions(server_command="serve {model} {port}").engine_kind() == "vllm"
