"""The table on a terminal, and the short Markdown of a CI job: both from the summary alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from reports.arms import read_experiment
from reports.effect_document import EffectDocument
from reports.numbers import joules, ms, usd, watts
from reports.run_directory import read_document
from reports.summary import summary_of, summary_of_comparison
from reports.summary_document import AccuracySummary, SummaryDocument
from reports.summary_markdown import short_markdown
from reports.terminal import terminal

LEVERS = Path(__file__).resolve().parents[1] / "samples" / "v1" / "levers"


@pytest.fixture
def summary(small: Path) -> SummaryDocument:
    return summary_of(read_experiment(small))


def shown(summary: SummaryDocument, width: int = 80) -> list[str]:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(terminal(summary))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_every_arm_is_one_line_that_fits(summary: SummaryDocument, width: int) -> None:
    lines = shown(summary.model_copy(update={"headline": ""}), width)
    assert max(map(len, lines)) <= width
    tuned = next(line for line in lines if line.startswith("moe-tuned"))
    anchor = summary.arms[1].anchor
    assert anchor is not None
    values = [ms(each, unit=False) for each in (anchor.ttft_p99_s, anchor.tpot_p99_s, anchor.tpot_mean_s)]
    assert tuned.split() == ["moe-tuned", "11.50", "3/3,", "0/3", "2.8", "%", *values, "tpot"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_effect_stands_beside_its_drift_and_finding(summary: SummaryDocument, width: int) -> None:
    lines = shown(summary, width)
    at = next(number for number, line in enumerate(lines) if line.startswith("mean TPOT against moe-default"))
    assert lines[at].rstrip().endswith("95 % interval; drift +0.7 % (+0.5 to +0.8)")
    assert lines[at + 2].startswith("moe-tuned  -2.9 % (-3.1 to -2.7)")
    assert "between these two server" in lines[at + 2]


def test_accuracy_power_and_cost_are_shown_where_measured_and_missed_where_not(summary: SummaryDocument) -> None:
    assert "accuracy, power and cost: not measured" in shown(summary)
    gate = AccuracySummary(outcome="pass", right=46, n=50, accuracy_share=0.92, accuracy_interval=(0.81, 0.97))
    tuned = summary.arms[1].model_copy(
        update={
            "accuracy": gate,
            "power_mean_w": 612.0,
            "joules_per_output_token": 0.412,
            "usd_per_million_output_tokens": 0.35,
        }
    )
    lines = shown(summary.model_copy(update={"arms": [summary.arms[0], tuned]}))
    at = next(number for number, line in enumerate(lines) if line.startswith("power at 11.18 req/s"))
    default, measured = (line.split() for line in lines[at + 2 : at + 4])
    assert default == ["moe-default", "-", "-", "-", "-"]
    assert measured == ["moe-tuned", "46/50", "pass", *watts(612.0).split(), *joules(0.412).split(), usd(0.35)]


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


def test_a_simulated_run_and_a_smoke_run_are_marked_first() -> None:
    first = shown(summary_of(read_experiment(LEVERS)))[0]
    assert first.startswith("[SIMULATED] [smoke: not a measurement] ")


def test_what_the_arms_differ_by_is_listed() -> None:
    lines = shown(summary_of(read_experiment(LEVERS)))
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
