"""The table on a terminal, and the short Markdown of a CI job: both from the summary alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from reports.arms import read_experiment
from reports.effect_document import EffectDocument
from reports.numbers import ms
from reports.run_directory import read_document
from reports.summary import summary_of, summary_of_comparison
from reports.summary_document import SummaryDocument
from reports.summary_markdown import short_markdown
from reports.terminal import terminal

LEVERS = Path(__file__).resolve().parents[1] / "samples" / "v1" / "levers"


@pytest.fixture
def summary(small: Path) -> SummaryDocument:
    return summary_of(read_experiment(small))


def shown(summary: SummaryDocument, width: int = 80, *, is_verbose: bool = False) -> list[str]:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(terminal(summary, is_verbose=is_verbose))
    return captured.get().splitlines()


def line_from(lines: list[str], start: str) -> str:
    return next(line for line in lines if line.startswith(start)).rstrip()


@pytest.mark.parametrize("width", [80, 120])
def test_every_arm_is_one_line_that_fits(summary: SummaryDocument, width: int) -> None:
    lines = shown(summary, width)
    assert max(map(len, lines)) <= width
    words = ["moe-tuned", "11.50", "3/3,", "11.82:", "0/3", "-2.9", "%", "(-3.1", "to", "-2.7)"]
    assert line_from(lines, "moe-tuned  ").split() == words
    assert line_from(lines, "moe-default-2  ").endswith("+0.7 % (+0.5 to +0.8)")
    base = summary.arms[0].anchor
    assert base is not None
    assert line_from(lines, "moe-default  ").endswith(ms(base.tpot_mean_s))


def test_a_session_is_a_screenful() -> None:
    demo = Path(__file__).resolve().parents[2] / "docs" / "lab-notes" / "0001-demo"
    summary = summary_of(read_experiment(demo))
    assert len(shown(summary, 100)) <= 16
    assert len(shown(summary, 100, is_verbose=True)) > 40


def test_the_finding_stands_beside_drift_and_smallest_visible_effect(summary: SummaryDocument) -> None:
    assert line_from(shown(summary, 200), "mean TPOT, ") == (
        "mean TPOT, 95 % intervals; drift of two equal arms +0.7 % (+0.5 to +0.8): moe-tuned between these two "
        "server instances (visible from 1.0 %)"
    )


def test_what_was_not_measured_is_told_in_one_line(summary: SummaryDocument) -> None:
    assert "not measured: accuracy, power, cost" in shown(summary)
    base = summary.arms[0].model_copy(update={"power_not_measured": "no driver"})
    assert "not measured: accuracy, power (no driver), cost" in shown(summary.model_copy(update={"arms": [base]}))


def test_accuracy_power_and_cost_have_drift_and_verdict_like_latency(scenario: Callable[[str], Path]) -> None:
    lines = shown(summary_of(read_experiment(scenario("real_effect"))), 200)
    assert line_from(lines, "moe-tuned ").endswith("46/50")
    assert line_from(lines, "accuracy: ") == (
        "accuracy: moe-default 46/50 right, gate pass; moe-tuned 0.0 points (-5.3 to +5.3), drift 0.0 points "
        "(-5.3 to +5.3): no change seen, below resolution"
    )
    assert line_from(lines, "power: moe-default 612 W, 0.226 J per output token; moe-tuned -1.1 %").endswith(
        "no change seen, within drift"
    )
    assert line_from(lines, "cost: moe-default $0.34 per million output tokens at an assumed $3.29/hour; ").endswith(
        "no change seen, below resolution"
    )
    assert not any(line.startswith("not measured") for line in lines)


def test_a_failed_gate_is_told_in_row_headline_and_reason(scenario: Callable[[str], Path]) -> None:
    lines = shown(summary_of(read_experiment(scenario("gate_failed"))), 200)
    assert line_from(lines, "moe-tuned ").split()[1:3] == ["not", "claimed"]
    assert line_from(lines, "moe-tuned ").endswith("29/50 fail")
    assert line_from(lines, "SIMULATED. Gate failed: moe-tuned")
    assert "moe-tuned: no result, accuracy gate fail" in lines


def test_what_limited_the_baseline_is_told(summary: SummaryDocument) -> None:
    arm = summary.arms[0].model_copy(update={"cause": "prefill contention"})
    lines = shown(summary.model_copy(update={"arms": [arm]}))
    assert "moe-default was limited by tpot at 11.50 req/s: prefill contention" in lines


def test_the_decision_comes_last_and_cautions_before_it(summary: SummaryDocument) -> None:
    found = summary.model_copy(update={"cautions": ["moe-tuned is not warm."]})
    lines = shown(found, 300)
    assert lines[-2] == "note: moe-tuned is not warm."
    assert lines[-1].startswith("decision on moe-tuned: ")
    assert "\n\nDecision on `moe-tuned`: **" in short_markdown(found)
    assert "- moe-tuned is not warm." in short_markdown(found)


def test_the_details_have_headline_latencies_every_effect_and_the_reason(scenario: Callable[[str], Path]) -> None:
    summary = summary_of(read_experiment(scenario("real_effect")))
    lines = shown(summary, 200, is_verbose=True)
    assert summary.headline in " ".join(" ".join(lines).split())
    anchor = summary.arms[1].anchor
    assert anchor is not None
    values = [ms(each, unit=False) for each in (anchor.ttft_p99_s, anchor.tpot_p99_s, anchor.tpot_mean_s)]
    assert ["moe-tuned", "2.8", "%", "11.31", "(11.12", "to", "11.47)", *values, "tpot"] in map(str.split, lines)
    for effect in summary.effects:
        assert line_from(lines, f"{effect.arm}, {effect.metric}: ").endswith(effect.finding.said)
    assert summary.decision is not None
    assert f"why: {summary.decision.reason}" in lines


def test_a_simulated_run_and_a_smoke_run_are_marked_first() -> None:
    first = shown(summary_of(read_experiment(LEVERS)))[0]
    assert first.startswith("[SIMULATED] [smoke: not a measurement] ")


def test_what_the_arms_differ_by_is_listed() -> None:
    lines = shown(summary_of(read_experiment(LEVERS)), is_verbose=True)
    at = next(number for number, line in enumerate(lines) if line.startswith("in what the arms differ"))
    assert lines[at + 2].split() == ["step_time_factor", "1.0", "0.9", "1.0"]


def test_markup_and_control_characters_in_a_label_are_text(summary: SummaryDocument) -> None:
    arm = summary.arms[1].model_copy(update={"label": "[bold]x[/]\x1b[31m"})
    lines = shown(summary.model_copy(update={"arms": [arm], "effects": []}), 120)
    assert any(line.startswith("[bold]x[/] [31m") for line in lines), lines


def test_an_arm_that_was_not_measured_is_told(summary: SummaryDocument) -> None:
    found = summary.model_copy(update={"failed": {"moe-broken": "HTTP 500\nfrom the server"}})
    assert "moe-broken: not measured, HTTP 500 from the server" in shown(found)
    assert "- `moe-broken` was not measured: HTTP 500 from the server" in short_markdown(found)


def test_a_comparison_shows_its_sentence_and_what_it_could_have_seen() -> None:
    path = LEVERS / "compare" / "default--faster" / "effect.json"
    text = " ".join(shown(summary_of_comparison(read_document(path, EffectDocument))))
    assert "mean TPOT of faster is 15.7 % lower" in text
    assert "smallest effect on mean TPOT" in text


def test_the_short_markdown_has_verdict_arms_and_effect(summary: SummaryDocument) -> None:
    text = short_markdown(summary, ["no regression beyond 2.0 %"])
    assert text.startswith("## SIMULATED: Tuned kernels against the default\n\n```\nno regression beyond 2.0 %\n```")
    assert "| `moe-tuned` | 11.50 req/s | 11.50: 3 of 3; 11.82: 0 of 3 |" in text
    assert "- `moe-tuned`, mean TPOT: -2.9 % (-3.1 % to -2.7 %), drift +0.7 %: between these" in text


def test_the_short_markdown_escapes_what_came_from_outside(small: Path) -> None:
    path = small / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "title": "<script>"}))
    assert "\\<script\\>" in short_markdown(summary_of(read_experiment(small)))
