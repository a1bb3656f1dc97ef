"""Which machines are ours to end: those with all of our tags and, unless they are named, those whose time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from fake_lambda import Life
from sessions import Place

from cloud.ending import EndBounds
from cloud.errors import CloudTrouble, CloudUsageError, NotConfirmed
from cloud.machine import Machine
from cloud.reap import Reaped, Rented, describe, reap, rented
from cloud.session_file import EXPIRES_TAG, SESSION_TAG

NOW = 1_790_000_000.0
BOUNDS = EndBounds(confirm_s=5.0, poll_s=0.01, again_s=0.02, longest_again_s=0.05, refusals=3)
HASTY = EndBounds(confirm_s=0.3, poll_s=0.01, again_s=0.02, longest_again_s=0.05, refusals=3)


def tags_of(session: str, left_s: float = -60.0, **more: str) -> dict[str, str]:
    return {SESSION_TAG: session, EXPIRES_TAG: str(int(NOW + left_s)), **more}


def add(office: Place, session: str = "slob-1", left_s: float = -60.0, **more: Any) -> str:
    """A machine of ours whose session's time is over in left_s."""
    return str(office.fake.add_machine(session, tags=tags_of(session, left_s), **more))


def reaped(office: Place, **more: Any) -> Reaped:
    async def end() -> Reaped:
        async with office.api() as api:
            told: Mapping[str, Any] = {"bounds": BOUNDS, "api_base": office.fake.base_url, **more}
            return await reap(api, now_utc=NOW, say=office.said.append, **told)

    return asyncio.run(end())


def listed(office: Place) -> tuple[Rented, ...]:
    async def look() -> tuple[Rented, ...]:
        async with office.api() as api:
            return await rented(api)

    return asyncio.run(look())


def asked_to_end(office: Place) -> set[str]:
    return {each for call in office.fake.seen("terminate") for each in call.body["instance_ids"]}


def ids_of(done: Reaped) -> set[str]:
    return {each.machine.id for each in done.meant}


def add_others(office: Place) -> list[str]:
    """Machines that are nearly ours."""
    return [
        office.fake.add_machine("slob-1"),
        office.fake.add_machine("slob-1", tags={"owner": "somebody"}),
        office.fake.add_machine("slob-1", tags={SESSION_TAG: "slob-1"}),
        office.fake.add_machine("slob-1", tags={EXPIRES_TAG: "1"}),
        office.fake.add_machine("slob-1", tags={SESSION_TAG: "", EXPIRES_TAG: "1"}),
        office.fake.add_machine("slob-1", tags={"slo-bench:sessions": "slob-1", "slo-bench:expire": "1"}),
    ]


def test_by_default_it_is_only_said_what_would_be_ended(office: Place) -> None:
    old, older = add(office), add(office, "slob-2", -7200.0)
    done = reaped(office)
    assert ids_of(done) == {old, older}
    assert done.gone == ()
    assert office.said == [
        f"would end {old} active gpu_1x_h100_sxm5 us-east-1 session slob-1 (expired 1 min ago)",
        f"would end {older} active gpu_1x_h100_sxm5 us-east-1 session slob-2 (expired 120 min ago)",
    ]
    assert {each.method for each in office.fake.seen()} == {"GET"}
    assert office.fake.alive() == [old, older]


def test_machines_past_their_time_are_ended_and_nobody_else_s_are_touched(office: Place) -> None:
    others = add_others(office)
    old, older = add(office), add(office, "slob-2", -7200.0)
    running = add(office, "slob-3", 60.0)
    done = reaped(office, is_dry=False)
    assert set(done.gone) == ids_of(done) == {old, older}
    assert asked_to_end(office) == {old, older}
    assert office.fake.alive() == [*others, running]
    assert office.said[-1] == f"confirmed gone: {old}, {older}"


def test_only_machines_with_all_of_our_tags_are_listed(office: Place) -> None:
    add_others(office)
    machine = add(office, left_s=90.0)
    (found,) = listed(office)
    assert (found.machine.id, found.session, found.expires_utc) == (machine, "slob-1", NOW + 90.0)


@pytest.mark.parametrize("expires", ["", "soon", "-1", "+1", "1.5", "1e9", " 1", "1_000", "\u0661\u0662", "0x1"])
def test_an_expiry_that_is_no_number_of_ours_makes_it_somebody_else_s(office: Place, expires: str) -> None:
    machine = office.fake.add_machine("slob-1", tags={SESSION_TAG: "slob-1", EXPIRES_TAG: expires})
    assert reaped(office, is_dry=False) == Reaped((), ())
    assert reaped(office, is_dry=False, session="slob-1") == Reaped((), ())
    with pytest.raises(CloudUsageError):
        reaped(office, is_dry=False, instance=machine)
    assert office.fake.count("terminate") == 0


def test_time_is_over_at_the_very_second() -> None:
    machine = Machine("a", "active", "", None, {}, "", "")
    assert not Rented(machine, "slob-1", NOW).is_expired(NOW - 1)
    assert Rented(machine, "slob-1", NOW).is_expired(NOW)


