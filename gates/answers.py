r"""The number that a completion gives as its answer, and whether it is the right one.

Two extractions. Strict: the completion marks its answer (`#### 18`, `\boxed{18}`, `A: 18`, "the answer is 18").
Flexible: the last number in the text, where nothing is marked. Before both, thinking is dropped and the text ends where
the model begins an example of its own. Numbers are compared exactly, with their sign; what was not answered is no
answer, never 0. Not read: numbers in words ("eighteen", "1.5 million" is 1.5).

Every pattern here is bounded or anchored, so that reading takes time in proportion to the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import partial

MAX_DIGITS = 1000
"""A longer numeral is a model that repeats itself; Python refuses to read 4,300 digits, and no gold has so many."""


class Grade(StrEnum):
    """What one completion is worth."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no answer"


class FoundBy(StrEnum):
    """Which extraction decided; the last one is the flexible one."""

    HASHES = "####"
    BOXED = "boxed"
    LABEL = "label"
    """`A: 18`, `Answer: 18`, on a line of its own."""
    SENTENCE = "sentence"
    """"The answer is 18"."""
    LAST_NUMBER = "last number"

    @property
    def is_strict(self) -> bool:
        """Whether the completion marked its answer."""
        return self is not FoundBy.LAST_NUMBER


@dataclass(frozen=True, slots=True)
class Answer:
    """What a completion answers. number and found_by are None where it answers nothing.

    is_cut_off: there is no answer because the completion ended before it, in its thinking or at the token limit.
    """

    number: Fraction | None = None
    found_by: FoundBy | None = None
    is_cut_off: bool = False

    def grade(self, gold: Fraction) -> Grade:
        """Against the right number."""
        if self.number is None:
            return Grade.NO_ANSWER
        return Grade.RIGHT if self.number == gold else Grade.WRONG


def grade(completion: str | None, gold: str | int | Fraction, *, is_cut: bool = False) -> Grade:
    """Whether a completion answers with the gold number. Raises ValueError for a gold without a number.

    completion: None is an answer without text. gold: a number, its text ("1,234") or a whole solution that marks it.
    is_cut: as in `read_answer`.
    """
    return read_answer(completion, is_cut=is_cut).grade(gold_number(gold))


def gold_number(gold: str | int | Fraction) -> Fraction:
    """The number of a gold: itself, its text, or a solution that marks it. Raises ValueError where there is none."""
    number = read_answer(gold).number if isinstance(gold, str) else Fraction(gold)
    if number is None:
        raise ValueError(f"{gold!r} has no number to grade against")
    return number


def read_answer(completion: str | None, *, is_cut: bool = False) -> Answer:
    """The answer of a completion; never raises.

    is_cut: the server stopped it at the token limit. Then the last number is whatever stood there, "the answer is 20"
    may be a thought on the way, and a number at the very end may be the front of a longer one: only a complete one
    behind `####` or in a box counts. A completion that went on to an example of its own had answered before.
    """
    spoken, has_open_thinking = _without_thinking(completion or "")
    text = _plain(spoken).lstrip()
    new_example = _NEW_EXAMPLE.search(text)
    if new_example is not None:
        text = text[: new_example.start()]
    is_cut = new_example is None and (is_cut or has_open_thinking)
    for found_by, statements in _DELIBERATE if is_cut else _STRICT:
        for statement in statements(text):
            if not (is_cut and text[statement.end :] in _MAY_GO_ON):
                return Answer(statement.number, found_by)
    if is_cut:
        return Answer(is_cut_off=True)
    number = _last_number(text)
    return Answer() if number is None else Answer(number, FoundBy.LAST_NUMBER)


_THINKING = re.compile(r"(<think(?:ing)?>|</think(?:ing)?>)", re.IGNORECASE)


def _without_thinking(text: str) -> tuple[str, bool]:
    """The text outside <think>...</think>, and whether the last one has no end.

    An end without a beginning closes thinking that the chat template opened in the prompt.
    """
    spoken: list[str] = []
    is_inside = False
    for piece in _THINKING.split(text):
        if _THINKING.fullmatch(piece):
            if piece.startswith("</") and not is_inside:
                spoken.clear()
            is_inside = not piece.startswith("</")
        elif not is_inside:
            spoken.append(piece)
    return "".join(spoken), is_inside


