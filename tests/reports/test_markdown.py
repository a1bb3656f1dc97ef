from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from reports.markdown import bullets, code, code_block, details, escape, heading, image, link, one_line, struck, table

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])

NASTY = (
    "<script>alert(1)</script>",
    "[click](javascript:x) ![i](y)",
    "~~gone~~ *a* _b_ `c` **d**",
    "&lt; &amp; &#65;",
    "1. first",
    "- item",
    "+ item",
    "# heading",
    "> quote",
    "===",
    "---",
    "a | b | c",
    "line\r\nbreak\x00\x1b[31m",
    "\\*already\\*",
    "C:\\path\\",
    "``` fence",
)

texts = st.text(max_size=40) | st.text(alphabet="`*_[]()<>~&!#|\\-+=.1 \n", max_size=20)


def words(tokens: list[Token]) -> str:
    """The text of inline tokens; anything but plain text shows up as its type."""
    return "".join(t.content if t.type in ("text", "text_special") else f"<{t.type}>" for t in tokens)


@given(texts)
@example("0. ")
@example("1)")
def test_escaped_text_reads_as_itself_in_a_paragraph_a_list_a_heading_and_a_table(text: str) -> None:
    plain = one_line(text)
    for page in (escape(text), bullets([escape(text)]), heading(escape(text), 2)):
        found = [words(token.children or []) for token in READER.parse(page) if token.type == "inline"]
        assert "".join(found) == plain
        assert len(found) <= 1
    rows = table([escape(text), "b"], [[escape(text), "x"]], ["left", "right"])
    cells = [words(token.children or []) for token in READER.parse(rows) if token.type == "inline"]
    assert cells == [plain, "b", plain, "x"]


@pytest.mark.parametrize("text", NASTY)
def test_nothing_from_outside_becomes_markup(text: str) -> None:
    html = READER.render(escape(text))
    assert html.startswith("<p>")
    assert html.count("<") == 2


@given(texts)
def test_a_code_span_holds_exactly_its_text_in_a_line_and_in_a_table(text: str) -> None:
    plain = one_line(text)
    if not plain:
        return
    (line,) = (token for token in READER.parse(f"x {code(text)} y") if token.type == "inline")
    assert [t.content for t in line.children or [] if t.type == "code_inline"] == [plain]
    cells = [token for token in READER.parse(table(["a"], [[code(text)]], ["left"])) if token.type == "inline"]
    assert [t.content for t in cells[1].children or [] if t.type == "code_inline"] == [plain]


@given(st.text(alphabet="`ab\n ", max_size=30))
def test_a_code_block_cannot_be_closed_from_inside(text: str) -> None:
    tokens = READER.parse(code_block(text, "sh"))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content == (text.rstrip() + "\n")


def test_a_table_has_alignment_and_refuses_a_short_row() -> None:
    assert table(["a", "b"], [["1", "x|y"]], ["right", "left"]) == "| a | b |\n| --: | :-- |\n| 1 | x\\|y |"
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        table(["a", "b"], [["1"]], ["right", "left"])


def test_what_is_struck_out_is_still_there() -> None:
    assert READER.render(struck("12.5")) == "<p><s>12.5</s></p>\n"
    assert struck("") == ""


def test_links_hold_with_spaces_and_brackets_in_a_name() -> None:
    assert link("run.json", "arms/a b(1)/run.json") == "[run.json](arms/a%20b%281%29/run.json)"
    assert 'alt="a ] b"' in READER.render(image("a ] b", "x y.svg"))


def test_the_summary_of_details_is_no_html() -> None:
    page = details("<b>&", "| a |\n| :-- |\n| 1 |")
    assert "<summary>&lt;b&gt;&amp;</summary>" in page
    assert "<table>" in READER.render(page)
