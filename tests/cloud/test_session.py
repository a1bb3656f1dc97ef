"""Whole sessions on a real sshd: runs in order, what comes home, and how a session goes on after a death."""

from __future__ import annotations

import asyncio

import pytest
from sessions import Place, two_runs

pytestmark = pytest.mark.cloud


def test_a_session_brings_all_runs_home_and_leaves_no_machine(place: Place) -> None:
    outcome = asyncio.run(place.run(two_runs()))
    assert outcome.trouble is None
    assert [(run.name, run.rc, run.is_home) for run in outcome.runs] == [("first", 0, True), ("second", 0, True)]
    assert (place.result("first"), place.result("second")) == ("first", "second")
    assert outcome.is_confirmed_gone
    assert place.fake.account.alive() == []
    assert place.fake.account.count("launch") == 1