_NEW_EXAMPLE = re.compile(r"\n[ \t\r]*\n[ \t]*(?:#{1,6} )?(?:Question|Q)(?: ?\d{1,3})?[ \t]*:")
"""After a blank line only: the bare word stands in good answers too (R22). The text is stripped before, so a model that
begins by repeating its question is read."""

_CURRENCY = "$€£¥₹"
_CHARACTERS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{FULLWIDTH HYPHEN-MINUS}": "-",
        "\N{NON-BREAKING HYPHEN}": "-",
        "`": " ",
    }
)
_LATEX = (
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\!"), ""),
    (re.compile(r"(?<=\d)\\,(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\\[()\[\],;: ]"), " "),
    (re.compile(r"\\(?:text|textbf|mathbf|mathrm)[ ]?\{([^{}]{0,100})\}"), r" \1 "),
    (re.compile(r"(?<=\d)(?=\\[dt]?frac\{)"), " "),
    (re.compile(r"\\[dt]?frac\{([^{}]{1,40})\}\{([^{}]{1,40})\}"), r"\1/\2"),
)
_MARKDOWN = (
    (re.compile(r"(?<=\d)(?:['\N{RIGHT SINGLE QUOTATION MARK}\u00a0\u202f\u2009]|\{,\})(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\*\*|__|[\u00a0\u202f\u2009]"), " "),
    (re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])"), " "),
    (re.compile(rf"(?<![\w.)%])\u2013(?=[{_CURRENCY}]?\.?\d)"), "-"),  # an en dash that stands as a minus
)
_VULGAR_FRACTION = re.compile("[¼-¾⅐-⅞]")
"""What stands around numbers and between their thousands; the order matters. A blank keeps 3½ from becoming 31/2."""


def _plain(text: str) -> str:
    """The text without markdown and LaTeX around its numbers; thousands separated by commas."""
    text = text.translate(_CHARACTERS)
    for pattern, replacement in (_LATEX if "\\" in text else ()) + _MARKDOWN:
        text = pattern.sub(replacement, text)
    return _VULGAR_FRACTION.sub(lambda found: unicodedata.normalize("NFKC", found[0]).replace("\u2044", "/"), text)


_NUMERAL = r"(?:[0-9]+(?:,[0-9]+)*(?:\.[0-9]+)?|(?<!\w)\.[0-9]+)"
_NUMBER = rf"(?:(?P<whole>[0-9]+) {{1,2}}(?=[0-9]+/[0-9]))?(?P<top>{_NUMERAL})(?: ?/ ?(?P<bottom>{_NUMERAL}))?"
_STATED = re.compile(rf"[\s*_+:=~≈(\[{{{_CURRENCY}]{{0,12}}(?P<sign>-[ ]?[{_CURRENCY}]?)?{_NUMBER}")
_ANYWHERE = re.compile(rf"(?<![\d^])(?<!\^\{{)(?P<sign>-[{_CURRENCY}]?|[{_CURRENCY}]-)?{_NUMBER}")
"""At a given place, behind whatever decorates a number; and wherever it stands, but no exponent (ft^2)."""

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}")
"""Thousands as most of the world groups them, or as India does."""


def _numeral(text: str, *, last: bool) -> Fraction | None:
    """A numeral's value; of one whose commas separate no thousands, the first or the last part's."""
    whole, dot, decimals = text.partition(".")
    if "," in whole:
        if _GROUPED.fullmatch(whole):
            whole = whole.replace(",", "")
        elif last:
            whole = whole.rpartition(",")[2]
        else:
            whole, dot, decimals = whole.partition(",")[0], "", ""
    if len(whole) + len(decimals) > MAX_DIGITS:
        return None
    return Fraction(f"{whole or 0}{dot}{decimals}")


