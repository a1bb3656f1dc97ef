"""The names of what the maker writes, and its own account of it; readable without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

GOOD, PROBLEMS, MADE = "good", "problems.jsonl", "made.json"

SLIGHT, NOISE = 0.1, 3.0
"""Standard deviations of the noise, in units of the weights' own: one that must not matter, and the damage.

With four seeds of the training and three draws each, the slight noise changed no answer and the damage left 1 to 22 of
48 right. More of it makes the model talk on without an end, and answers that are cut are no verdict.
"""

DOSES = (SLIGHT, NOISE)
DRAWS = 3
"""Draws of the noise per dose: what one of them does might be luck."""


def damaged(folder: Path, noise: float = NOISE, draw: int = 0) -> Path:
    """Where a damaged copy is."""
    return folder / f"noise-{noise:g}-{draw}"


@dataclass(frozen=True, slots=True)
class Made:
    """What was made.

    surety: the probability of the least sure token of all solutions. share_known: of the problems, in the good
    checkpoint. layer, expert: where the noise went, with the share of the solutions' tokens that the router sends
    there: of all tokens, and in the solution that needs the expert least. share_known_after: by noise, one per draw.
    """

    steps: int
    trained_s: float
    surety: float
    share_known: float
    layer: int
    expert: int
    token_share: float
    least_share: float
    share_known_after: dict[float, list[float]]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The account in a folder."""
        values = json.loads((folder / MADE).read_text())
        values["share_known_after"] = {float(noise): known for noise, known in values["share_known_after"].items()}
        return cls(**values)
