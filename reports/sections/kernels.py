"""Times of the fused MoE kernel before and after, per batch size and routing."""

from __future__ import annotations

from collections.abc import Iterator

from reports import numbers
from reports.kernels import KernelRow
from reports.markdown import code, escape, heading, table
from reports.page import Page
from reports.telling import timed_kernels


def kernels(page: Page) -> Iterator[str]:
    """A table per arm with kernel times; nothing where kernels were not timed."""
    timed = list(timed_kernels(page.experiment))
    if not timed:
        return
    yield heading(page.marked("Kernel times"), 2)
    header = ["tokens in a step", "routing", "before (ms)", "after (ms)", "change", "share of the limit"]
    for arm, document in timed:
        yield f"{page.marked('Table')}: kernels of {code(arm.label)}. Routings are never averaged into one number."
        yield table(header, map(_row, document.rows), ["right", "left", "right", "right", "right", "right"])
    if page.kernels is not None:
        yield page.figure(page.kernels, "change of the kernel's time by batch size, a line per routing")


def _row(row: KernelRow) -> list[str]:
    return [
        numbers.count(row.tokens),
        escape(row.routing),
        numbers.ms(row.before_s, unit=False),
        numbers.ms(row.after_s, unit=False),
        numbers.signed_share(row.change_share),
        numbers.share(row.limit_share),
    ]
