"""GSM8K as this gate asks it: an item, its prompt, and how many tokens its answer may take.

Problems by K. Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021 (openai/gsm8k, MIT). The worked
examples are our own, so that no item of the set and no published solution stands in a prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from gates.answers import FoundBy, read_answer
from traffic.errors import UsageError
from traffic.records import Message

QUICK_ITEMS = 50
"""The first of the set, in its own order; the whole test set has 1,319."""

TOKEN_BUDGET = 4096
"""An answer without thinking takes about 200 tokens and stops by itself; thinking takes some thousands."""

LEAST_TOKEN_BUDGET = 256
"""With less even a short solution is cut."""

INSTRUCTION = (
    "Solve this problem step by step. Then write the result on a last line of its own: "
    "four hash signs, a space and the plain number."
)

EXAMPLES = (
    (
        "A bakery fills 6 trays with 14 rolls each and has sold 59 rolls by noon. How many rolls are left?",
        "The trays hold 6 * 14 = 84 rolls. After the sales 84 - 59 = 25 rolls are left.\n#### 25",
    ),
    (
        "Mara reads 35 pages on Monday and twice as many on Tuesday. How many of her book's 260 pages are left?",
        "On Tuesday she reads 2 * 35 = 70 pages.\nThat makes 35 + 70 = 105 pages, 260 - 105 = 155 are left.\n#### 155",
    ),
    (
        "A ferry costs 12 euros, and half of it for a child. What do 3 adults and 4 children pay, in euros?",
        "A child pays 12 / 2 = 6 euros.\nTogether they pay 3 * 12 + 4 * 6 = 36 + 24 = 60 euros.\n#### 60",
    ),
    (
        "A tank holds 480 litres. First a quarter of it is pumped out, then 90 litres more. How many litres remain?",
        "A quarter is 480 / 4 = 120 litres, leaving 480 - 120 = 360.\nThen 360 - 90 = 270 litres remain.\n#### 270",
    ),
)
"""Question and worked solution. Turns of a chat, not one text: the server's template does the rest."""


@dataclass(frozen=True, slots=True)
class Item:
    """One problem. index: its place in the set, from 0. gold: the right number."""

    index: int
    question: str
    gold: Fraction


def item(index: int, question: str, solution: str) -> Item:
    """An item from a row of the set; a solution without `####` is the number itself. Raises ValueError without one."""
    marked = read_answer(f"#### {solution.rpartition('####')[2].strip()}")
    if marked.number is None or marked.found_by is not FoundBy.HASHES:
        raise ValueError(f"the answer ends in {solution[-20:]!r}, which is no number")
    return Item(index, question, marked.number)


def items_sha256(items: Iterable[Item]) -> str:
    """The checksum of questions and golds in their order; arms with another one were not asked the same."""
    digest = hashlib.sha256()
    for each in items:
        digest.update(json.dumps([each.question, str(each.gold)]).encode() + b"\n")
    return digest.hexdigest()


def messages(question: str) -> tuple[Message, ...]:
    """The prompt of one question: the worked examples as earlier turns, then the question. No system turn.

    Some templates refuse a system role, so the instruction stands in every user turn.
    """
    turns = [message for example, solution in EXAMPLES for message in (_ask(example), Message("assistant", solution))]
    return (*turns, _ask(question))


def _ask(question: str) -> Message:
    return Message("user", f"{INSTRUCTION}\n\n{question}")


def prompt_sha256() -> str:
    """The checksum of everything in a prompt but the question."""
    return hashlib.sha256(json.dumps([[each.role, each.text] for each in messages("")]).encode()).hexdigest()


def token_budget(max_model_len: int | None, prompt_tokens: int, wanted: int = TOKEN_BUDGET) -> int:
    """How many tokens an answer may take: `wanted`, or what the longest prompt leaves of the context.

    max_model_len: in tokens, None where unknown. Raises UsageError where that is too little for a solution.
    """
    budget = wanted if max_model_len is None else min(wanted, max_model_len - prompt_tokens)
    if budget < LEAST_TOKEN_BUDGET:
        raise UsageError(
            f"GSM8K answers need at least {LEAST_TOKEN_BUDGET} tokens, but there are {max(0, budget)} beside a prompt "
            f"of {prompt_tokens}: give the model a longer context, or a sweep --gate none"
        )
    return budget
