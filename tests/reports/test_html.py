"""The page: what it shows, and that nothing a server said becomes part of it."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from reports.arms import read_experiment
from reports.html import html_page
from reports.html_slowest import SlowWindow, slowest
from reports.markdown import code, details, escape, table
from traffic.errors import UsageError
from traffic.records import End, RequestRecord

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "v1" / "levers"
EVIL = '<script>alert(1)</script> <img src=x onerror=alert(2)> "&amp;" </details>'


def page(markdown: str, base: Path = Path(), **more: object) -> str:
    return html_page(markdown, title="A title", base=base, **more)  # type: ignore[arg-type]


def body(html: str) -> str:
    return html.partition("<main>")[2].partition("</main>")[0]


def test_markdown_becomes_a_page_with_a_title_tables_and_struck_cells() -> None:
    html = page(f"# Note\n\n{table(['a', 'b'], [['~~1~~', '`2`']], ['left', 'right'])}")
    assert "<title>A title</title>" in html
    assert "<h1>Note</h1>" in body(html)
    assert '<div class="wide">\n<table>' in body(html)
    assert "<s>1</s>" in body(html)
    assert "<code>2</code>" in body(html)


@pytest.mark.parametrize("shown", [EVIL, escape(EVIL), code(EVIL)], ids=["raw", "escaped", "code"])
def test_text_from_a_server_stays_text(shown: str) -> None:
    html = page(f"said: {shown}\n\n| cell |\n| :-- |\n| {shown} |\n")
    assert "<script" not in html
    assert "<img" not in html
    assert html.count("&lt;script&gt;") == 2


def test_a_title_is_escaped() -> None:
    assert "<title>&lt;b&gt;x" in html_page("x", title="<b>x", base=Path())


def test_details_open_and_close_around_markdown_and_their_summary_is_text() -> None:
    html = body(page(details("a <b> & c", "| x |\n| --- |\n| 1 |")))
    assert "<details><summary>a &lt;b&gt; &amp; c</summary>" in html
    assert html.index("<details>") < html.index("<table>") < html.index("</details>")


@pytest.mark.parametrize("spoof", ["<details>\n<summary><img src=x></summary>", "x <details>", "<details open>"])
def test_only_the_notes_own_details_are_let_through(spoof: str) -> None:
    assert "<details" not in body(page(spoof))


def test_comments_of_the_note_are_not_shown() -> None:
    assert "remark" not in body(page("<!-- remarks: kept -->\n\ntext"))


def test_a_link_that_runs_a_script_is_no_link() -> None:
    assert "href" not in body(page("[x](javascript:alert(1))"))


def test_a_figure_is_inside_the_page(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    (tmp_path / "figures" / "a b.svg").write_bytes(svg)
    html = page("![words](figures/a%20b.svg)", tmp_path)
    found = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="words"', html)
    assert found is not None
    assert base64.b64decode(found[1]) == svg
    assert "<script" not in html


def test_a_link_to_a_figure_saves_what_is_inside_the_page(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"png")
    html = body(page("([PNG](x.png), [JSON](run.json))", tmp_path))
    assert f'<a href="data:image/png;base64,{base64.b64encode(b"png").decode()}" download="x.png">PNG</a>' in html
    assert '<a href="run.json">JSON</a>' in html


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("figures/none.svg", "cannot be read: No such file"),
        ("https://example.org/x.png", "takes no picture from elsewhere"),
        ("//example.org/x.png", "takes no picture from elsewhere"),
        ("note.md", "is no figure"),
    ],
)
def test_a_figure_that_cannot_be_inside_is_told_in_one_line(source: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        page(f"![x]({source})", tmp_path)
    assert "\n" not in str(refused.value)


def test_nothing_is_fetched_and_no_script_can_run() -> None:
    html = page("text")
    assert "default-src 'none'" in html
    assert not re.search(r"<(script|link|iframe|object)\b|@import|url\(", html)


def test_the_slowest_requests_of_the_first_failed_window_come_worst_first() -> None:
    arm = read_experiment(SAMPLE).arm("faster")
    window = slowest(arm, shown=5)
    assert window is not None
    assert (window.row.rate_rps, window.misses) == (18.0, window.row.misses)
    tpots = [each.tpot_s for each in window.requests if each.tpot_s is not None]
    assert len(tpots) == 5
    assert tpots == sorted(tpots, reverse=True)
    assert min(tpots) > 0.05


def test_an_arm_whose_rows_are_not_kept_lists_nothing() -> None:
    assert slowest(read_experiment(SAMPLE).arm("default")) is None


def record(**changes: object) -> RequestRecord:
    facts: dict[str, object] = {
        "index": 7, "kind": "short turn", "in_cohort": True, "due_s": 12.5, "sent_s": 12.501, "first_token_s": None,
        "last_token_s": None, "ended_s": 13.0, "end": End.FAILED, "error": EVIL, "input_tokens": 100,
        "prompt_tokens": None, "cached_tokens": None, "requested_output_tokens": 50, "force_length": True,
        "output_tokens": 0, "output_tokens_estimated": False, "chunk_gap_max_s": None, "malformed_frames": 0,
    }  # fmt: skip
    return RequestRecord(**{**facts, **changes})  # type: ignore[arg-type]


def test_a_request_that_failed_shows_what_the_server_said_as_text() -> None:
    arm = read_experiment(SAMPLE).arm("faster")
    window = SlowWindow("faster", arm.sweep.probes[0], 1, (record(),))
    html = page("text", mark="SIMULATED", slow=[window])
    assert "<h2>Slowest requests of failed windows (SIMULATED)</h2>" in html
    assert "failed: &lt;script&gt;" in html
    assert "<script" not in html
    assert "not measured" in body(html)
