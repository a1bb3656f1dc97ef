"""The options of the accuracy gate, in a sweep and alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from gates.gsm8k import QUICK_ITEMS, TOKEN_BUDGET
from slo_bench.engine_options import EngineOptions, option
from slo_bench.options import Options

GATE = "accuracy gate"

_DUMMY = re.compile(r"--load[-_]format[=\s]\s*[\"']?dummy\b")


class AccuracyOptions(Options):
    """What is asked, and what must be right."""

    gsm8k_file: Path | None = option(
        None,
        "GSM8K items: JSON lines with question and answer (default: the hub's test set)",
        group=GATE,
        metavar="FILE",
    )
    items: str | None = option(
        None, "how many items, the first N of the set (quick: 50, full: all)", group=GATE, metavar="N|all"
    )
    accuracy_floor: float | None = option(
        None, "fail below this share of right answers (default: none)", group=GATE, metavar="SHARE", gt=0, le=1
    )
    token_budget: int = option(TOKEN_BUDGET, "the longest answer to an item, tokens", group=GATE, metavar="N", ge=1)

    @field_validator("items", mode="before")
    @classmethod
    def _count(cls, items: object) -> object:
        text = str(items)
        if items is not None and text != "all" and not re.fullmatch(r"[1-9][0-9]{0,6}", text):
            raise ValueError("give a number of items above 0, or all")
        return None if items is None else text

    @field_validator("gsm8k_file")
    @classmethod
    def _at_home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    def item_count(self, usual: int | None = QUICK_ITEMS) -> int | None:
        """How many items to ask; None for all. usual: where the options do not say."""
        if self.items is None:
            return usual
        return None if self.items == "all" else int(self.items)


class SweepGateOptions(AccuracyOptions):
    """The gate of a sweep or of an experiment's arms."""

    gate: Literal["gsm8k", "none"] | None = option(
        None,
        "whether answers are checked on the same server start, with as many requests in flight as at capacity "
        "(default: gsm8k; none in mode smoke and on the simulated engine)",
        group=GATE,
    )


def has_random_weights(options: EngineOptions) -> bool:
    """Whether the server that the options start is told to make its weights up."""
    return _DUMMY.search(" ".join([*options.vllm_arg, options.server_command or ""])) is not None
