"""`slo-bench report` from its words to its files and exit codes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from reports.run_directory import read_document
from reports.summary_document import SummaryDocument
from slo_bench.cli import main

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "v1"
LEVERS = SAMPLES / "levers"


@pytest.fixture
def levers(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LEVERS, tmp_path / "levers"))


def report(*words: object) -> int:
    return main(["report", *map(str, words)])


def test_without_an_output_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(LEVERS) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("[SIMULATED] [smoke: not a measurement] A faster step against the default")
    assert shown.err == ""
    assert report(LEVERS, "--verbose") == 0
    assert capsys.readouterr().out.startswith(shown.out)


def test_json_goes_to_stdout_or_to_the_file_whose_ending_asks_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(LEVERS, "--format", "json") == 0
    printed = SummaryDocument.model_validate_json(capsys.readouterr().out)
    assert report(LEVERS, "--output", tmp_path / "deep" / "summary.json") == 0
    assert read_document(tmp_path / "deep" / "summary.json", SummaryDocument) == printed
    assert capsys.readouterr().out == ""


def test_a_regression_beyond_the_bound_is_exit_1_and_a_smoke_run_exit_5(
    tmp_path: Path, levers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "baseline.json"
    assert report(levers, "--output", baseline) == 0
    bound = ("--compare-to", baseline, "--fail-on-regression", "2%")
    assert report(levers, *bound) == 5
    assert "not comparable: the baseline is a smoke run" in capsys.readouterr().err
    for path in levers.glob("arms/*/sweep.json"):
        path.write_text(path.read_text().replace('"is_smoke": true', '"is_smoke": false'))
    assert report(levers, "--output", baseline) == 0
    for path in levers.glob("arms/default*/sweep.json"):
        document = json.loads(path.read_text())
        for row in document["probes"]:
            row["tpot_mean_s"] *= 1.5
        path.write_text(json.dumps(document))
    assert report(levers, *bound) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("regression of more than 2.0 % proven\n  mean TPOT at 9.798 req/s: +50.0 %")
    assert "regression" not in shown.out


def test_the_summary_of_a_ci_job_is_appended_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert report(LEVERS, "--github-summary") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## SIMULATED")
    steps = tmp_path / "steps.md"
    steps.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(steps))
    assert report(LEVERS, "--github-summary") == 0
    assert steps.read_text() == "before\n" + printed
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert report(LEVERS, "--github-summary") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a run directory"),
        (("nowhere",), "nowhere does not exist"),
        ((LEVERS, "--compare-to", "x.json"), "--compare-to and --fail-on-regression go together"),
        ((LEVERS, "--compare-to", "x.json", "--fail-on-regression", "2"), "is a share of 0 to 1, like 2%"),
        ((LEVERS, "--compare-to", "x.json", "--fail-on-regression", "2%"), "x.json does not exist"),
        ((LEVERS, "--format", "html"), "--format html needs --output FILE"),
        ((LEVERS, "--format", "pdf"), "input should be 'markdown', 'html' or 'json'"),
        ((LEVERS, "--format", "json", "--verbose"), "--verbose is for the terminal"),
        ((LEVERS, "--remarks", "x.md"), "--remarks: only a note or a page has them"),
    ],
)
def test_what_cannot_work_is_exit_2_and_one_line(
    words: tuple[object, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report(*words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_folder_as_output_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(LEVERS, "--format", "markdown", "--output", tmp_path) == 2
    assert "is a folder" in capsys.readouterr().err


def test_the_directory_of_a_comparison_has_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = LEVERS / "compare" / "default--faster"
    assert report(folder) == 0
    assert "15.7 % lower" in capsys.readouterr().out
    for name in ("note.md", "page.html"):
        assert report(folder, "--output", tmp_path / name) == 0
        assert "faster against default" in (tmp_path / name).read_text()


@pytest.mark.parametrize("name", ["note.md", "page.html"])
def test_remarks_are_given_once(tmp_path: Path, name: str) -> None:
    folder, output = LEVERS / "compare" / "default--faster", tmp_path / name
    (tmp_path / "mine.md").write_text("The fan was **loud**.")
    assert report(folder, "--output", output, "--remarks", tmp_path / "mine.md") == 0
    first = output.read_text()
    assert "Remarks" in first
    assert report(folder, "--output", output) == 0
    assert output.read_text() == first


@pytest.mark.process
def test_a_page_stands_alone_and_a_note_has_its_figures_beside_it(tmp_path: Path, levers: Path) -> None:
    page, note = tmp_path / "out" / "page.html", tmp_path / "out" / "note.md"
    assert report(levers, "--output", page) == 0
    html = page.read_text()
    assert html.count('src="data:image/svg+xml;base64,') >= 2
    assert "Slowest requests of failed windows" in html
    assert not re.search(r'src="(?!data:)', html)
    assert [path.name for path in page.parent.iterdir()] == ["page.html"]
    for target in re.findall(r'href="([^"#:]+)"', html):
        assert (page.parent / target).exists(), target
    assert report(levers, "--output", note) == 0
    for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", note.read_text()):
        assert (note.parent / target).exists(), target


@pytest.mark.process
def test_several_sweeps_make_one_note(tmp_path: Path, levers: Path) -> None:
    arms = [levers / "arms" / label for label in ("default", "faster", "default-2")]
    (tmp_path / "mine.md").write_text("The fan was loud.")
    assert report(*arms, "--output", tmp_path / "note.md", "--remarks", tmp_path / "mine.md", "--number", "7") == 0
    assert report(*arms, "--output", tmp_path / "note.md", "--see-also", "https://example.org/fan") == 0
    text = (tmp_path / "note.md").read_text()
    assert text.count("The fan was loud.") == 1
    assert "<https://example.org/fan>" in text
    assert "faster" in text
    assert "experiment.json" not in text
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (tmp_path / target).exists(), target
