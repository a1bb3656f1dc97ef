"""Prompts of a chat data set: a local file, or any set that the library `datasets` can load.

A set is smaller than a run, and every rate sees the same rows. Each prompt therefore opens with a fresh sentence of our
own, so that no prompt is sent twice to one server start and no cache can hold its beginning.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from traffic.chat_files import dataset_rows, is_file_name, row_fault
from traffic.chat_rows import ChatRow, NoChatError, chat_row
from traffic.errors import UsageError
from traffic.prompts import TextKey, TokenRatio, sentences
from traffic.randomness import stream
from traffic.records import Message
from traffic.workload import Lengths

KINDS = ("one turn", "several turns")

SENTENCE_WORDS = 15
"""The most that one sentence of ours has."""

OPENINGS = 100
"""Sentences whose mean size is taken for that of each."""

MOST_ANSWER_TOKENS = 1000
"""Longer reference answers are cut to this, chat-mix's longest: a probe drains as long as its longest answer takes."""

MOST_ROWS = 10_000
"""Of a larger set so many are taken at random: more than a window sends, and read in seconds."""

PER_BYTE = TokenRatio(tokens_per_word=0.25)
"""Before a server has been asked: about 0.22 tokens a byte of English, more of code. Bytes tell languages apart less
than words do, and some languages put no blanks between words."""

CountTokens = Callable[[str], int]
"""Tokens of a text, without any template."""


@dataclass(frozen=True, slots=True, eq=False)
class ChatDataset:
    """A data set as a workload; arrays of shape (rows,).

    size: how prompt_sizes (opening included) and answer_sizes were counted, in bytes or tokens. prompt_ratio and
    answer_ratio: how a size becomes the server's tokens; guessed: before the server was asked. output_tokens: the
    length of every answer, None for that of the row's own.
    """

    name: str
    source: str
    rows: tuple[ChatRow, ...]
    size: CountTokens
    prompt_sizes: npt.NDArray[np.int64]
    answer_sizes: npt.NDArray[np.int64]
    guessed: TokenRatio
    prompt_ratio: TokenRatio
    answer_ratio: TokenRatio
    output_tokens: int | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Whether a prompt holds a history."""
        return KINDS

    @property
    def max_input_tokens(self) -> int:
        """The longest prompt, as far as its size tells."""
        return int(self._input_tokens().max())

    @property
    def max_output_tokens(self) -> int:
        """The longest answer."""
        return int(self._output_tokens().max())

    def needed(self, requests: int) -> str:
        """How many rows so many requests of one window need, and how many there are, in one line."""
        again = "rows come again within it" if requests > len(self.rows) else "none comes again within it"
        return (
            f"a window needs up to {requests:,} rows and {self.name} has {len(self.rows):,}: {again}; windows at other "
            "rates send the same rows, each time after other first sentences"
        )

    def measured(self, ratio: TokenRatio) -> ChatDataset:
        """The same rows, as long as this ratio makes them."""
        return replace(self, prompt_ratio=ratio, answer_ratio=ratio)

    def recounted(self, ratio: TokenRatio) -> ChatDataset:
        """The same rows and answers, with prompts as long as this ratio makes them: all arms ask for equal answers."""
        return replace(self, prompt_ratio=ratio)

    def limit_for(self, prompt_tokens: int) -> int:
        """The longest_prompt_tokens that leaves out what the server counts as more: the set was read before that."""
        size = max(0.0, prompt_tokens - self.prompt_ratio.overhead_tokens) / self.prompt_ratio.tokens_per_word
        return int(self.guessed.tokens_per_word * size)

    def prompt_size(self, messages: Sequence[Message]) -> int:
        """The size of a prompt."""
        return sum(self.size(message.text) for message in messages)

    def draw(self, seed: int, repeat: int, n: int, length_scale: float = 1.0) -> Lengths:
        """The rows of the first n requests: all in a random order, then all again in another."""
        if length_scale != 1:
            raise UsageError(
                "--length-scale cannot scale prompts of --dataset; --max-input-tokens leaves long ones out"
            )
        generator, count = stream("data set", seed, repeat), len(self.rows)
        rounds = [round_ * count + generator.permutation(count) for round_ in range(1 + n // count)]
        places = np.concatenate(rounds)[:n]
        rows = places % count
        has_history = np.array([len(row.messages) > 1 for row in self.rows], dtype=np.int64)
        return Lengths(
            kinds=has_history[rows],
            input_tokens=self._input_tokens()[rows],
            output_tokens=self._output_tokens()[rows],
            shared_tokens=np.zeros(n, dtype=np.int64),
            rows=places,
        )

    def texts(self, lengths: Lengths, ratio: TokenRatio, key: TextKey) -> list[tuple[Message, ...]]:  # noqa: ARG002 - rows are as long as they are
        """The rows' own words after a fresh first sentence. lengths: of `draw`. Raises ValueError for others."""
        if lengths.rows is None:
            raise ValueError("these lengths name no rows")
        generator = key.generator()
        return [_opened(self.rows[place % len(self.rows)].messages, generator) for place in lengths.rows.tolist()]

    def _input_tokens(self) -> npt.NDArray[np.int64]:
        tokens = self.prompt_ratio.overhead_tokens + self.prompt_ratio.tokens_per_word * self.prompt_sizes
        rounded: npt.NDArray[np.int64] = np.rint(tokens).astype(np.int64)
        return np.maximum(1, rounded)

    def _output_tokens(self) -> npt.NDArray[np.int64]:
        if self.output_tokens is not None:
            return np.full(len(self.rows), self.output_tokens, dtype=np.int64)
        rounded: npt.NDArray[np.int64] = np.rint(self.answer_ratio.tokens_per_word * self.answer_sizes).astype(np.int64)
        return np.clip(rounded, 1, MOST_ANSWER_TOKENS)


