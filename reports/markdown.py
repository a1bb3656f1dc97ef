"""GitHub-flavoured Markdown from text that may come from anywhere: labels, error messages, host names.

`escape` and `code` make text safe; everything else takes Markdown that is safe already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal
from urllib.parse import quote

Align = Literal["left", "right", "center"]

_RULE: dict[Align, str] = {"left": ":--", "right": "--:", "center": ":-:"}
_SPECIAL = re.compile(r"([\\`*_\[\]<>~&!#])")
_BLOCK_START = re.compile(r"^(?:(\d+)(?=[.)](?:\s|$))|(?=[-+](?:\s|$)|[-=]+\s*$))")
"""Where a line would become a list item, a rule or the underline of a heading: a backslash goes in here."""


def one_line(text: str) -> str:
    """Text on one line: every run of white space and control characters becomes one space."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def escape(text: str) -> str:
    """Text that reads as itself: no emphasis, link, HTML, entity, list or heading can come of it.

    A pipe is left alone: it means something in a table only, and `table` escapes it there.
    """
    safe = _SPECIAL.sub(r"\\\1", one_line(text))
    return _BLOCK_START.sub(lambda match: f"{match[1] or ''}\\", safe)


def code(text: str) -> str:
    """An inline code span, with a fence longer than any run of backticks in it."""
    text = one_line(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if not text or text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def code_block(text: str, language: str = "") -> str:
    """A fenced block that its content cannot close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def heading(text: str, level: int) -> str:
    """A heading of Markdown text; level 1 to 6."""
    return f"{'#' * level} {text}"


def bullets(items: Iterable[str]) -> str:
    """A list, one line each."""
    return "\n".join(f"- {item}" for item in items)


def struck(text: str) -> str:
    """Crossed out: still there to be read, but no result."""
    return f"~~{text}~~" if text else text


def link(text: str, target: str) -> str:
    """A link to a relative path."""
    return f"[{text}]({quote(target, safe='/.-_~')})"


def image(alternative: str, target: str) -> str:
    """A figure with the words that stand in for it."""
    return f"!{link(escape(alternative), target)}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: Sequence[Align]) -> str:
    """A table; cells are Markdown. Raises ValueError when a row has another width than the header."""
    lines = [_row(header), _row([_RULE[each] for each in align])]
    for row in rows:
        if not len(row) == len(header) == len(align):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(header)} columns")
        lines.append(_row(row))
    return "\n".join(lines)


def details(summary: str, body: str) -> str:
    """A part that opens on a click. The blank lines let Markdown work inside; summary is plain text."""
    text = one_line(summary).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<details>\n<summary>{text}</summary>\n\n{body}\n\n</details>"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
