"""The collector rests inside, and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from traffic.garbage import resting_collector


def test_it_rests_inside_and_goes_on_afterwards_whatever_happens() -> None:
    seen: list[tuple[bool, bool]] = []

    def fail_inside() -> None:
        with resting_collector():
            seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert seen == [(False, True)]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_one_rest_inside_another_ends_with_the_outer() -> None:
    with resting_collector():
        with resting_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
