from __future__ import annotations

from datetime import UTC, datetime

import pytest

from traffic.probe import ProbeFacts, Stop
from traffic.schedule import Window


@pytest.fixture
def probe_facts() -> ProbeFacts:
    """A probe without requests."""
    window = Window(
        rate_rps=8.0,
        repeat=0,
        window_start_s=20.0,
        window_end_s=140.0,
        drain_end_s=160.0,
        scheduled=0,
        longest_output_tokens=1,
    )
    return ProbeFacts(window, (), Stop.COMPLETE, datetime(2026, 12, 2, tzinfo=UTC), 150.0, 0.0, 0.0, 0.0)
