"""`--run "KEY=VALUE ..."`: what would be refused on the machine is refused here, where it costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from slo_bench.renting.run_text import TAKEN, read_runs
from traffic.errors import UsageError

MODEL = "MODEL=Qwen/Qwen3-30B-A3B-FP8"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(*texts: str, max_minutes: float = 300) -> str:
    with pytest.raises(UsageError) as refused:
        read_runs(texts, max_minutes, 4)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_published_runs_are_read_in_their_order() -> None:
    texts = [
        f"{MODEL} MIN_DRIVER=580 MODE=quick SWEEP_START=8 SWEEP_GROWTH=1.25 LABEL=moe-default",
        f"{MODEL} MIN_DRIVER=580 TUNE_MOE=1 TUNE_MINUTES=150 LABEL=moe-tuning",
        f"{MODEL} MODE=quick LABEL=moe-tuned TUNED_MOE_DIR=~/moe-tuned",
    ]
    sweep, search, tuned = read_runs(texts, 300, 4)
    assert [run.label for run in (sweep, search, tuned)] == ["moe-default", "moe-tuning", "moe-tuned"]
    assert [run.tune_minutes for run in (sweep, search, tuned)] == [0, 150, 0]
    assert [run.is_tuning for run in (sweep, search, tuned)] == [False, True, False]
    assert tuned.values["TUNED_MOE_DIR"] == "~/moe-tuned"
    assert tuned.where == "--run 3"
    assert sweep.model == "Qwen/Qwen3-30B-A3B-FP8"


def test_a_model_in_a_folder_is_not_fetched_and_a_revision_is_found_in_either_form() -> None:
    texts = [
        "MODEL=/models/a LABEL=a",
        f"{MODEL} LABEL=b VLLM_ARGS='--revision abc --enforce-eager'",
        f"{MODEL} LABEL=c 'VLLM_ARGS=--revision=def'",
    ]
    assert [(run.model is None, run.revision) for run in read_runs(texts, 300, 4)] == [
        (True, ""),
        (False, "abc"),
        (False, "def"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{MODEL} LABEL='a", "--run 1: no closing quotation: "),
        (f"{MODEL} LABEL=a quick", "--run 1: 'quick' is not KEY=VALUE"),
        (f"{MODEL} LABEL=a 1X=2", "--run 1: '1X=2' is not KEY=VALUE"),
        (f"{MODEL} LABEL=a MODE=quick MODE=full", "--run 1: MODE stands there twice"),
        (MODEL, "--run 1: it has no LABEL"),
        (f"{MODEL} LABEL=", "--run 1: it has no LABEL"),
        (f"{MODEL} LABEL=../a", "--run 1: LABEL=../a is no name of a result folder"),
        (f"{MODEL} LABEL=model-1", "--run 1: LABEL=model-1 is no name of a result folder"),
        (f"{MODEL} LABEL=a HF_TOKEN=hf_x", "--run 1: HF_TOKEN looks like a secret"),
        (f"{MODEL} LABEL=a RUNS_DIR=x", "--run 1: RUNS_DIR is the session's own business"),
        (f"{MODEL} LABEL=a RESUME=1", "--run 1: RESUME is the session's own business"),
        ("PLAN=plan.toml LABEL=a", "--run 1: PLAN is the session's own business; see --plan"),
        (f"{MODEL} LABEL=a VLLM_VERSION=newest", "--run 1: VLLM_VERSION=newest is no version; give it like 0.31.0"),
        (f"{MODEL} LABEL=a VLLM_VERSION='0.31; rm -r /'", "--run 1: VLLM_VERSION=0.31; rm -r / is no version"),
        (f"{MODEL} LABEL=a VLLM_VERSION=", "--run 1: VLLM_VERSION= is no version"),
        (f"{MODEL} LABEL=a SWEEP_START=x", "--run 1: SWEEP_START: "),
        (f"{MODEL} LABEL=a TUNE_MOE=yes", "--run 1: TUNE_MOE: "),
        (f"{MODEL} LABEL=a TUNE_MINUTES=5", "--run 1: TUNE_MINUTES would change nothing"),
        (f"{MODEL} LABEL=a TUNE_MOE=1 TUNE_MINUTES=soon", "--run 1: TUNE_MINUTES: "),
        (f"{MODEL} LABEL=a MIN_DRIVER=abc", "--run 1: MIN_DRIVER: "),
        (f"{MODEL} LABEL=a TUNE_MOE=1 MIN_DRIVER=abc", "--run 1: MIN_DRIVER: "),
        ("LABEL=a", "--run 1: MODEL: "),
    ],
)
def test_a_mistake_is_one_line_that_begins_with_its_place(text: str, said: str) -> None:
    found = refusal(text)
    assert found.startswith(said)
    assert "--help" not in found


def test_a_secret_is_not_said_again() -> None:
    assert "hf_secret" not in refusal(f"{MODEL} LABEL=a HF_TOKEN=hf_secret")


@pytest.mark.parametrize("label", sorted(TAKEN))
def test_a_file_of_the_session_is_no_label(label: str) -> None:
    for each in (label, label.upper()):
        assert "is no name of a result folder" in refusal(f"{MODEL} LABEL={each}")


def test_two_runs_with_one_label_are_refused_whatever_their_case() -> None:
    said = refusal(f"{MODEL} LABEL=a", f"{MODEL} LABEL=b", f"{MODEL} LABEL=A")
    assert said == "--run 3: LABEL=A is that of --run 1 too: results need two"


def test_searches_that_do_not_fit_in_the_session_are_refused_together() -> None:
    texts = [f"{MODEL} TUNE_MOE=1 TUNE_MINUTES=30 LABEL={label}" for label in ("one", "two")]
    assert len(read_runs(texts, 64, 4)) == 2
    assert refusal(*texts, max_minutes=63) == (
        "TUNE_MINUTES (one 30, two 30) do not fit in --max-minutes 63: raise it, or tune less"
    )
