"""Conversations: a user reads the answer, thinks, and asks on; each prompt holds all that was said before.

First turns come by an arrival process, later ones after the answer that they follow: an open loop of conversations, and
a closed loop within each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtri

from traffic.arrivals import Arrivals
from traffic.errors import UsageError
from traffic.prompts import HISTORY, TextKey, TokenRatio, prompts
from traffic.randomness import first, stream
from traffic.records import Message
from traffic.workload import CHAT_MIX, Lengths, check_scale

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TURN = CHAT_MIX.classes[0]
"""What a user says in one turn and how long the answer is: chat-mix's short turn."""

MOST_USER_TOKENS, MOST_ANSWER_TOKENS = 1024, 512

FIRST, LATER = 0, 1
"""Indices into the kinds."""

LEAD_SPANS = 3.0
"""Conversations begin this many times the longest mean span before a probe: at its start as many are under way as
later, but for those that still wait for an answer."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Requests in the order of their earliest due times; arrays of shape (n,).

    due_s: of a later turn the earliest that can be: think times without the answers between them. after: index of the
    turn that this one follows, -1 for none. think_s: between that one's end and this one.
    """

    due_s: Floats
    lengths: Lengths
    after: Ints
    think_s: Floats


def single_turns(due_s: Floats, lengths: Lengths) -> Turns:
    """Requests that follow nothing."""
    return Turns(due_s, lengths, np.full(len(due_s), -1), np.zeros(len(due_s)))


