"""A chat data set and a tokenizer by options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from slo_bench.config import LoadOptions
from traffic.chat_dataset import ChatDataset
from traffic.errors import UsageError


@pytest.fixture
def talk(tmp_path: Path) -> str:
    path = tmp_path / "talk.jsonl"
    rows = [{"prompt": "word " * (9 * index + 1), "response": "yes " * 30} for index in range(20)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_a_data_set_is_the_workload(talk: str) -> None:
    workload = LoadOptions(dataset=talk).the_workload()
    assert isinstance(workload, ChatDataset)
    assert (workload.name, len(workload.rows)) == ("talk", 20)


def test_answers_and_the_longest_prompt_can_be_set(talk: str) -> None:
    workload = LoadOptions(dataset=talk, output_tokens=7, max_input_tokens=100).the_workload()
    assert workload.max_output_tokens == 7
    assert workload.max_input_tokens <= 100


@pytest.mark.parametrize(
    "more",
    [
        {"workload": "multi-turn"},
        {"length_scale": 0.5},
        {"input_tokens": 100},
        {"workload": "fixed", "input_tokens": 100, "output_tokens": 7},
        {"shared_prefix_tokens": 100},
    ],
)
def test_what_a_data_set_brings_itself_is_refused_beside_it(more: dict[str, object], talk: str) -> None:
    with pytest.raises(ValidationError, match="--dataset brings its own prompts"):
        LoadOptions(dataset=talk, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{"dataset_split": "test"}, {"dataset_config": "main"}])
def test_split_and_variant_need_a_data_set(more: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="go with --dataset"):
        LoadOptions(**more)  # type: ignore[arg-type]


def test_a_tokenizer_is_read_once_and_a_wrong_name_told(tmp_path: Path) -> None:
    assert LoadOptions().the_tokenizer() is None
    with pytest.raises(UsageError, match=r"--tokenizer .*nothing\.json"):
        LoadOptions(tokenizer=str(tmp_path / "nothing.json")).the_tokenizer()