def _opened(messages: Sequence[Message], generator: np.random.Generator) -> tuple[Message, ...]:
    """The messages with a sentence in front that no other prompt begins with."""
    first, *rest = messages
    return (Message(first.role, _opening(generator) + first.text), *rest)


def _opening(generator: np.random.Generator) -> str:
    text = " ".join(sentences(generator, SENTENCE_WORDS))
    return text[: text.index(".") + 1] + "\n\n"


def utf8_bytes(text: str) -> int:
    """The size of a text where nobody has a tokenizer."""
    return len(text.encode("utf-8", errors="replace"))


def chat_dataset(
    name: str,
    *,
    split: str = "train",
    config: str | None = None,
    longest_prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    tokenizer: CountTokens | None = None,
) -> ChatDataset:
    """The data set of that name; `traffic.chat_files.dataset_rows` says which names there are.

    Left out are rows without a user's turn, rows whose prompt is longer than longest_prompt_tokens (estimated where
    there is no tokenizer), and, unless output_tokens is given, rows without an answer to take the length from. `source`
    says how many. Raises UsageError, with the row, for one that is no chat, and where none is left.
    """
    size, ratio = (utf8_bytes, PER_BYTE) if tokenizer is None else (tokenizer, TokenRatio())
    stored = dataset_rows(name, split=split, config=config)
    generator = stream("openings")
    opening_size = round(sum(size(_opening(generator)) for _ in range(OPENINGS)) / OPENINGS)
    kept: list[tuple[ChatRow, int, int]] = []
    left_out: Counter[str] = Counter()
    for index in sorted(stream("data set rows", len(stored)).permutation(len(stored))[:MOST_ROWS].tolist()):
        try:
            row = chat_row(stored[index])
        except NoChatError as error:
            raise row_fault(name, index + 1, str(error)) from None
        if row is None:
            left_out["without a user's turn"] += 1
            continue
        prompt_size = opening_size + sum(size(message.text) for message in row.messages)
        if row.answer is None and output_tokens is None:
            left_out["without an answer, whose length --output-tokens would give"] += 1
        elif longest_prompt_tokens is not None and ratio.tokens_per_word * prompt_size > longest_prompt_tokens:
            left_out[f"longer than {longest_prompt_tokens:,} tokens"] += 1
        else:
            kept.append((row, prompt_size, 0 if row.answer is None else size(row.answer)))
    reasons = "; ".join(f"{count:,} left out: {reason}" for reason, count in left_out.items())
    if not kept:
        raise UsageError(f"--dataset {name}: no row can be asked ({reasons or 'it is empty'})")
    rows, prompt_sizes, answer_sizes = zip(*kept, strict=True)
    said = f"{len(rows):,} of {len(stored):,} rows of {name} (content {_digest(rows)})"
    return ChatDataset(
        name=Path(name).stem if is_file_name(name) else Path(name).name,
        source="; ".join(part for part in (said, reasons, "each prompt after a fresh first sentence") if part),
        rows=rows,
        size=size,
        prompt_sizes=np.array(prompt_sizes, dtype=np.int64),
        answer_sizes=np.array(answer_sizes, dtype=np.int64),
        guessed=ratio,
        prompt_ratio=ratio,
        answer_ratio=ratio,
        output_tokens=output_tokens,
    )


def _digest(rows: Sequence[ChatRow]) -> str:
    """Twelve hexadecimal digits that another content would not have."""
    return hashlib.sha256(repr(rows).encode("utf-8", errors="surrogatepass")).hexdigest()[:12]
