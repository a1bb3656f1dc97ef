"""What an author adds to a note: its number, remarks and links. The note is made anew each time; remarks are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.html import remarks_of
from reports.markdown import bullets, escape, heading
from slo_bench.report.options import ReportOptions
from traffic.errors import UsageError

_BEGIN = "<!-- own remarks: kept when the note is made again -->"
_END = "<!-- end of own remarks -->"


@dataclass(frozen=True, slots=True)
class OwnWords:
    """number: of the note. remarks: Markdown, None without any. see_also: addresses."""

    number: int | None = None
    remarks: str | None = None
    see_also: Sequence[str] = ()


def own_words(options: ReportOptions) -> OwnWords:
    """What was given, with the remarks of the note or page that is there already where no others are.

    Raises UsageError for remarks that cannot be read, and for some that hold the marks that keep them.
    """
    remarks = _kept(options) if options.remarks is None else _read(options.remarks)
    if remarks is not None and (_BEGIN in remarks or _END in remarks):
        raise UsageError(
            f"--remarks {options.remarks} holds the line {_END!r}, which ends remarks in a note: remove it"
        )
    return OwnWords(options.number, remarks, options.see_also)


def _kept(options: ReportOptions) -> str | None:
    if options.form != "html" or options.output is None:
        return kept_remarks(options.output)
    return remarks_of(_read(options.output)) if options.output.is_file() else None


def kept_remarks(note: Path | None) -> str | None:
    """The remarks in a note of ours; None where there is no note, or none in it."""
    if note is None or not note.is_file():
        return None
    text = _read(note)
    _, begin, rest = text.partition(f"{_BEGIN}\n")
    remarks, end, _ = rest.partition(_END)
    return remarks.strip() if begin and end else None


def with_own_words(text: str, words: OwnWords) -> str:
    """The note with them: the number before its title, the rest at its end."""
    if words.number is not None:
        text = text.replace("# ", f"# Lab note {words.number}. ", 1)
    parts = [text.rstrip("\n")]
    if words.remarks:
        parts += [heading("Remarks", 2), f"{_BEGIN}\n\n{words.remarks.strip()}\n\n{_END}"]
    if words.see_also:
        parts += [heading("See also", 2), bullets(_address(each) for each in words.see_also)]
    return "\n\n".join(parts) + "\n"


def _address(target: str) -> str:
    """An address as a link where it is one."""
    is_web = target.startswith(("https://", "http://")) and not set(target) & set(' <>"\\')
    return f"<{target}>" if is_web else escape(target)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path} cannot be read: {reason or error}") from error
