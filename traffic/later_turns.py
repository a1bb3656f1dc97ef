"""Later turns of conversations: what is sent when the turn before has been answered, and what never is."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from traffic.records import End, Message, Request, RequestRecord
from traffic.schedule import Window


class LaterTurns:
    """The requests of a schedule that wait for another one's end."""

    def __init__(self, requests: Iterable[Request], window: Window) -> None:
        self._window = window
        self._after = {request.after: request for request in requests if request.after is not None}

    def follows(self, index: int) -> bool:
        """Whether a turn waits for the request with this index."""
        return index in self._after

    def next_turn(self, sent: Request, record: RequestRecord, answer: Sequence[str]) -> Request | None:
        """The turn after one that ended, ready to be sent at its due time; None when the conversation is over.

        It is due think_s after the answer's end. Its prompt is all that was said before, with the answer in the
        server's own words, and the new turn; with lengths alone there is nothing to say. A conversation whose turn did
        not finish has nothing to go on with.
        """
        later = self._after.get(sent.index)
        if later is None or record.end is not End.FINISHED or record.ended_s is None:
            return None
        due_s = record.ended_s + later.think_s
        in_cohort = self._window.window_start_s <= due_s < self._window.window_end_s
        messages = later.messages
        if messages:
            messages = (*sent.messages, Message("assistant", "".join(answer)), *messages)
        return replace(later, due_s=due_s, in_cohort=in_cohort, messages=messages)

    def abandoned(self, known: Container[int]) -> int:
        """How many turns of conversations that began were never due. known: indices of the requests that were."""
        lost: set[int] = set()
        for after, later in sorted(self._after.items()):
            if later.index not in known and (after in known or after in lost):
                lost.add(later.index)
        return len(lost)