def test_what_is_still_within_its_time_is_left_alone(office: Place) -> None:
    running = add(office, left_s=1.0)
    assert reaped(office, is_dry=False) == Reaped((), ())
    assert office.said == ["nothing of ours is to be ended"]
    assert office.fake.alive() == [running]
    assert office.fake.count("terminate") == 0


def test_a_renamed_machine_of_ours_is_still_ours(office: Place) -> None:
    renamed = office.fake.add_machine("my favourite", tags=tags_of("slob-1", team="inference"))
    assert reaped(office, is_dry=False).gone == (renamed,)


@pytest.mark.parametrize("status", ["hibernating", "booting", "unhealthy", "preempted", ""])
def test_every_status_but_terminated_is_a_machine_to_end(office: Place, status: str) -> None:
    machine = add(office, status=status)
    assert reaped(office, is_dry=False).gone == (machine,)
    assert office.fake.alive() == []


def test_a_machine_that_is_shown_as_terminated_is_nobody_s_business(office: Place) -> None:
    office.fake.set(life=Life(is_shown_terminated=True))
    add(office, status="terminated")
    assert listed(office) == ()
    assert reaped(office, is_dry=False) == Reaped((), ())
    assert office.fake.count("terminate") == 0


def test_a_session_that_is_named_is_ended_before_its_time_and_alone(office: Place) -> None:
    wanted, second = add(office, "slob-1", 600.0), add(office, "slob-1", 600.0)
    other = add(office, "slob-2", -600.0)
    assert reaped(office, session="slob-1").gone == ()
    assert office.fake.count("terminate") == 0
    assert set(reaped(office, session="slob-1", is_dry=False).gone) == {wanted, second}
    assert office.fake.alive() == [other]


def test_a_machine_that_is_named_is_ended_before_its_time_and_alone(office: Place) -> None:
    wanted, second = add(office, "slob-1", 600.0), add(office, "slob-1", -600.0)
    assert ids_of(reaped(office, instance=wanted)) == {wanted}
    assert office.fake.count("terminate") == 0
    assert reaped(office, instance=wanted, is_dry=False).gone == (wanted,)
    assert asked_to_end(office) == {wanted}
    assert office.fake.alive() == [second]


def test_a_machine_of_somebody_else_is_refused_by_its_id_too(office: Place) -> None:
    for other in add_others(office):
        with pytest.raises(CloudUsageError) as refused:
            reaped(office, instance=other, is_dry=False)
        assert str(refused.value) == f"machine {other} does not carry the tags of a session of ours: not touched"
    assert office.fake.count("terminate") == 0


def test_a_machine_of_another_session_is_refused(office: Place) -> None:
    machine = add(office, "slob-2")
    with pytest.raises(CloudUsageError, match=f"^machine {machine} does not carry the tags of slob-1: not touched$"):
        reaped(office, instance=machine, session="slob-1", is_dry=False)
    assert office.fake.count("terminate") == 0


def test_a_machine_that_is_gone_already_is_no_error(office: Place) -> None:
    assert reaped(office, instance="0" * 32, is_dry=False) == Reaped((), ())
    assert office.said[0] == f"machine {'0' * 32} is gone already"
    assert office.fake.count("terminate") == 0


@pytest.mark.parametrize("kind", ["internal", "not-json", "bad-key", "wrong-shape", "hang"])
def test_a_list_that_cannot_be_read_ends_nothing(office: Place, kind: str) -> None:
    machine = add(office)
    office.fake.add_fault("instances", kind, times=None)
    with pytest.raises(CloudTrouble):
        reaped(office, is_dry=False)
    assert office.fake.count("terminate") == 0
    assert office.fake.alive() == [machine]


def test_a_machine_that_cannot_be_read_is_not_ended(office: Place) -> None:
    machine = add(office)
    office.fake.add_fault("instance", "internal", times=None)
    with pytest.raises(CloudTrouble):
        reaped(office, instance=machine, is_dry=False)
    assert office.fake.count("terminate") == 0


def test_what_nobody_confirms_gone_comes_with_its_rescue_command(office: Place) -> None:
    machine = add(office)
    office.fake.add_fault("terminate", "stuck")
    with pytest.raises(NotConfirmed) as raised:
        reaped(office, is_dry=False, bounds=HASTY)
    assert raised.value.rescue.startswith(
        f"slo-bench cloud reap --instance {machine} --yes --api-base {office.fake.base_url} || curl "
    )


def test_a_machine_that_stays_keeps_those_of_other_sessions_from_nothing(office: Place) -> None:
    stuck, machine = add(office), add(office, "slob-2")
    office.fake.account.find(stuck).life = Life(terminating_looks=None)
    with pytest.raises(NotConfirmed) as raised:
        reaped(office, is_dry=False, bounds=HASTY)
    assert office.fake.alive() == [stuck]
    assert machine not in raised.value.rescue


def test_one_line_tells_a_machine_its_session_and_its_time() -> None:
    machine = Machine("abc", "booting", "any", None, {}, "gpu_1x_a10", "us-west-1")
    told = "abc booting gpu_1x_a10 us-west-1 session slob-1"
    assert describe(Rented(machine, "slob-1", NOW + 5400), NOW) == f"{told} (90 min left)"
    assert describe(Rented(machine, "slob-1", NOW - 600), NOW) == f"{told} (expired 10 min ago)"
