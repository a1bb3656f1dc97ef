from __future__ import annotations

from typing import Any

from reports.passport import differences
from reports.run_directory import EngineDocument


def engine(version: str | None = "0.32.0", **details: Any) -> EngineDocument:
    return EngineDocument(
        schema_version=1,
        kind="vllm",
        model="m",
        max_model_len=8192,
        version=version,
        takes_forced_length=True,
        start=0,
        details=details,
    )


def told(a: EngineDocument, b: EngineDocument) -> dict[str, tuple[str | None, str | None]]:
    return {row.what: (row.a, row.b) for row in differences(a, b)}


def test_equal_servers_differ_in_nothing() -> None:
    assert told(engine(env={"A": "1"}), engine(env={"A": "1"})) == {}


def test_facts_that_differ_between_any_two_starts_are_left_out() -> None:
    a = engine(pid=1, ready_s=10.0, url="http://127.0.0.1:1", log={"model_load_s": 1.0, "kv_cache_tokens": 100})
    b = engine(pid=2, ready_s=20.0, url="http://127.0.0.1:2", log={"model_load_s": 2.0, "kv_cache_tokens": 100})
    assert told(a, b) == {}


def test_version_driver_and_variables_are_told_by_name() -> None:
    a = engine("0.31.0", gpu_driver="580.95", env={"VLLM_X": "1", "VLLM_Y": "1"}, log={"moe_backends": ["triton"]})
    b = engine("0.32.0", gpu_driver="580.105", env={"VLLM_Y": "2"}, log={"moe_backends": ["triton", "deep_gemm"]})
    assert told(a, b) == {
        "version": ("0.31.0", "0.32.0"),
        "gpu_driver": ("580.95", "580.105"),
        "env.VLLM_X": ("1", None),
        "env.VLLM_Y": ("1", "2"),
        "log.moe_backends": ("triton", "triton, deep_gemm"),
    }


def test_a_command_is_compared_option_by_option_without_its_address() -> None:
    a = engine(command="python -m vllm serve m --port 1 --max-num-seqs 8 --enforce-eager")
    b = engine(command="python -m vllm serve m --port 2 --max-num-seqs=16 --kv-cache-dtype fp8")
    assert told(a, b) == {
        "command --enforce-eager": ("given", None),
        "command --max-num-seqs": ("8", "16"),
        "command --kv-cache-dtype": (None, "fp8"),
    }
    assert told(a, engine(command="python3.12 -m vllm serve m --max-num-seqs 8 --enforce-eager"))["command"]


def test_a_setting_of_the_simulated_engine_that_is_a_time_counts() -> None:
    assert told(engine(expert_read_s=0.012), engine(expert_read_s=0.010)) == {"expert_read_s": ("0.012", "0.01")}
