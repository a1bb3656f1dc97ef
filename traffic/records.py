"""The facts of one request: what was asked, what is happening, what happened.

`Request` is fixed before the first send. `Flight` is the one mutable type of the house: the engine writes into it while
the request is under way, so that a cancelled request still has its facts. `RequestRecord` is the frozen result.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class End(StrEnum):
    """How a request ended. Everything but FINISHED and UNRESOLVED counts against every objective."""

    FINISHED = "finished"
    FAILED = "failed"
    """The server refused, broke the stream, or sent an error."""
    TRUNCATED = "truncated"
    """The stream ended without a finish reason, or with one that admits a cut: abort, or length before its time."""
    TIMED_OUT = "timed out"
    UNFINISHED = "unfinished"
    """Still running when the drain limit was over."""
    UNRESOLVED = "unresolved"
    """Still running when the probe ended early because nothing could change the outcome any more."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: role ("system", "user", "assistant") and text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request as scheduled.

    due_s: seconds after the probe's start at which it should go out. kind: class of the mix. input_tokens and
    output_tokens: the lengths asked for. in_cohort: due inside the measured window. messages: the prompt; empty for an
    engine that needs lengths only. force_length: ask the server for exactly output_tokens. shared_tokens: how many of
    input_tokens an earlier request of the same schedule has as a prefix, since the workload wants it so.

    A later turn of a conversation names in `after` the index of the turn that it follows. It is due think_s after that
    one's end; its due_s is the earliest that can be. Its messages are the new user turn alone, while input_tokens
    counts the whole prompt: history, scheduled answers and the new turn.
    """

    index: int
    due_s: float
    kind: str
    input_tokens: int
    output_tokens: int
    in_cohort: bool = True
    force_length: bool = True
    messages: tuple[Message, ...] = ()
    after: int | None = None
    think_s: float = 0.0
    shared_tokens: int = 0


@dataclass(slots=True)
class Flight:
    """A request under way. Times are the event loop's seconds; None until it happened.

    An engine sets sent_s, calls `token` for each token-bearing chunk, and sets `end` and ended_s last.
    """

    sent_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    chunk_gap_max_s: float | None = None
    output_tokens: int = 0
    output_tokens_estimated: bool = False
    prompt_tokens: int | None = None
    """The server's count of the prompt; None where it gave none."""
    cached_tokens: int | None = None
    malformed_frames: int = 0
    ended_s: float | None = None
    end: End | None = None
    error: str = ""
    finish_reason: str | None = None
    """Why the answer ended, in the server's own word ("stop", "length"); None until it said so."""
    answer: list[str] | None = None
    """Pieces of the visible answer, for a later turn that repeats it; None where nobody needs them."""

    def token(self, now_s: float, count: int = 1) -> None:
        """A chunk with `count` tokens arrived."""
        if self.last_token_s is None:
            self.first_token_s = now_s
        else:
            gap_s = now_s - self.last_token_s
            if self.chunk_gap_max_s is None or gap_s > self.chunk_gap_max_s:
                self.chunk_gap_max_s = gap_s
        self.last_token_s = now_s
        self.output_tokens += count

    def finish(self, now_s: float, end: End, error: str = "") -> None:
        """The request is over; the first word counts."""
        if self.end is None:
            self.end = end
            self.ended_s = now_s
            self.error = error


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request's facts; times in seconds after the probe's start, None where the event never came.

    Lengths: input_tokens and requested_output_tokens were asked for; prompt_tokens and output_tokens are the server's
    counts (output_tokens_estimated marks a count of ours).
    """

    index: int
    kind: str
    in_cohort: bool
    due_s: float
    sent_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float | None
    end: End
    error: str
    input_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    requested_output_tokens: int
    force_length: bool
    output_tokens: int
    output_tokens_estimated: bool
    chunk_gap_max_s: float | None
    malformed_frames: int

    @property
    def is_resolved(self) -> bool:
        """Whether the request counts in n at all."""
        return self.end is not End.UNRESOLVED

    @property
    def has_failed(self) -> bool:
        """Whether it counts as over every limit."""
        return self.end not in (End.FINISHED, End.UNRESOLVED)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from the due time."""
        return None if self.first_token_s is None else self.first_token_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None (not 0) for one token or none, or where all came at once."""
        if self.first_token_s is None or self.last_token_s is None or self.output_tokens <= 1:
            return None
        if self.last_token_s <= self.first_token_s:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Last chunk minus due; None unless the request finished."""
        if self.end is not End.FINISHED or self.ended_s is None:
            return None
        return self.ended_s - self.due_s

    @property
    def send_lag_s(self) -> float | None:
        """Actual send minus due: the client's own lateness."""
        return None if self.sent_s is None else self.sent_s - self.due_s


def freeze(request: Request, flight: Flight, origin_s: float, *, end: End) -> RequestRecord:
    """The record of a request; `end` is used where the engine has written none. origin_s: loop time of the start."""

    def since(moment_s: float | None) -> float | None:
        return None if moment_s is None else moment_s - origin_s

    return RequestRecord(
        index=request.index,
        kind=request.kind,
        in_cohort=request.in_cohort,
        due_s=request.due_s,
        sent_s=since(flight.sent_s),
        first_token_s=since(flight.first_token_s),
        last_token_s=since(flight.last_token_s),
        ended_s=since(flight.ended_s),
        end=flight.end or end,
        error=flight.error,
        input_tokens=request.input_tokens,
        prompt_tokens=flight.prompt_tokens,
        cached_tokens=flight.cached_tokens,
        requested_output_tokens=request.output_tokens,
        force_length=request.force_length,
        output_tokens=flight.output_tokens,
        output_tokens_estimated=flight.output_tokens_estimated,
        chunk_gap_max_s=flight.chunk_gap_max_s,
        malformed_frames=flight.malformed_frames,
    )
