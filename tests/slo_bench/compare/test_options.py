from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slo_bench.compare.options import CompareOptions, changed
from slo_bench.config import LoadOptions
from slo_bench.options import load
from traffic.errors import UsageError

A, B = "http://127.0.0.1:8001", "http://127.0.0.1:8002"


def simulated(*changes: str, **more: Any) -> CompareOptions:
    return CompareOptions(engine="simulated", request_rate=8.0, change=list(changes), **more)


def attached(*urls: str, **more: Any) -> CompareOptions:
    return CompareOptions(base_url=list(urls), request_rate=8.0, **more)


def vllm(*changes: str, **more: Any) -> CompareOptions:
    return CompareOptions(model="m", request_rate=8.0, change=list(changes), **more)


def test_a_setting_of_the_simulated_engine_may_be_named_alone_or_in_full() -> None:
    for change in ("step_time_factor=0.97", "step-time-factor=0.97", "simulated=step_time_factor=0.97"):
        a, b = simulated(change).arms()
        assert (a.simulated, b.simulated) == ([], ["step_time_factor=0.97"])
    assert simulated("max_num_seqs=64").arms()[1].simulated == ["max_num_seqs=64"]  # vLLM has a lever of this name


def test_a_change_adds_to_what_both_arms_have() -> None:
    a, b = simulated("step_time_factor=0.97", simulated=["max_num_seqs=64"]).arms()
    assert (a.simulated, b.simulated) == (["max_num_seqs=64"], ["max_num_seqs=64", "step_time_factor=0.97"])


def test_every_kind_of_engine_option_can_be_changed() -> None:
    changes = [
        "kv-cache-dtype=fp8",
        "max_num_seqs=64",
        "enable_prefix_caching=false",
        "tuned_moe_dir=tuned",
        "vllm_arg=--seed=1",
        "env.VLLM_X=a=b",
        "vllm_python=/x/python",
    ]
    a, b = vllm(*changes, server_env=["VLLM_Y=1"]).arms()
    assert (b.kv_cache_dtype, b.max_num_seqs, b.enable_prefix_caching) == ("fp8", 64, False)
    assert (b.tuned_moe_dir, b.vllm_python, b.vllm_arg) == (Path("tuned"), Path("/x/python"), ["--seed=1"])
    assert b.server_env == ["VLLM_Y=1", "VLLM_X=a=b"]
    assert a.server_env == ["VLLM_Y=1"]
    assert a.kv_cache_dtype is None


def test_an_empty_value_is_the_servers_default() -> None:
    a, b = vllm("kv_cache_dtype=", "vllm_arg=", kv_cache_dtype="fp8", vllm_arg=["--x"]).arms()
    assert (a.kv_cache_dtype, b.kv_cache_dtype, b.vllm_arg) == ("fp8", None, [])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("max_num_sequences=4", "is max_num_seqs or max_num_batched_tokens meant?"),
        ("qwertyuiop=1", "a variable of the server is env.NAME"),
        ("max_num_seqs", "give NAME=VALUE"),
        ("max_num_seqs=many", "valid integer"),
        ("seed=1", "the load is the same for both arms"),
        ("workload=fixed", "the load is the same for both arms"),
        ("engine=simulated", "the same kind of engine"),
        ("base_url=http://x", "give --base-url twice"),
        ("api_key=secret", "a key must not be"),
        ("header=X: y", "may hold a key"),
        ("env.HF_TOKEN=abc", "export it"),
        ("server_env=HF_TOKEN=abc", "export it"),
        ("env.my-name=1", "NAME=VALUE"),
        ("step_time_factor=1", "no engine has an option"),
    ],
)
def test_a_change_that_cannot_be_made_is_told_without_its_secret(change: str, word: str) -> None:
    with pytest.raises(UsageError) as refused:
        vllm(change).arms()
    assert word in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "abc" not in str(refused.value)


def test_arms_in_which_nothing_differs_are_refused_unless_that_is_meant() -> None:
    with pytest.raises(UsageError, match="nothing differs between the arms"):
        simulated().arms()
    with pytest.raises(UsageError, match=r"step_time_factor=1\.0 changes nothing"):
        simulated("step_time_factor=1.0").arms()
    with pytest.raises(UsageError, match="changes nothing"):
        vllm("max_num_seqs=8", max_num_seqs=8).arms()
    a, b = simulated(same_ok=True).arms()
    assert a == b