def _value(found: re.Match[str], *, last: bool) -> Fraction | None:
    """A number's value without its sign; None for too many digits or a division by 0."""
    value = _numeral(found["top"], last=last)
    if value is not None and found["bottom"]:
        bottom = _numeral(found["bottom"], last=False)
        value = value / bottom if bottom else None
    if value is not None and found["whole"]:
        whole = _numeral(found["whole"], last=last)
        value = None if whole is None else whole + value
    return value


@dataclass(frozen=True, slots=True)
class _Statement:
    """A marked number and where in the text it ends."""

    number: Fraction
    end: int
    rest: str
    """What follows on its line."""


_EXPRESSION = re.compile(rf"\s?[-+*/^x\u00d7\u00f7\u00b7]\s?[(.\d{_CURRENCY}]")
_LINE_CHARS = 200


def _stated(text: str, start: int) -> _Statement | None:
    """The number that stands right at `start`; of a calculation, its result."""
    found = _STATED.match(text, start)
    if found is None:
        return None
    rest = text[found.end() : found.end() + _LINE_CHARS].partition("\n")[0]
    has_result = "=" in rest
    if _EXPRESSION.match(rest) or (found["bottom"] and has_result):
        if not has_result:
            return None
        found = _STATED.match(text, found.end() + rest.rindex("=") + 1)
        if found is None:
            return None
    value = _value(found, last=False)
    if value is None:
        return None
    rest = text[found.end() : found.end() + _LINE_CHARS].partition("\n")[0]
    return _Statement(-value if "-" in (found["sign"] or "") else value, found.end(), rest)


_HASHES = re.compile(r"(?<!#)####(?!#)")
_BOXED = re.compile(r"\\f?boxed[ ]?\{")
_LABEL = re.compile(r"^[ \t>*_#-]{0,12}(?:(?:the |my )?(?:final )?answer|a)[ \t]{0,4}:", re.IGNORECASE | re.MULTILINE)
_SENTENCE = re.compile(r"\banswer\b[^.:=\n]{0,60}?\b(?:is|was|be|equals)\b", re.IGNORECASE)
_NUMBERED_HEADING = re.compile(r"[.):][ \t]+\S")
_ONE_NUMBER = re.compile(r"[^\d=(]*(?:\(.*)?")


def _after_hashes(text: str) -> Iterator[_Statement]:
    """The first one counts (R22), but `#### 1. Count the eggs` is a heading: it counts headings."""
    for ordinal, found in enumerate(_HASHES.finditer(text), start=1):
        statement = _stated(text, found.end())
        if statement and not (statement.number == ordinal and _NUMBERED_HEADING.match(statement.rest)):
            yield statement


def _after_labels(text: str) -> Iterator[_Statement]:
    """A line that goes on with more numbers is a solution, not an answer."""
    return (each for each in _latest(_LABEL, text) if _ONE_NUMBER.fullmatch(each.rest))


def _latest(marker: re.Pattern[str], text: str) -> Iterator[_Statement]:
    """What stands behind a marker, from the end of the text."""
    for found in reversed(list(marker.finditer(text))):
        statement = _stated(text, found.end())
        if statement:
            yield statement


_STRICT = (
    (FoundBy.HASHES, _after_hashes),
    (FoundBy.BOXED, partial(_latest, _BOXED)),
    (FoundBy.LABEL, _after_labels),
    (FoundBy.SENTENCE, partial(_latest, _SENTENCE)),
)
"""By how deliberate they are."""

_DELIBERATE = _STRICT[:2]
_MAY_GO_ON = ("", ".", ",")


def _last_number(text: str) -> Fraction | None:
    """The last number of the text."""
    last = None
    for found in _ANYWHERE.finditer(text):
        last = found
    if last is None:
        return None
    value = _value(last, last=True)
    return -value if value is not None and last["sign"] and _is_sign(text, last.start()) else value


def _is_sign(text: str, position: int) -> bool:
    """Whether a minus is a sign, not a subtraction (10 -3), a range (5-7) or a hyphen (item-3)."""
    before = text[max(0, position - 8) : position]
    if before[-1:].isspace():
        return not re.search(r"[\d)%]$", before.rstrip())
    return not re.search(r"[\w.)\]}%]$", before)
