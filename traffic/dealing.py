"""How a schedule is dealt to several senders, and how what they did becomes one again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from traffic.later_turns import LaterTurns
from traffic.records import End, Flight, Request, RequestRecord, freeze
from traffic.schedule import Schedule
from traffic.sender import Sent


def deal(schedule: Schedule, hands: int) -> list[Schedule]:
    """The schedule in `hands` parts: requests in turn, in their order, and a conversation's turns to one hand.

    The schedule decides who sends what, not who is free, so that the load is the same however many send it.
    """
    dealt: list[list[Request]] = [[] for _ in range(hands)]
    holder: dict[int, int] = {}
    turn = 0
    for request in schedule.requests:
        if request.after is None:
            holder[request.index] = turn % hands
            turn += 1
        else:
            holder[request.index] = holder[request.after]
        dealt[holder[request.index]].append(request)
    return [replace(schedule, requests=tuple(part)) for part in dealt]


def merged(parts: Iterable[Sent]) -> Sent:
    """What several senders did, as if one had: records in their order, the worst of what they say of themselves."""
    several = list(parts)
    shares = [each.cpu_share for each in several if each.cpu_share is not None]
    return Sent(
        records=tuple(sorted((record for each in several for record in each.records), key=lambda each: each.index)),
        abandoned_turns=sum(each.abandoned_turns for each in several),
        stall_max_s=max((each.stall_max_s for each in several), default=0.0),
        clock_step_s=max((each.clock_step_s for each in several), key=abs, default=0.0),
        cpu_share=max(shares, default=None),
    )


def of_the_lost(part: Schedule, told: Sequence[RequestRecord], load_s: float) -> Sent:
    """What is known of the part of a sender that is gone: `told` before, and of the rest that it was due.

    Nobody knows how those requests ended, so they are unresolved, and in no count.
    """
    known = {record.index for record in told}
    unknown = [
        freeze(request, Flight(), 0.0, end=End.UNRESOLVED)
        for request in part.requests
        if request.after is None and request.due_s < load_s and request.index not in known
    ]
    records = (*told, *unknown)
    begun = {record.index for record in records}
    return Sent(
        records=records,
        abandoned_turns=LaterTurns(part.requests, part.window).abandoned(begun),
        stall_max_s=0.0,
        clock_step_s=0.0,
        cpu_share=None,
    )