def test_a_change_that_the_engine_cannot_take_is_refused() -> None:
    with pytest.raises(UsageError, match="--kv-cache-dtype would change nothing"):
        simulated("kv_cache_dtype=fp8").arms()


@pytest.mark.parametrize(
    "other", [A, A + "/", A + "/v1", A + "/v1/", "http://localhost:8001", "127.0.0.1:8001", "HTTP://LOCALHOST:8001/v1"]
)
def test_one_server_under_two_addresses_is_one_server(other: str) -> None:
    with pytest.raises(UsageError, match="both arms are the server"):
        attached(A, other).arms()
    a, b = attached(A, other, same_ok=True).arms()
    assert a.text_salt != b.text_salt


def test_two_servers_get_the_same_text() -> None:
    a, b = attached(A, B).arms()
    assert (a.base_url, b.base_url) == (A, B)
    assert a.text_salt == b.text_salt is not None
    assert attached(A, B, text_salt=7).arms()[1].text_salt == 7


def test_one_server_may_be_asked_in_two_ways() -> None:
    a, b = attached(A, change=['extra_body={"top_k": 1}']).arms()
    assert (a.base_url, b.base_url, b.extra_body) == (A, A, '{"top_k": 1}')
    assert a.text_salt != b.text_salt


def test_counts_of_two_servers_are_named_for_each() -> None:
    with pytest.raises(UsageError, match="--metrics-url is arm A's"):
        attached(A, B, metrics_url=["http://m/metrics"]).arms()
    a, b = attached(A, B, metrics_url=["http://m"], change=["metrics_url=http://n"]).arms()
    assert (a.metrics_url, b.metrics_url) == (["http://m"], ["http://n"])


def test_three_servers_and_different_models_are_refused() -> None:
    with pytest.raises(UsageError, match="give --base-url twice at most"):
        attached(A, B, "http://c").arms()
    with pytest.raises(UsageError, match="different models, m and n"):
        vllm("model=n").arms()
    assert vllm("model=n", allow_different_models=True).arms()[1].model == "n"


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--request-rate", "8", "--labels", "x,x"], "the same label"),
        (["--request-rate", "8", "--labels", "x"], "two names"),
        (["--request-rate", "8", "--labels", "a/b,c"], "two names"),
        (["--request-rate", "8", "--label", "a/b"], "a label is one name"),
        (["--request-rate", "8", "--concurrency", "4"], "either"),
        ([], "either"),
        (["--concurrency", "4", "--arrivals", "constant"], "keeps requests in flight"),
        (["--request-rate", "8", "--until-resolution", "1"], "like 1%"),
        (["--request-rate", "8", "--until-resolution", "x%"], "like 1%"),
        (["--request-rate", "8", "--until-resolution=-1%"], "like 1%"),
        (["--request-rate", "8", "--order", "aabb"], "'abba' or 'random'"),
        (["--request-rate", "8", "--placement", "moon"], "coresident"),
        (["--request-rate", "0"], "greater than 0"),
        (["--request-rate", "8", "--blocks", "0"], "greater than or equal to 1"),
    ],
)
def test_bad_options_are_told_in_one_line(argv: list[str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        load(
            CompareOptions,
            ["--engine", "simulated", *argv],
            prog="slo-bench compare",
            description="",
            command="compare",
        )


def test_percentages_are_shares() -> None:
    assert simulated(until_resolution="1%").until_resolution == pytest.approx(0.01)
    assert simulated(start_offset="0.5 %").start_offset == pytest.approx(0.005)
    assert simulated(until_resolution=0.02).until_resolution == pytest.approx(0.02)


def test_options_of_the_environment_do_not_leak_into_an_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    options = simulated("step_time_factor=0.9")
    monkeypatch.setenv("SLO_BENCH_BASE_URL", f"{A} {B}")
    assert options.arms()[0].base_url is None
    assert options.engine_kind() == "simulated"


def test_changed_options_are_checked_like_given_ones() -> None:
    with pytest.raises(UsageError, match="gpu_memory_utilization"):
        changed(LoadOptions(model="m"), ["gpu_memory_utilization=1.5"])
