"""What the gate's options take, and what they mean together with an engine and a mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_bench.accuracy.after_sweep import gate_line, is_gated, sweep_gate
from slo_bench.accuracy.command import GateOptions
from slo_bench.accuracy.options import has_random_weights
from slo_bench.config import SweepOptions
from slo_bench.engine_options import EngineOptions
from slo_bench.options import load
from traffic.errors import UsageError

URL = "http://127.0.0.1:9"


def told(*words: str) -> GateOptions:
    return load(GateOptions, list(words), prog="slo-bench gate", description="", command="gate")


@pytest.mark.parametrize(("words", "count"), [((), 50), (("--items", "200"), 200), (("--items", "all"), None)])
def test_fifty_items_are_asked_unless_told_otherwise(words: tuple[str, ...], count: int | None) -> None:
    assert told(*words).item_count() == count


@pytest.mark.parametrize(
    "words",
    [
        ("--items", "0"),
        ("--items", "some"),
        ("--accuracy-floor", "90"),
        ("--accuracy-floor", "0"),
        ("--concurrency", "0"),
        ("--token-budget", "0"),
        ("--label", "a/b"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=words[0]):
        told(*words)


@pytest.mark.parametrize(
    ("options", "is_random"),
    [
        ({"model": "m", "vllm_arg": ["--load-format", "dummy"]}, True),
        ({"model": "m", "vllm_arg": ["--load-format=dummy"]}, True),
        ({"model": "m", "vllm_arg": ["--load_format", "dummy"]}, True),
        ({"model": "m", "server_command": "serve {model} --port {port} --load-format dummy"}, True),
        ({"model": "dummy", "vllm_arg": ["--load-format", "auto"]}, False),
        ({"model": "m"}, False),
    ],
)
def test_weights_that_the_server_makes_up_are_known_by_its_command(options: dict[str, object], is_random: bool) -> None:
    assert has_random_weights(EngineOptions(**options)) is is_random  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"model": "m"}, "GSM8K, 50 items, after the sweep"),
        ({"base_url": URL}, "GSM8K, 50 items"),
        ({"base_url": URL, "mode": "full"}, "GSM8K, all items"),
        ({"base_url": URL, "mode": "full", "items": "200"}, "GSM8K, 200 items"),
        ({"base_url": URL, "mode": "smoke"}, "none in mode smoke"),
        ({"base_url": URL, "mode": "smoke", "gate": "gsm8k"}, "GSM8K, 50 items"),
        ({"base_url": URL, "gate": "none"}, "none, since --gate none"),
        ({"engine": "simulated"}, None),
    ],
)
def test_a_sweep_says_what_its_gate_will_ask(options: dict[str, object], line: str | None) -> None:
    found = gate_line(SweepOptions(**options))  # type: ignore[arg-type]
    assert (found is None) if line is None else (found is not None and line in found)


def test_the_simulated_engine_is_gated_only_where_it_knows_answers(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "Q?", "answer": "#### 1"}\n', encoding="utf-8")
    assert not is_gated(SweepOptions(engine="simulated"))
    assert is_gated(SweepOptions(engine="simulated", simulated=[f"answers={rows}"]))
    with pytest.raises(UsageError, match="answers no questions; --simulated answers=FILE"):
        is_gated(SweepOptions(engine="simulated", gate="gsm8k"))


def test_items_that_cannot_be_had_are_refused_with_both_ways_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--gsm8k-file .*none does not exist .*--gate none"):
        sweep_gate(SweepOptions(model="m", gsm8k_file=tmp_path / "none"))


def test_random_weights_need_no_items(tmp_path: Path) -> None:
    options = SweepOptions(model="m", vllm_arg=["--load-format", "dummy"], gsm8k_file=tmp_path / "none")
    plan = sweep_gate(options)
    assert plan is not None
    assert str(plan) == "not applicable: random weights"
