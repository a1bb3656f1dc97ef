"""A probe beside its server's own counts: what the prefix cache held."""

from __future__ import annotations

import pytest
from engines import probe_facts, record

from gates.evidence import server_cached_share
from traffic.probe import LEAD_S, ProbeFacts
from traffic.server_facts import ServerSample

FACTS = probe_facts([record(index) for index in range(200)], window={"window_start_s": 5.0})
"""Its window is from 5 s to 20 s."""


def look(facts: ProbeFacts, at_s: float, cached: int | None, looked_up: int | None) -> ServerSample:
    utc_s = facts.started_utc.timestamp() + LEAD_S + at_s
    return ServerSample(at_s, utc_s, cached_tokens_total=cached, looked_up_tokens_total=looked_up)


def share(*looks: tuple[float, int | None, int | None]) -> float | None:
    return server_cached_share(FACTS, [look(FACTS, *each) for each in looks])


def test_the_share_is_that_of_the_window_alone() -> None:
    found = share(
        (0.0, 0, 0), (4.9, 900, 1000), (5.1, 900, 1000), (12.0, 950, 1400), (19.9, 1000, 2000), (20.1, 5000, 6000)
    )
    assert found == pytest.approx(0.1)


def test_without_two_looks_or_without_counts_nothing_was_seen() -> None:
    assert share() is None
    assert share((6.0, 0, 0)) is None
    assert share((6.0, None, None), (19.0, None, None)) is None
    assert share((6.0, 0, 500), (19.0, 0, 500)) is None


def test_a_server_that_began_anew_tells_nothing_of_before() -> None:
    assert share((6.0, 500, 1000), (12.0, 0, 0), (19.0, 10, 100)) is None
