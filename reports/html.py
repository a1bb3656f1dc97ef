"""A note as one HTML page that needs nothing else: figures inside it, no script, nothing fetched.

The page is made from the note's Markdown, so both say the same. Raw HTML in the Markdown is shown as text: whatever a
model or a server said cannot become part of the page. Only the note's own `<details>` are let through.
"""

from __future__ import annotations

import base64
import html
import mimetypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from reports import numbers
from reports.html_slowest import SlowWindow
from traffic.errors import UsageError

_OPENING = re.compile(r"<details>\n<summary>([^<>]*)</summary>")
_CLOSING = "</details>"
_COMMENT = re.compile(r"<!--.*-->", re.DOTALL)
_REMARKS = re.compile(r'<template id="own-remarks">([^<>]*)</template>')
_FIGURES = frozenset(("image/svg+xml", "image/png", "image/jpeg"))


def html_page(
    markdown: str,
    *,
    title: str,
    base: Path,
    mark: str = "",
    slow: Sequence[SlowWindow] = (),
    remarks: str | None = None,
) -> str:
    """The page. title: plain text. base: the folder that the note's links start from; its figures are read from there.

    mark: what every heading must say, as SIMULATED. remarks: their source, which the page keeps unseen beside what
    became of it, so that `remarks_of` gives it back.

    Raises UsageError for a figure that is missing, or that would have to be fetched from elsewhere.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = list(_let_through(parser.parse(markdown)))
    for token in tokens:
        for child in token.children or ():
            if child.type == "image":
                child.attrs["src"] = _inline(str(child.attrs["src"]), base)
            elif child.type == "link_open" and _is_figure(str(child.attrs["href"])):
                child.attrs["download"] = Path(unquote(str(child.attrs["href"]))).name
                child.attrs["href"] = _inline(str(child.attrs["href"]), base)
    body = parser.renderer.render(tokens, parser.options, {})
    page = _environment().get_template("page.html.j2")
    return page.render(title=title, body=Markup(body), mark=mark, slow=slow, remarks=remarks)  # noqa: S704 - rendered above without raw HTML


def remarks_of(page: str) -> str | None:
    """The source of the remarks that a page of ours keeps; None where it has none."""
    found = _REMARKS.search(page)
    return None if found is None else html.unescape(found[1])


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    shown: dict[str, Callable[..., str]] = {
        "ms": numbers.ms,
        "seconds": numbers.seconds,
        "count": numbers.count,
        "rate": numbers.rate,
    }
    made.filters.update(shown)
    return made


def _let_through(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens with the note's own `<details>` as HTML, comments left out, and wide tables in a box that scrolls."""
    rest = iter(tokens)
    for token in rest:
        if token.type == "table_open":
            yield _html('<div class="wide">')
        elif token.type == "paragraph_open":
            inline = next(rest)
            if (made := _own(inline.content)) is not None:
                next(rest)  # the paragraph's end
                yield from made
                continue
            yield token
            token = inline  # noqa: PLW2901 - the paragraph goes on as it is
        yield token
        if token.type == "table_close":
            yield _html("</div>")


def _own(content: str) -> list[Token] | None:
    """What a paragraph of our own marks becomes; None for any other paragraph."""
    if _COMMENT.fullmatch(content):
        return []
    if content == _CLOSING:
        return [_html(_CLOSING)]
    opening = _OPENING.fullmatch(content)
    if opening is None:
        return None
    summary = html.escape(html.unescape(opening[1]))
    return [_html(f"<details><summary>{summary}</summary>")]


def _html(text: str) -> Token:
    return Token("html_block", "", 0, content=f"{text}\n")


def _is_figure(target: str) -> bool:
    """Whether a link leads to a figure beside the note; on a page that stands alone it is inside, to be saved."""
    is_near = not urlsplit(target).scheme and not target.startswith("//")
    return is_near and mimetypes.guess_type(unquote(target))[0] in _FIGURES


def _inline(source: str, base: Path) -> str:
    """A figure as a data URI. As an image an SVG runs no script and fetches nothing."""
    if urlsplit(source).scheme or source.startswith("//"):
        raise UsageError(f"a page that stands alone takes no picture from elsewhere: {source}")
    path = Path(os.path.normpath(base / unquote(source)))  # the page's folder may not be there yet
    kind = mimetypes.guess_type(path.name)[0]
    if kind not in _FIGURES:
        raise UsageError(f"{path} is no figure that a page can hold: give SVG, PNG or JPEG")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the figure {path} cannot be read: {error.strerror or error}") from error
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
