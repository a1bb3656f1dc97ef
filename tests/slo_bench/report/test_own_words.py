"""An author's words in a note: they survive when it is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.html import html_page
from slo_bench.report.options import ReportOptions
from slo_bench.report.own_words import OwnWords, kept_remarks, own_words, with_own_words
from traffic.errors import UsageError

NOTE = "# SIMULATED: A title\n\n**Headline.**\n"


def options(tmp_path: Path, **given: object) -> ReportOptions:
    return ReportOptions(run_dir=[tmp_path], output=tmp_path / "note.md", **given)  # type: ignore[arg-type]


def test_a_note_without_own_words_is_what_it_was() -> None:
    assert with_own_words(NOTE, OwnWords()) == NOTE


def test_number_remarks_and_links_have_their_places() -> None:
    text = with_own_words(NOTE, OwnWords(7, "The fan was *loud*.\n", ["https://example.org/a?b=1", "issue <12>"]))
    assert text.startswith("# Lab note 7. SIMULATED: A title\n")
    assert "## Remarks\n" in text
    assert "The fan was *loud*." in text
    assert text.endswith("## See also\n\n- <https://example.org/a?b=1>\n- issue \\<12\\>\n")


def test_remarks_survive_when_the_note_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("The fan was loud.\n\n- twice\n")
    first = with_own_words(NOTE, own_words(options(tmp_path, remarks=tmp_path / "mine.md")))
    (tmp_path / "note.md").write_text(first)
    again = with_own_words(NOTE, own_words(options(tmp_path)))
    assert again == first
    (tmp_path / "mine.md").write_text("Quiet now.")
    assert own_words(options(tmp_path, remarks=tmp_path / "mine.md")).remarks == "Quiet now."


@pytest.mark.parametrize("remarks", ["The fan was *loud* < 3 & </template>.\n\n- twice", '## `code`\n\n> "quoted"'])
def test_remarks_survive_when_the_page_is_made_again(tmp_path: Path, remarks: str) -> None:
    (tmp_path / "mine.md").write_text(remarks)
    page = options(tmp_path).model_copy(update={"output": tmp_path / "page.html"})

    def made(given: ReportOptions) -> str:
        words = own_words(given)
        return html_page(with_own_words(NOTE, words), title="t", base=tmp_path, remarks=words.remarks)

    first = made(page.model_copy(update={"remarks": tmp_path / "mine.md"}))
    (tmp_path / "page.html").write_text(first)
    assert own_words(page).remarks == remarks
    assert made(page) == first


def test_a_page_of_somebody_else_has_no_remarks(tmp_path: Path) -> None:
    page = options(tmp_path).model_copy(update={"output": tmp_path / "page.html"})
    assert own_words(page).remarks is None
    (tmp_path / "page.html").write_text(html_page(NOTE, title="t", base=tmp_path))
    assert own_words(page).remarks is None


def test_a_note_of_somebody_else_has_no_remarks(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("<!-- own remarks: kept when the note is made again -->\nno end")
    assert kept_remarks(tmp_path / "note.md") is None
    assert kept_remarks(tmp_path / "none.md") is None


def test_remarks_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("x\n<!-- end of own remarks -->\ny")
    with pytest.raises(UsageError, match="remove it"):
        own_words(options(tmp_path, remarks=tmp_path / "mine.md"))
    with pytest.raises(UsageError, match="No such file"):
        own_words(options(tmp_path, remarks=tmp_path / "none.md"))
