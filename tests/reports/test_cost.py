from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.cost import CostDocument, cost, session_usd
from reports.run_directory import SweepDocument, read_document

BEGAN, ENDED = "2026-12-02T00:00:00+00:00", "2026-12-02T01:30:00+00:00"


@pytest.fixture
def sweep(small: Path) -> SweepDocument:
    return read_document(small / "arms/moe-default/sweep.json", SweepDocument)


def priced(sweep: SweepDocument, **changes: Any) -> CostDocument:
    facts = {"usd_per_hour": 4.0, "gpus": 2, "started_utc": BEGAN, "ended_utc": ENDED, **changes}
    return cost(sweep, **facts)


def test_time_tokens_and_gpus_have_their_price(sweep: SweepDocument) -> None:
    found = priced(sweep)
    assert found.measuring_usd == pytest.approx(6.0)
    assert (found.per_gpu_hour_usd, found.measuring_per_gpu_usd) == (pytest.approx(2.0), pytest.approx(3.0))
    assert found.per_million_output_usd == pytest.approx(4.0 / 3600 / (11.18 * 242) * 1e6)


def test_a_million_tokens_cost_between_what_the_bracket_of_the_capacity_makes_them(sweep: SweepDocument) -> None:
    found = priced(sweep)
    assert found.per_million_interval_usd is not None
    low, high = found.per_million_interval_usd
    assert high == found.per_million_output_usd
    assert high / low == pytest.approx(11.5 / 11.18)


def test_what_has_no_basis_is_null(sweep: SweepDocument) -> None:
    nothing = priced(sweep, usd_per_hour=None, gpus=None, ended_utc=None)
    assert set(nothing.model_dump(exclude={"schema_version"}).values()) == {None}
    assert priced(sweep, gpus=None).measuring_usd == pytest.approx(6.0)
    assert priced(sweep, gpus=None).measuring_per_gpu_usd is None
    open_above = priced(sweep.model_copy(update={"first_failed_rps": None}))
    assert open_above.per_million_output_usd is not None
    assert open_above.per_million_interval_usd is None
    assert priced(sweep.model_copy(update={"capacity_rps": None})).per_million_output_usd is None


def test_a_session_costs_its_hours() -> None:
    assert session_usd(4.0, BEGAN, ENDED) == pytest.approx(6.0)
    assert session_usd(None, BEGAN, ENDED) is None
    assert session_usd(4.0, BEGAN, None) is None
