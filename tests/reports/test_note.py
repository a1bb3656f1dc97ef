"""The note of the small experiment.

After a wanted change of the text: SLO_BENCH_GOLDEN=write pytest tests/reports/test_note.py, then read the diff.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from note_tracer import allowed, numbers_of, untraced

from gates.capacity import CapacityVerdict
from reports.note import note, write_note
from reports.run_directory import Document
from traffic.errors import UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "note_small.md"
DEMO = Path(__file__).parents[2] / "docs" / "lab-notes" / "0001-demo"

SCENARIOS = ("gate_failed", "within_drift", "real_effect")

Write = Callable[[Mapping[str, Document]], Path]


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_rows(path: Path, where: Callable[[dict[str, Any]], bool], **changes: Any) -> None:
    document = json.loads(path.read_text())
    document["probes"] = [{**row, **changes} if where(row) else row for row in document["probes"]]
    path.write_text(json.dumps(document))


def at_anchor(row: dict[str, Any]) -> bool:
    return bool(row["rate_rps"] == 11.18)


def first_at_anchor(row: dict[str, Any]) -> bool:
    return at_anchor(row) and row["repeat"] == 0


def line_with(text: str, *parts: str) -> str:
    return next(line for line in text.splitlines() if all(part in line for part in parts))


def test_the_note_of_the_small_experiment_is_the_golden_one(small: Path) -> None:
    text = note(small)
    if os.environ.get("SLO_BENCH_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_kind_of_answer_has_its_golden_note(scenario: Callable[[str], Path], name: str) -> None:
    golden = GOLDEN.with_name(f"note_{name}.md")
    text = note(scenario(name))
    if os.environ.get("SLO_BENCH_GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_published_note_of_the_demo_is_what_its_documents_say() -> None:
    published = DEMO.with_suffix(".md")
    assert published.read_text() == note(DEMO, output=published, figures_dir=DEMO)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_number_of_a_note_comes_from_a_file_of_its_directory(scenario: Callable[[str], Path], name: str) -> None:
    directory = scenario(name)
    assert untraced(note(directory), directory) == set()


def test_every_number_of_the_published_note_of_the_demo_comes_from_its_files() -> None:
    assert untraced(DEMO.with_suffix(".md").read_text(), DEMO) == set()


def test_the_tracer_finds_numbers_that_are_made_up(scenario: Callable[[str], Path]) -> None:
    directory = scenario("within_drift")
    known = allowed(directory)
    told = [each for each in numbers_of(note(directory)) if len(each) > 3]
    made_up = [f"{each[:-1]}{(int(each[-1]) + 3) % 10}" for each in told]
    assert len(told) > 100
    assert sum(each not in known for each in made_up) > 0.8 * len(made_up)


def test_the_headline_has_effect_interval_pairs_drift_and_finding(small: Path) -> None:
    headline = note(small).split("\n\n")[1]
    for part in (
        "**SIMULATED. ",
        "Between these two server instances: mean TPOT at 11.18 req/s against `moe-default`",
        "`moe-tuned` -2.9 % (-3.1 % to -2.7 %, 3 pairs), between these two server instances",
        "drift between two equal arms: +0.7 % (+0.5 % to +0.8 %, 3 pairs)",
    ):
        assert part in headline


def test_title_headline_headings_figures_and_captions_say_simulated(small: Path) -> None:
    text = note(small)
    tells_results = re.compile(r"# .*(Result|End to end|Truth|window)|^\*\*|^!\[|^Figure|^Table|^# ")
    lines = [line for line in text.partition("```sh")[0].splitlines() if tells_results.search(line)]
    assert len(lines) > 10
    assert [line for line in lines if "SIMULATED" not in line] == []


def test_nothing_is_called_real(small: Path) -> None:
    assert re.search(r"\b(real|really|significant|significantly)\b", note(small), re.IGNORECASE) is None


def test_an_invalid_window_is_struck_out_with_its_reason_and_counted(small: Path) -> None:
    text = note(small)
    row = line_with(text, "~~12.50~~")
    assert "invalid: send lag p99 31.2 ms is above 10 ms: give the client a free core" in row
    assert "~~31.20~~" in row
    assert "Invalid windows of `moe-tuned`: 1 of 13" in text


ROW_VALUES: tuple[tuple[str, Any], ...] = (
    ("n", 77_001),
    ("ttft_p50_s", 0.7007),
    ("ttft_p99_s", 0.7008),
    ("ttft_mean_s", 0.7009),
    ("tpot_p50_s", 0.07001),
    ("tpot_p99_s", 0.07002),
    ("tpot_mean_s", 0.07003),
    ("goodput_rps", 7.77),
    ("output_tokens_per_s", 7007.0),
    ("output_tokens_mean", 707.0),
    ("send_lag_p99_s", 0.00707),
    ("failed", 777),
    ("window_s", 77.0),
    ("rate_rps", 11.77),
)


@pytest.mark.parametrize(("name", "value"), ROW_VALUES)
def test_each_value_of_a_window_comes_from_its_row(small: Path, name: str, value: Any) -> None:
    before = GOLDEN.read_text()
    change_rows(small / "arms/moe-tuned/sweep.json", first_at_anchor, **{name: value})
    after = note(small)
    assert after != before
    assert not set(re.findall(r"\d[\d.,]*\d", before)) >= set(re.findall(r"\d[\d.,]*\d", after))


@pytest.mark.parametrize(
    ("name", "changes", "shown"),
    [
        ("arms/moe-tuned/sweep.json", {"capacity_rps": 11.33}, "`moe-tuned` 11.33 req/s"),
        ("arms/moe-tuned/sweep.json", {"first_failed_rps": 12.34}, "limited by TPOT at 12.34 req/s"),
        ("arms/moe-tuned/sweep.json", {"resolution_share": 0.0777}, "resolution 7.8 %"),
        ("arms/moe-tuned/sweep.json", {"tallies": ["11.50: 4 of 5", "11.82: 1 of 6"]}, "11.50: 4 of 5; 11.82: 1 of 6"),
        ("arms/moe-tuned/sweep.json", {"cause": "KV cache full"}, "limited by TPOT at 11.82 req/s; KV cache full."),
        ("arms/moe-tuned/sweep.json", {"contradictions_rps": [12.6]}, "`moe-tuned` passed at 12.60 req/s although"),
        (
            "arms/moe-tuned/sweep.json",
            {"capacity_estimate_rps": 11.61, "capacity_interval_rps": [11.44, 11.73]},
            "estimate 11.61 req/s, 90 % interval 11.44 to 11.73",
        ),
        ("experiment.json", {"anchor_rps": 10.0}, "End to end at 10.00 req/s"),
        ("experiment.json", {"title": "Another <title>"}, r"# SIMULATED: Another \<title\>"),
        ("arms/moe-tuned/engine.json", {"max_model_len": 777}, "context 777 tokens"),
        ("arms/moe-tuned/engine.json", {"version": "9.8.7"}, "version 9.8.7"),
        ("arms/moe-tuned/engine.json", {"takes_forced_length": False}, "`moe-tuned` takes no forced output length"),
        ("arms/moe-tuned/run.json", {"environment": {"python": "3.13.1"}}, "3.13.1"),
        (
            "arms/moe-tuned/run.json",
            {"status": "interrupted", "reason": "SIGINT"},
            "`moe-tuned` is interrupted: SIGINT",
        ),
        ("arms/moe-tuned/run.json", {"config": {"command": "slo-bench x --seed 9"}}, "\nslo-bench x --seed 9\n"),
        ("truth.json", {"drift_share": 0.0123}, "hidden: +1.2 %"),
        ("truth.json", {"cold_start": "77 s of cold"}, "Cold start: 77 s of cold"),
        ("arms/moe-tuned/sweep.json", {"warm_up": None}, "`moe-tuned`: no warm-up was run"),
    ],
)
def test_what_a_document_says_is_what_the_note_says(
    small: Path, name: str, changes: dict[str, Any], shown: str
) -> None:
    assert shown not in GOLDEN.read_text()
    change(small / name, **changes)
    assert shown in note(small)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("hidden", "a secret", "a secret"),
        ("true_capacity_rps", 11.51, "11.51 req/s"),
        ("true_capacity_rps", 12.51, "11.50, 11.82: misses the truth"),
        ("true_tpot_effect_share", -0.0456, "-4.6 %"),
        ("plain_claim_share", 0.0987, "+9.9 %"),
    ],
)
def test_the_truth_stands_beside_the_finding(small: Path, name: str, value: Any, shown: str) -> None:
    truth = json.loads((small / "truth.json").read_text())
    assert shown not in GOLDEN.read_text()
    truth["arms"][1][name] = value
    change(small / "truth.json", arms=truth["arms"])
    row = line_with(note(small), "| `moe-tuned` |", shown)
    assert "a difference between these two server instances" in row


def test_without_a_truth_there_is_no_such_table(small: Path) -> None:
    (small / "truth.json").unlink()
    assert "Truth" not in note(small)


def test_without_a_drift_arm_no_difference_is_claimed(small: Path) -> None:
    change(small / "experiment.json", drift_arm=None)
    text = note(small)
    assert "**drift not measured**" in text
    assert "Drift was not measured: no arm repeats the baseline's configuration." in text
    assert "**between these two server instances**" not in text


def test_one_arm_alone_has_no_effects_and_no_figure_of_them(small: Path) -> None:
    (small / "truth.json").unlink()
    change(small / "experiment.json", arms=["moe-default"], drift_arm=None)
    text = note(small)
    assert "no other configuration was measured" in text
    assert "small-effects" not in text
    assert "finding |" not in text


def test_without_an_anchor_rate_the_note_says_why_nothing_is_compared(small: Path) -> None:
    change(small / "experiment.json", anchor_rps=None)
    path = small / "arms/moe-default/sweep.json"
    nothing = {
        "verdict": CapacityVerdict.NONE,
        "capacity_rps": None,
        "first_failed_rps": 0.125,
        "resolution_share": None,
    }
    change(path, **nothing)
    text = note(small)
    assert "`moe-default` has no passing rate, so there is no rate at which to compare arms." in text
    assert "none: every rate failed, the lowest tried was 0.125 req/s" in text
    assert "End to end" not in text


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (CapacityVerdict.AT_LEAST, "at least 11.50 req/s, no rate failed"),
        (CapacityVerdict.UNFINISHED, "not found, the search is unfinished: passed so far 11.50 req/s"),
    ],
)
def test_a_search_without_an_answer_claims_none(small: Path, verdict: CapacityVerdict, shown: str) -> None:
    change(small / "arms/moe-tuned/sweep.json", verdict=verdict, first_failed_rps=None, resolution_share=None)
    text = note(small)
    assert shown in text
    assert "cannot be compared, a bracket has only one end" in text


def test_a_percentile_on_a_failure_is_no_mean_of_the_others(small: Path) -> None:
    change_rows(small / "arms/moe-tuned/sweep.json", first_at_anchor, ttft_p99_s=None, failed=20)
    text = note(small)
    assert "not measured in 1 of 3" in line_with(text, "| TTFT p99 (ms)")
    assert "2 pairs, 1 more without a value" in line_with(text, "| `moe-tuned` | p99 TTFT")
    assert "20 requests of `moe-tuned` failed at the anchor rate" in text


def test_a_window_that_ended_early_is_counted_and_not_averaged(small: Path) -> None:
    change_rows(
        small / "arms/moe-tuned/sweep.json",
        first_at_anchor,
        stop="an objective was lost",
        outcome="fail",
        tpot_mean_s=9.0,
    )
    text = note(small)
    assert "2 of 3; 1 ended early, not below" in line_with(text, "| windows passed")
    assert "9,000" not in line_with(text, "| TPOT mean (ms)")
    assert "2 pairs, 1 more without a value" in line_with(text, "| `moe-tuned` | mean TPOT")


def test_arms_whose_answers_differ_in_length_are_flagged(small: Path) -> None:
    change_rows(small / "arms/moe-tuned/sweep.json", at_anchor, output_tokens_mean=250.0)
    assert "Mean output of `moe-tuned` differs by +3.3 % from the baseline's" in note(small)


def test_a_server_that_is_not_warm_is_told_first(small: Path) -> None:
    warm = {"is_warm": False, "rate_rps": 12.5, "block_s": 30, "tpot_mean_s": [0.05, None]}
    change(small / "arms/moe-tuned/sweep.json", warm_up=warm)
    result = note(small).partition("## End to end")[0]
    assert "`moe-tuned`: **not warm** after 2 blocks of 30 s at 12.50 req/s" in result


def test_a_reader_of_the_note_alone_has_the_plan_the_versions_and_the_seed(small: Path) -> None:
    for label in ("moe-default", "moe-tuned", "moe-default-2"):
        change(
            small / f"arms/{label}/run.json", config={"command": ["slo-bench", "experiment", "plans/moe tuned.toml"]}
        )
    change(small / "arms/moe-default/run.json", environment={"slo_bench": "0.1.0", "python": "3.11.7"})
    change(small / "arms/moe-default/engine.json", version="0.32.0")
    (small / "plan.toml").write_text('label = "x"\nseed = 7\n')
    assert note(small).partition("## Reproduce")[2].partition("```sh\n")[2].partition("```")[0].splitlines() == [
        "# Python 3.11.7; in a checkout of slo-bench 0.1.0: pip install .",
        "# engine simulated 0.32.0",
        "mkdir -p plans",
        "cat > 'plans/moe tuned.toml' <<'END_OF_PLAN'",
        'label = "x"',
        "seed = 7",
        "END_OF_PLAN",
        "slo-bench experiment 'plans/moe tuned.toml'",
    ]


def test_a_seed_that_no_command_names_is_set(small: Path) -> None:
    assert "\nexport SLO_BENCH_SEED=7\n" in note(small)
    for label in ("moe-default", "moe-tuned", "moe-default-2"):
        change(small / f"arms/{label}/run.json", config={"command": "slo-bench sweep --seed 7"})
    assert "SLO_BENCH_SEED" not in note(small)


def test_text_from_outside_stays_text(small: Path) -> None:
    nasty = "<img src=x> [a](b) | c\n# d"
    change_rows(small / "arms/moe-tuned/sweep.json", lambda row: not row["is_valid"], invalid_reasons=[nasty])
    change(small / "arms/moe-tuned/engine.json", model=nasty)
    change(small / "arms/moe-tuned/run.json", config={"command": "a\n```\n# b", "x": nasty})
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(note(small))
    assert "<img src=x>" not in html
    assert 'href="b"' not in html
    assert "<h1>d" not in html
    assert "<h1>b" not in html
    assert "&lt;img src=x&gt; [a](b) | c # d" in html


def test_no_undefined_number_reaches_the_page(small: Path) -> None:
    for name in ("ttft_p50_s", "tpot_mean_s", "goodput_rps", "send_lag_p99_s", "output_tokens_mean"):
        change_rows(small / "arms/moe-tuned/sweep.json", at_anchor, **{name: None})
    text = note(small)
    assert re.search(r"\b(None|nan|inf|null)\b", text, re.IGNORECASE) is None
    assert "not measured" in text


@pytest.mark.process
def test_files_are_written_whole_and_every_link_leads_to_one(small: Path, tmp_path: Path) -> None:
    output, figures = tmp_path / "docs" / "lab notes" / "small.md", tmp_path / "docs" / "figures"
    assert write_note(small, output, figures) == output
    text = output.read_text()
    targets = [unquote(target) for target in re.findall(r"\]\(([^)]+)\)", text)]
    assert any(target.endswith("small-rates.svg") for target in targets)
    for target in targets:
        if not target.endswith("/probes"):
            assert (output.parent / target).is_file(), target
        assert not target.startswith("/")
    assert sorted(path.name for path in figures.iterdir()) == [
        "small-effects.png", "small-effects.svg", "small-rates.png", "small-rates.svg",
    ]  # fmt: skip
    assert text == note(small, output=output, figures_dir=figures)


def test_what_cannot_be_written_is_said_in_one_line(small: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*taken"):
        write_note(small, tmp_path / "taken" / "note.md")
