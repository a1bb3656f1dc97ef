"""Prompt text: natural language from a generator of our own words, fresh for every probe.

Random tokens would route unnaturally in a mixture of experts and seldom survive a tokenizer round trip, so sentences
are made of English words. Text comes from (seed, server start, rate, repeat): no prompt is sent twice to one server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traffic.randomness import rate_key, stream
from traffic.records import Message

_SUBJECTS = (
    "engineer farmer pilot nurse librarian carpenter teacher sailor baker gardener clerk painter doctor driver writer "
    "chemist dancer printer miner weaver surgeon lawyer singer tailor plumber potter ranger scholar trader mason "
    "archivist beekeeper cartographer brewer courier director editor fisher glazier historian inspector joiner"
).split()
_OBJECTS = (
    "bridge harvest engine ledger letter window garden machine river station contract parcel kitchen harbour timetable "
    "museum signal warehouse notebook orchard tunnel workshop lantern budget forecast vessel archive meadow factory "
    "recipe journey stairway painting village market telescope barrel compass carriage festival quarry greenhouse "
    "lighthouse manual library furnace antenna generator pipeline schedule catalogue"
).split()
_VERBS = (
    "repaired measured opened sketched described counted moved painted borrowed inspected delivered rebuilt cleaned "
    "ordered weighed sorted finished planned doubled traced drained sealed polished labelled replaced surveyed "
    "financed photographed compared demolished registered insulated"
).split()
_QUALITIES = (
    "old narrow quiet heavy bright northern wooden crowded distant careful broken early familiar golden hollow damp "
    "modern patient rural shallow steep sudden thin uneven useful vacant warm yellow ancient brittle copper dusty "
    "empty frozen gentle honest idle jagged keen loose"
).split()
_TIMES = (
    (
        "yesterday tomorrow before_noon after_lunch at_dawn in_winter last_spring this_week every_Monday at_midnight "
        "during_the_storm in_October after_the_holiday within_an_hour on_Thursday for_a_decade"
    )
    .replace("_", "\x00")
    .split()
)
_LINKS = "because although while until since unless whereas so".split()
_SLOTS = (_QUALITIES, _SUBJECTS, _VERBS, _QUALITIES, _OBJECTS, _TIMES, _LINKS, _SUBJECTS, _VERBS, _OBJECTS)
_WORDS_PER_SENTENCE = 13
"""At least: "Q s v the q o t, l the s v the o."; two-word times make some longer."""

_TRIES = 10
_LEAST_UNIQUE_WORDS = 3
"""A prompt that was drawn before is drawn again; one or two words cannot always be new, and no cache keeps them."""

HISTORY = "turn with history"
"""The class whose prompts hold an earlier turn and its answer."""

_LONG_ANSWER_ASK = "Write a long and detailed continuation of this account, paragraph by paragraph:"
_DOCUMENT_ASK = "Read the document above again, then answer the question that follows."
_DOCUMENT_QUESTION = "Which of the people above finished the work, and what did it cost them?"


@dataclass(frozen=True, slots=True)
class TokenRatio:
    """How words become the server's tokens: tokens = overhead_tokens + tokens_per_word x words.

    Measured on the server (`slo_bench.calibration`); 1 and 0 for an engine that counts words.
    """

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0

    def words(self, tokens: int) -> int:
        """Words for a prompt of that many tokens; at least one."""
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_per_word))


@dataclass(frozen=True, slots=True)
class TextKey:
    """What prompts are drawn from, so that no text is sent twice to one server.

    start: how many servers this run started before. rate_rps: None for a closed loop. attempt: further tries of the
    same window on the same server. index: of the one request that is asked for, where a closed loop makes its prompts
    one by one.
    """

    seed: int
    start: int
    rate_rps: float | None
    repeat: int
    attempt: int = 0
    index: int | None = None

    def generator(self) -> np.random.Generator:
        """For text that belongs to one request, or to all requests in their order."""
        if self.index is None:
            return self.shared("prompts")
        return stream("closed prompts", self.seed, self.start, self.repeat, self.attempt, self.index)

    def shared(self, purpose: str, *more: int) -> np.random.Generator:
        """For text that several requests of one probe have in common: the same whichever request asks."""
        rate = () if self.rate_rps is None else (rate_key(self.rate_rps),)
        return stream(purpose, self.seed, self.start, *rate, self.repeat, self.attempt, *more)


def sentences(generator: np.random.Generator, words: int) -> list[str]:
    """Exactly `words` English words, as a list of words in sentences; the last sentence may be cut short."""
    count = words // _WORDS_PER_SENTENCE + 1
    picks = [generator.integers(0, len(slot), count).tolist() for slot in _SLOTS]
    text: list[str] = []
    for row in zip(*picks, strict=True):
        quality, who, did, other, what, when, link, second, then, last = (
            slot[index] for slot, index in zip(_SLOTS, row, strict=True)
        )
        text += [quality.capitalize(), f"{who}s", did, "the", other, what, *when.split("\x00")]
        text[-1] += ","
        text += [link, "the", second, then, "the", last + "."]
    return text[:words]


def prompt(generator: np.random.Generator, kind: str, words: int) -> tuple[Message, ...]:
    """One prompt of about `words` words in the shape of its class; unknown classes are a single user turn."""
    if kind == HISTORY and words >= 40:  # noqa: PLR2004 - shorter histories have nothing to split
        text = sentences(generator, words)
        cuts = [0, words * 3 // 10, words * 8 // 10, words]
        roles = ("user", "assistant", "user")
        return tuple(
            Message(role, " ".join(text[start:end]))
            for role, start, end in zip(roles, cuts[:-1], cuts[1:], strict=True)
        )
    opening, closing = {
        "document question": (_DOCUMENT_ASK, _DOCUMENT_QUESTION),
        "long answer": ("", _LONG_ANSWER_ASK),
    }.get(kind, ("", ""))
    frame = len(opening.split()) + len(closing.split())
    if words <= 2 * frame:
        return (Message("user", " ".join(sentences(generator, words))),)
    body = " ".join(sentences(generator, words - frame))
    # The fixed wording stands after the fresh text, so that no two prompts share a prefix that a cache could keep.
    return (Message("user", " ".join(part for part in (body, opening, closing) if part)),)


def prompts(
    kinds: Sequence[str], input_tokens: Sequence[int], ratio: TokenRatio, key: TextKey
) -> list[tuple[Message, ...]]:
    """The prompts of one probe, one per request; none is drawn twice where its length allows it."""
    generator = key.generator()
    seen: set[tuple[Message, ...]] = set()
    texts = []
    for kind, tokens in zip(kinds, input_tokens, strict=True):
        words = ratio.words(tokens)
        text = prompt(generator, kind, words)
        for _ in range(_TRIES if words >= _LEAST_UNIQUE_WORDS else 0):
            if text not in seen:
                break
            text = prompt(generator, kind, words)
        seen.add(text)
        texts.append(text)
    return texts