@dataclass(frozen=True, slots=True)
class Conversations:
    """The multi-turn workload. mean_turns, most_turns: of a conversation. mean_think_s: exponential think times.

    The number of turns is geometric, cut at most_turns, with the ratio that makes mean_turns its mean.
    """

    mean_turns: float = 3.0
    most_turns: int = 8
    mean_think_s: float = 5.0

    def __post_init__(self) -> None:
        """Raise UsageError for turns that no such distribution has."""
        highest = (self.most_turns + 1) / 2
        if not 1 <= self.mean_turns <= highest:
            raise UsageError(
                f"conversations of at most {self.most_turns} turns have a mean of 1 to {highest:g}, "
                f"not {self.mean_turns:g}"
            )
        if not 0 <= self.mean_think_s < np.inf:
            raise UsageError(f"the think time must be 0 or more seconds, not {self.mean_think_s:g}")

    @property
    def name(self) -> str:
        """With what can be set."""
        return f"multi-turn-{self.mean_turns:g}-of-{self.most_turns}"

    @property
    def source(self) -> str:
        """What a conversation is made of."""
        return (
            f"conversations of {self.mean_turns:g} turns on average, {self.most_turns} at most, each with the lengths "
            f"of chat-mix's {TURN.name}, {self.mean_think_s:g} s of thinking between them"
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """First and later turns."""
        return ("first turn", HISTORY)

    @property
    def max_input_tokens(self) -> int:
        """Every turn and every answer at its longest."""
        return self.most_turns * MOST_USER_TOKENS + (self.most_turns - 1) * MOST_ANSWER_TOKENS

    @property
    def max_output_tokens(self) -> int:
        """Of one answer."""
        return MOST_ANSWER_TOKENS

    @property
    def lead_s(self) -> float:
        """Seconds before a probe at which conversations begin."""
        return LEAD_SPANS * (self.most_turns - 1) * self.mean_think_s

    def turns(
        self, arrivals: Arrivals, rate_rps: float, seed: int, repeat: int, *, horizon_s: float, length_scale: float
    ) -> Turns:
        """All turns that may be due before the horizon; conversations arrive so that rate_rps counts requests.

        The first turn seen of a conversation that began before the probe brings its history along.
        """
        begin_s = arrivals.due_s(rate_rps / self.mean_turns, seed, repeat, horizon_s + self.lead_s) - self.lead_s
        script = self._script(seed, repeat, len(begin_s), length_scale)
        due_s = begin_s[:, None] + np.cumsum(script.think_s, axis=1)
        rows, turns = np.nonzero(script.exists & (due_s >= 0) & (due_s < horizon_s))
        order = np.lexsort((turns, rows, due_s[rows, turns]))
        rows, turns = rows[order], turns[order]
        index = np.full((len(begin_s), self.most_turns + 1), -1)
        index[rows, turns + 1] = np.arange(len(rows))
        after = index[rows, turns]
        return Turns(
            due_s=due_s[rows, turns],
            lengths=script.lengths(rows, turns, after >= 0, length_scale),
            after=after,
            think_s=np.where(after >= 0, script.think_s[rows, turns], 0.0),
        )

    def draw(self, seed: int, repeat: int, n: int, length_scale: float = 1.0) -> Lengths:
        """The first n turns, one conversation after another; every one brings its history along."""
        script = self._script(seed, repeat, n, length_scale)
        rows, turns = (each[:n] for each in np.nonzero(script.exists))
        return script.lengths(rows, turns, np.zeros(n, dtype=bool), length_scale)

    def texts(self, lengths: Lengths, ratio: TokenRatio, key: TextKey) -> list[tuple[Message, ...]]:
        """What is new in each turn; the history too where nothing before it was sent."""
        new_tokens = lengths.input_tokens - lengths.shared_tokens
        brings_history = (lengths.kinds == LATER) & (lengths.shared_tokens == 0)
        kinds = [self.kinds[LATER if brings else FIRST] for brings in brings_history.tolist()]
        return prompts(kinds, new_tokens.tolist(), ratio, key)

    def _script(self, seed: int, repeat: int, n: int, length_scale: float) -> _Script:
        """The first n conversations, each from a fixed number of uniform draws."""
        check_scale(length_scale)
        most = self.most_turns
        generator = stream("conversations", seed, repeat)
        uniform = first(n, lambda size: generator.random((size, 1 + 3 * most)))
        count = 1 + np.searchsorted(self._shares_up_to(), uniform[:, 0], side="right")
        think_s = -self.mean_think_s * np.log1p(-uniform[:, 1 + 2 * most :])
        think_s[:, 0] = 0.0
        return _Script(
            exists=np.arange(most) < count[:, None],
            user_tokens=_tokens(
                uniform[:, 1 : 1 + most], TURN.input_median_tokens, TURN.input_sigma, MOST_USER_TOKENS, length_scale
            ),
            answer_tokens=_tokens(
                uniform[:, 1 + most : 1 + 2 * most],
                TURN.output_median_tokens,
                TURN.output_sigma,
                MOST_ANSWER_TOKENS,
                length_scale,
            ),
            think_s=think_s,
        )

    def _shares_up_to(self) -> Floats:
        """Share of conversations with at most 1, 2, ... most_turns - 1 turns."""
        turns = np.arange(1, self.most_turns + 1)

        def shares(ratio: float) -> Floats:
            weights = ratio ** (turns - 1.0)
            return np.asarray(weights / weights.sum())

        ratio = brentq(lambda ratio: float(shares(ratio) @ turns) - self.mean_turns, 0.0, 1.0)
        return np.cumsum(shares(ratio))[:-1]


@dataclass(frozen=True, slots=True)
class _Script:
    """What n conversations say; arrays of shape (n, most_turns). exists: whether a conversation has that turn."""

    exists: npt.NDArray[np.bool_]
    user_tokens: Ints
    answer_tokens: Ints
    think_s: Floats

    def lengths(self, rows: Ints, turns: Ints, follows: npt.NDArray[np.bool_], length_scale: float) -> Lengths:
        """The named turns' lengths; a turn that follows another of them shares its history with it."""
        said = np.cumsum(self.user_tokens + self.answer_tokens, axis=1) - self.user_tokens - self.answer_tokens
        history = said[rows, turns]
        return Lengths(
            kinds=np.where(turns > 0, LATER, FIRST),
            input_tokens=history + self.user_tokens[rows, turns],
            output_tokens=self.answer_tokens[rows, turns],
            shared_tokens=np.where(follows, history, 0),
            length_scale=length_scale,
        )


def _tokens(uniform: Floats, median: float, sigma: float, most: int, length_scale: float) -> Ints:
    """Log-normal lengths; rounded down, so that no sum of them is above the sum of their bounds."""
    drawn: Floats = np.clip(median * np.exp(sigma * ndtri(uniform)), 1, most) * length_scale
    tokens: Ints = np.floor(drawn).astype(np.int64)
    return np.maximum(1, tokens)
