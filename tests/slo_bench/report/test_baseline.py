"""A session against an earlier one: what may be compared at all, and what is said of a bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gates.regression import Verdict
from reports.arms import read_experiment
from reports.summary import summary_of
from reports.summary_document import SummaryDocument
from slo_bench.report.baseline import Answer, against, lines

LEVERS = Path(__file__).resolve().parents[2] / "samples" / "v1" / "levers"
DRIFT = 1.004


@pytest.fixture
def before() -> SummaryDocument:
    return session(1.0)


def session(slower: float, **changes: Any) -> SummaryDocument:
    """The sample as if it were a measurement: equal arms 0.4 % apart, all latencies times `slower`."""
    summary = summary_of(read_experiment(LEVERS))
    base = summary.arms[0]
    arms = []
    for label, factor in (("default", slower), ("default-2", slower * DRIFT)):
        windows = [
            each.model_copy(
                update={
                    "tpot_mean_s": (each.tpot_mean_s or 0) * factor,
                    "ttft_mean_s": (each.ttft_mean_s or 0) * factor,
                }
            )
            for each in base.windows
        ]
        arms.append(base.model_copy(update={"label": label, "windows": windows, "is_warm": True}))
    return summary.model_copy(update={"is_smoke": False, "arms": [arms[0], summary.arms[1], arms[1]], **changes})


def answer(before: SummaryDocument, now: SummaryDocument, bound_share: float = 0.02) -> Answer:
    return against(before, now, bound_share=bound_share)


def test_the_same_again_is_no_regression(before: SummaryDocument) -> None:
    found = answer(before, session(1.0))
    assert (found.judgement.verdict, found.exit_code) == (Verdict.NONE, 0)
    assert next(lines(found)) == "no regression beyond 2.0 %"


def test_ten_per_cent_slower_is_a_regression_with_its_interval(before: SummaryDocument) -> None:
    found = answer(before, session(1.1))
    assert (found.judgement.verdict, found.exit_code) == (Verdict.REGRESSION, 1)
    first, tpot, *_ = lines(found)
    assert first == "regression of more than 2.0 % proven"
    assert tpot == "  mean TPOT at 9.798 req/s: +10.0 % (+8.7 % to +11.3 %): regression"


def test_two_per_cent_slower_leaves_a_bound_of_two_per_cent_open(before: SummaryDocument) -> None:
    found = answer(before, session(1.02))
    assert (found.judgement.verdict, found.exit_code) == (Verdict.INCONCLUSIVE, 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drift_arm": None}, "this session has no drift arm"),
        ({"is_smoke": True}, "this session is a smoke run, which is no measurement"),
        ({"kind": "compare"}, "this session is one comparison of two arms"),
        ({"engine": "vllm"}, "engine was simulated, is vllm"),
        ({"gpus": ["NVIDIA H200"]}, "GPU was not set, is NVIDIA H200"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"load": {"workload": "fixed"}}, "workload was chat-mix, is fixed"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_is_not_the_same_is_not_comparable(before: SummaryDocument, changes: dict[str, Any], said: str) -> None:
    found = answer(before, session(1.1, **changes))
    assert (found.judgement.verdict, found.exit_code) == (Verdict.NOT_COMPARABLE, 5)
    assert said in "; ".join(found.reasons)
    assert next(lines(found)).startswith("not comparable: ")


def test_a_baseline_without_a_drift_arm_is_not_comparable_either() -> None:
    found = answer(session(1.0, drift_arm=None), session(1.1))
    assert found.reasons == ("the baseline has no drift arm, so what its starts differ by is not known",)


def test_another_model_or_an_arm_that_did_not_end_is_not_comparable(before: SummaryDocument) -> None:
    now = session(1.0)
    other = [arm.model_copy(update={"model": "another"}) for arm in now.arms]
    assert answer(before, now.model_copy(update={"arms": other})).reasons == ("model was simulated-moe, is another",)
    cut = [now.arms[0].model_copy(update={"status": "interrupted"}), *now.arms[1:]]
    assert answer(before, now.model_copy(update={"arms": cut})).reasons == (
        "the arm default of this session is interrupted",
    )


def test_another_version_is_what_is_asked_about_so_it_is_printed(before: SummaryDocument) -> None:
    now = session(1.0)
    arms = [arm.model_copy(update={"facts": {**arm.facts, "version": "0.33.0"}}) for arm in now.arms]
    found = answer(before, now.model_copy(update={"arms": arms}))
    assert found.judgement.verdict is Verdict.NONE
    assert "  version: was not said, is 0.33.0" in lines(found)


def test_sessions_with_other_anchor_rates_are_compared_where_both_have_windows(before: SummaryDocument) -> None:
    found = answer(before, session(1.1, anchor_rps=8.5))
    assert found.rate_rps == 8.0
    assert found.judgement.verdict is Verdict.REGRESSION
    assert any("the anchor rate was 9.798, is 8.50 req/s" in line for line in lines(found))


def test_without_a_common_rate_latencies_are_not_measured(before: SummaryDocument) -> None:
    now = session(1.1)
    arms = [arm.model_copy(update={"windows": []}) for arm in now.arms]
    found = answer(before, now.model_copy(update={"arms": arms}))
    assert (found.rate_rps, found.judgement.verdict) == (None, Verdict.INCONCLUSIVE)
    assert "  mean TPOT: not measured" in lines(found)


def test_another_card_of_the_same_model_and_a_cold_server_are_told(before: SummaryDocument) -> None:
    gpus: dict[str, Any] = {"gpus": ["NVIDIA H200"], "gpu_uuids": ["GPU-1"]}
    old, new = before.model_copy(update=gpus), session(1.0, **{**gpus, "gpu_uuids": ["GPU-2"]})
    cold = [new.arms[0].model_copy(update={"is_warm": False}), *new.arms[1:]]
    text = "\n".join(lines(answer(old, new.model_copy(update={"arms": cold}))))
    assert "note: other cards of the same model" in text
    assert "note: default of this session not warm" in text


def test_an_attached_server_whose_gpu_nobody_saw_is_told(before: SummaryDocument) -> None:
    sessions = [each.model_copy(update={"engine": "attached"}) for each in (before, session(1.0))]
    assert any("no GPU was seen from here" in line for line in lines(answer(*sessions)))
