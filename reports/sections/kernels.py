"""Times of the fused MoE kernel before and after, per batch size and routing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports import numbers
from reports.kernels import KernelConditions, KernelRow, KernelsDocument, KernelTime
from reports.markdown import Align, bullets, code, escape, heading, table
from reports.page import Page
from reports.telling import timed_kernels
from reports.tuning_document import Tuning


def kernels(page: Page) -> Iterator[str]:
    """A table per arm with kernel times, and the searches; nothing where there is neither."""
    timed, tunings = list(timed_kernels(page.experiment)), page.experiment.tunings
    if not timed and not tunings:
        return
    yield heading(page.marked("Kernel times"), 2)
    if tunings:
        yield bullets(map(_tuning, tunings))
    header = ["tokens in a step", "routing", "before (ms)", "after (ms)", "change", "share of the limit"]
    known = [(arm.label, document) for arm, document in timed]
    shown = [document for _, document in timed]
    # An arm that used a search's file has its times already.
    known += [(each.label, each.kernels) for each in tunings if each.kernels not in shown]
    for label, document in known:
        if document.rows:
            yield f"{page.marked('Table')}: kernels of {code(label)}. Routings are never averaged into one number."
            yield table(header, map(_row, document.rows), ["right", "left", "right", "right", "right", "right"])
        yield from _times(page, label, document)
    if page.kernels is not None:
        yield page.figure(page.kernels, "change of the kernel's time by batch size, a line per routing")


def _tuning(tuning: Tuning) -> str:
    """A search in one line: how long, whether all was tried, the file and its checksum."""
    document = tuning.document
    simulated = "SIMULATED: " if document.is_simulated else ""
    minutes = "" if document.minutes is None else f" {numbers.count(document.minutes)} minutes,"
    end = "everything was tried" if document.is_complete else "the budget ended it before everything was tried"
    name = document.file.rpartition("/")[2]
    digest = document.checksums.get(document.file, "not known")
    return f"{simulated}{code(tuning.label)} searched{minutes} {end}; {code(name)}, {code(digest)}"


_TIMES = ("tokens", "routing", "configuration", "µs per call", "interval", "error", "MB", "data sheet", "measured")
_ALIGNED: Sequence[Align] = ("right", "left", "left", "right", "right", "right", "right", "right", "right")


def _times(page: Page, label: str, document: KernelsDocument) -> Iterator[str]:
    """Every configuration with what it moves, held against both bandwidths; nothing where only changes are known."""
    if not document.times:
        return
    simulated = "SIMULATED, " if document.is_simulated else ""
    yield (
        f"{page.marked('Table')}: {simulated}every configuration of {code(label)}: median of the rounds with its 95 % "
        "interval, error against float32, bytes of the experts really hit, and these bytes per second as shares of the "
        f"data sheet's and of the measured bandwidth. {card_line(document.conditions)}"
    )
    yield table(_TIMES, map(_time, document.times), _ALIGNED)


def card_line(conditions: KernelConditions | None) -> str:
    """The card's clock, heat and what held it down, in one sentence."""
    if conditions is None or conditions.not_measured is not None:
        reason = "" if conditions is None else f" ({escape(conditions.not_measured or '')})"
        return f"Clock, temperature and throttle reasons of the card: not measured{reason}."
    held = conditions.held_down
    reasons = "not told" if held is None else ", ".join(f"{why} {numbers.share(part)}" for why, part in held.items())
    return (
        f"Meanwhile the card's clock was {numbers.count(conditions.sm_clock_median_mhz)} MHz (median), its temperature "
        f"at most {numbers.count(conditions.temperature_max_c)} °C; held down by: {reasons or 'nothing'}."
    )


def _time(row: KernelTime) -> list[str]:
    first = [numbers.count(row.tokens), escape(row.routing), escape(row.source)]
    if row.median_s is None:
        return [*first, "-", escape(row.failure or "-"), *["-"] * 4]
    return [
        *first,
        us(row.median_s),
        "-" if row.interval_s is None else f"{us(row.interval_s[0])} to {us(row.interval_s[1])}",
        "-" if row.relative_error is None else f"{row.relative_error:.2g}",
        "-" if row.bytes is None else f"{row.bytes / 1e6:.4g}",
        numbers.share(row.datasheet_share),
        numbers.share(row.measured_share),
    ]


def us(value_s: float) -> str:
    """Microseconds, to a tenth."""
    return f"{value_s * 1e6:.1f}"


def _row(row: KernelRow) -> list[str]:
    return [
        numbers.count(row.tokens),
        escape(row.routing),
        numbers.ms(row.before_s, unit=False),
        numbers.ms(row.after_s, unit=False),
        numbers.signed_share(row.change_share),
        numbers.share(row.limit_share),
    ]
