"""Word problems of our own in the rows of GSM8K: a question, and a solution that ends in `#### N`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from traffic.randomness import stream

COUNT = 48

NAMES = "Anna Bram Cleo Dario Edda Finn Greta Hugo Ines Jaro Kaja Leif".split()


@dataclass(frozen=True, slots=True)
class Problem:
    """One row."""

    question: str
    answer: str


def _baskets(name: str, a: int, b: int, c: int) -> Problem:
    return Problem(
        f"{name} picks {a} baskets of {b} pears and gives {c} pears away. How many pears are left?",
        f"{name} picks {a} * {b} = {a * b} pears. Then {a * b} - {c} = {a * b - c} are left.\n#### {a * b - c}",
    )


def _savings(name: str, a: int, b: int, c: int) -> Problem:
    return Problem(
        f"{name} saves {b} euros a week for {a} weeks and has {c} euros already. How many euros is that in all?",
        f"In {a} weeks {name} saves {a} * {b} = {a * b} euros. With {c} that is {a * b + c}.\n#### {a * b + c}",
    )


def _train(name: str, a: int, b: int, c: int) -> Problem:
    return Problem(
        f"A train has {a} cars with {b} seats each. {name} counts {c} free seats. How many seats are taken?",
        f"There are {a} * {b} = {a * b} seats. So {a * b} - {c} = {a * b - c} are taken.\n#### {a * b - c}",
    )


def _shelves(name: str, a: int, b: int, c: int) -> Problem:
    return Problem(
        f"{name} has {a} shelves of {b} books and buys {c} more books. How many books does {name} have now?",
        f"The shelves hold {a} * {b} = {a * b} books. Now there are {a * b} + {c} = {a * b + c}.\n#### {a * b + c}",
    )


_SHAPES: tuple[Callable[[str, int, int, int], Problem], ...] = (_baskets, _savings, _train, _shelves)


def problems() -> tuple[Problem, ...]:
    """The problems, always the same. No two have the same person in the same story, so no two questions are alike."""
    draw = stream("tiny-moe-problems")
    made = []
    for number in range(COUNT):
        shape = _SHAPES[number % len(_SHAPES)]
        name = NAMES[number // len(_SHAPES)]
        a, b, c = int(draw.integers(3, 10)), int(draw.integers(11, 30)), int(draw.integers(2, 30))
        made.append(shape(name, a, b, c))
    return tuple(made)


def write_problems(rows: Iterable[Problem], file: Path) -> None:
    """The rows as JSON lines."""
    file.write_text("".join(json.dumps({"question": each.question, "answer": each.answer}) + "\n" for each in rows))
