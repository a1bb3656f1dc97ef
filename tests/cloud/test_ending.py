"""The end of a machine: asked for until the API says gone and a list proves it, or told with the command that does."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from fake_lambda import API_KEY, Life
from sessions import Place

from cloud.ending import Claim, EndBounds, end_machines, rescue_command, to_the_end
from cloud.errors import CloudTrouble, NotConfirmed
from cloud.lambda_api import DEFAULT_BASE
from cloud.machine import Machine
from cloud.session_file import EXPIRES_TAG, SESSION_TAG
from slo_bench.cli import main

TAGS = {SESSION_TAG: "slob-1", EXPIRES_TAG: "1790000000"}
PATIENT = EndBounds(confirm_s=10.0, poll_s=0.01, again_s=0.02, longest_again_s=0.05, refusals=3)
HASTY = replace(PATIENT, confirm_s=0.4)
NOT_DONE = "internal upstream 429 408 502 close reset conflict unknown not-exist forbidden empty-list not-json".split()
"""Answers to a terminate, and ways to have none, after which the machine still stands."""
TERMINATE = "/instance-operations/terminate"


def claim_of(office: Place, *ids: str, tags: dict[str, str] | None = None, appear: float | None = None) -> Claim:
    return Claim(
        session="slob-1",
        tags=TAGS if tags is None else tags,
        ids=ids,
        appear_until_utc=appear,
        api_base=office.fake.base_url,
    )


def ended(
    office: Place, claim: Claim, bounds: EndBounds = PATIENT, now_utc: Callable[[], float] = time.time
) -> tuple[str, ...]:
    async def end() -> tuple[str, ...]:
        async with office.api() as api:
            return await end_machines(api, claim, bounds, office.said.append, now_utc)

    return asyncio.run(end())


def unconfirmed(
    office: Place, claim: Claim, bounds: EndBounds = HASTY, now_utc: Callable[[], float] = time.time
) -> NotConfirmed:
    """What is raised: a message of one line, and a command of one line."""
    with pytest.raises(NotConfirmed) as raised:
        ended(office, claim, bounds, now_utc)
    assert "\n" not in str(raised.value) + raised.value.rescue
    assert API_KEY not in str(raised.value) + raised.value.rescue
    return raised.value


def ours(office: Place, **more: object) -> str:
    return str(office.fake.add_machine("slob-1", tags=TAGS, **more))


def asked_to_end(office: Place) -> set[str]:
    return {each for call in office.fake.seen("terminate") for each in call.body["instance_ids"]}


def test_gone_is_said_after_the_api_knows_no_machine_and_a_list_has_none(office: Place) -> None:
    office.fake.set(life=Life(terminating_looks=5))
    machine = ours(office)
    assert ended(office, claim_of(office, machine)) == (machine,)
    assert office.fake.alive() == []
    calls = [(each.call, each.status) for each in office.fake.seen()]
    assert calls[0] == ("terminate", 200)
    assert calls[-2:] == [("instance", 404), ("instances", 200)]
    assert [status for call, status in calls if call == "instance"].count(404) == 1


def test_a_machine_that_is_shown_as_terminated_is_gone(office: Place) -> None:
    office.fake.set(life=Life(terminating_looks=2, is_shown_terminated=True))
    machine = ours(office)
    assert ended(office, claim_of(office, machine)) == (machine,)


@pytest.mark.parametrize("kind", NOT_DONE)
def test_a_terminate_that_was_not_done_is_asked_again(office: Place, kind: str) -> None:
    machine = ours(office)
    office.fake.add_fault("terminate", kind, times=2)
    assert ended(office, claim_of(office, machine)) == (machine,)
    assert office.fake.count("terminate") >= 3
    assert office.fake.alive() == []


@pytest.mark.parametrize("kind", ["502", "close", "reset", "truncate", "empty-list", "unknown"])
def test_a_terminate_that_was_done_and_badly_answered_is_found_out_by_looking(office: Place, kind: str) -> None:
    machine = ours(office)
    office.fake.add_fault("terminate", kind, is_done=True)
    assert ended(office, claim_of(office, machine), replace(PATIENT, again_s=5.0)) == (machine,)
    assert office.fake.count("terminate") == 1


@pytest.mark.parametrize("kind", ["internal", "429", "502", "close", "reset", "not-json", "forbidden"])
@pytest.mark.parametrize("call", ["instance", "instances"])
def test_a_look_that_fails_proves_nothing_and_is_repeated(office: Place, call: str, kind: str) -> None:
    machine = ours(office)
    office.fake.add_fault(call, kind, times=2)
    assert ended(office, claim_of(office, machine)) == (machine,)
    assert office.fake.alive() == []
    assert [each.status for each in office.fake.seen(call)][-1] in (200, 404)


def ends_by_itself(office: Place, status: str, looks: int) -> str:
    """A machine that no terminate ends, and that has a status for so many looks."""
    office.fake.set(
        life=Life(looks_without_ip=0, looks_booting=0, becomes=status, active_looks=looks, then="terminated")
    )
    office.fake.add_fault("terminate", "empty-list", times=None)
    return ours(office, status=None)


def test_terminate_is_asked_at_growing_intervals_not_with_every_look(office: Place) -> None:
    machine = ends_by_itself(office, "active", 60)
    bounds = replace(PATIENT, confirm_s=60.0, again_s=0.001, longest_again_s=3600.0)
    assert ended(office, claim_of(office, machine), bounds) == (machine,)
    assert office.fake.count("instances") >= 30
    assert 2 <= office.fake.count("terminate") <= 20


@pytest.mark.parametrize("status", ["hibernating", "", "TERMINATED", "preempted", "unhealthy", "terminating"])
def test_every_status_but_terminated_counts_as_alive(office: Place, status: str) -> None:
    machine = ends_by_itself(office, status, 6)
    assert ended(office, claim_of(office, machine)) == (machine,)
    assert office.fake.account.find(machine).looks == 6


def test_a_machine_with_a_status_that_nobody_knows_is_ended(office: Place) -> None:
    machine = ours(office, status="hibernating")
    assert ended(office, claim_of(office)) == (machine,)
    assert office.fake.alive() == []


def test_what_carries_all_of_our_tags_is_ended_whatever_it_is_called(office: Place) -> None:
    known = ours(office)
    renamed = office.fake.add_machine("my favourite", tags={**TAGS, "team": "inference"})
    assert set(ended(office, claim_of(office, known))) == {known, renamed}
    assert office.fake.alive() == []


def test_a_machine_of_somebody_else_is_never_asked_to_end(office: Place) -> None:
    machine = ours(office)
    others = [
        office.fake.add_machine("slob-1"),
        office.fake.add_machine("slob-1", tags={SESSION_TAG: "slob-1"}),
        office.fake.add_machine("slob-1", tags={**TAGS, SESSION_TAG: "slob-2"}),
        office.fake.add_machine("slob-1", tags={**TAGS, EXPIRES_TAG: "1790000001"}),
    ]
    assert ended(office, claim_of(office, machine)) == (machine,)
    assert asked_to_end(office) == {machine}
    assert office.fake.alive() == others


def test_a_claim_without_tags_owns_its_ids_alone(office: Place) -> None:
    machine, other = ours(office), ours(office)
    assert ended(office, claim_of(office, machine, tags={})) == (machine,)
    assert office.fake.alive() == [other]
    assert not Claim(session="slob-1", tags={}).owns(Machine("a", "active", "slob-1", None, {}, "", ""))


def test_where_a_list_has_nothing_of_ours_nothing_is_asked(office: Place) -> None:
    other = office.fake.add_machine("another")
    assert ended(office, claim_of(office)) == ()
    assert [each.call for each in office.fake.seen()] == ["instances"]
    assert office.fake.alive() == [other]


def test_a_launch_without_an_answer_is_looked_for_until_its_time_is_over(office: Place) -> None:
    office.fake.set(life=Life(hidden_lists=4))
    machine = ours(office)
    assert ended(office, claim_of(office, appear=100.0), now_utc=lambda: 99.0) == (machine,)
    assert office.fake.alive() == []


def test_a_launch_that_left_nothing_is_confirmed_once_nothing_can_appear_any_more(office: Place) -> None:
    clock = iter([97.0, 98.0, 99.0, 100.0])
    assert ended(office, claim_of(office, appear=100.0), now_utc=lambda: next(clock)) == ()
    assert office.fake.count("instances") == 4
    assert office.fake.count("terminate") == 0


def test_while_it_may_still_appear_an_empty_list_confirms_nothing(office: Place) -> None:
    told = unconfirmed(office, claim_of(office, appear=100.0), now_utc=lambda: 99.0)
    assert told.rescue == f"slo-bench cloud reap --session slob-1 --yes --api-base {office.fake.base_url}"


def test_an_id_that_the_api_does_not_know_yet_is_not_gone(office: Place) -> None:
    office.fake.set(life=Life(hidden_lists=4))
    machine = ours(office)
    office.fake.add_fault("terminate", "not-exist", times=2)
    office.fake.add_fault("instance", "not-exist", times=2)
    assert ended(office, claim_of(office, machine, appear=100.0), now_utc=lambda: 99.0) == (machine,)
    assert office.fake.alive() == []


def test_what_a_list_still_has_is_not_gone_whatever_is_said_of_its_id(office: Place) -> None:
    machine = ours(office)
    office.fake.add_fault("terminate", "empty-list", times=2)
    office.fake.add_fault("instance", "not-exist", times=2)
    assert ended(office, claim_of(office, machine, tags={})) == (machine,)
    assert office.fake.alive() == []


def test_an_id_that_is_gone_already_is_confirmed_by_the_api_s_own_words(office: Place) -> None:
    assert ended(office, claim_of(office, "0" * 32)) == ("0" * 32,)
    assert office.fake.seen("instance")[-1].status == 404


def test_a_machine_that_stays_on_its_way_out_is_not_confirmed(office: Place) -> None:
    machine = ours(office)
    office.fake.add_fault("terminate", "stuck")
    assert machine in str(unconfirmed(office, claim_of(office, machine)))


def test_one_that_stays_on_its_way_out_keeps_no_other_from_its_end(office: Place) -> None:
    office.fake.set(life=Life(terminating_looks=None))
    stuck = ours(office)
    office.fake.account.find(stuck).terminating = 0
    office.fake.set(life=Life())
    machine = ours(office)
    told = unconfirmed(office, claim_of(office, stuck, machine, tags={}))
    assert machine not in office.fake.alive()
    assert machine not in told.rescue


def test_an_id_that_has_not_appeared_keeps_no_other_from_its_end(office: Place) -> None:
    machine = ours(office)
    unconfirmed(office, claim_of(office, "0" * 32, machine, appear=100.0), now_utc=lambda: 99.0)
    assert office.fake.alive() == []


def test_gone_by_its_id_is_not_enough_while_no_list_can_be_read(office: Place) -> None:
    machine = ours(office)
    office.fake.add_fault("instances", "internal", times=None)
    told = unconfirmed(office, claim_of(office, machine), replace(HASTY, confirm_s=2.0))
    assert office.fake.alive() == []
    assert "GET /instances" in str(told)
    assert f"--instance {machine} " in told.rescue


def test_an_api_that_cannot_be_reached_is_left_at_the_deadline(office: Place) -> None:
    machine = ours(office)
    office.fake.stop()
    begun_s = time.monotonic()
    told = unconfirmed(office, claim_of(office, machine), replace(HASTY, confirm_s=0.3))
    assert time.monotonic() - begun_s < 2.0
    assert "cannot reach" in str(told)
    office.fake.start()
    assert office.fake.alive() == [machine]


def test_an_api_that_never_answers_is_left_at_the_deadline(office: Place) -> None:
    machine = ours(office)
    office.fake.add_fault("*", "hang", times=None)
    begun_s = time.monotonic()
    told = unconfirmed(office, claim_of(office, machine), replace(HASTY, confirm_s=0.3))
    assert time.monotonic() - begun_s < 2.0
    assert "the API did not answer in time" in str(told)


def test_a_key_that_is_refused_for_good_ends_it_long_before_the_deadline(office: Place) -> None:
    machine = ours(office)
    office.fake.add_fault("*", "bad-key", times=None)
    begun_s = time.monotonic()
    told = unconfirmed(office, claim_of(office, machine), PATIENT)
    assert time.monotonic() - begun_s < 3.0
    assert "global/invalid-api-key" in str(told)
    assert office.fake.count() <= PATIENT.refusals + 1


def test_a_key_that_is_refused_now_and_then_is_not_given_up(office: Place) -> None:
    office.fake.set(life=Life(terminating_looks=12))
    machine = ours(office)
    for after in (0, 2, 4, 6):  # more often than `refusals`, never in a row
        office.fake.add_fault("instance", "bad-key", after=after)
    assert ended(office, claim_of(office, machine)) == (machine,)
    assert [each.status for each in office.fake.seen("instance")].count(401) == 4


def test_the_same_trouble_is_said_once(office: Place) -> None:
    machine = ours(office)
    office.fake.add_fault("instances", "forbidden", times=2)
    ended(office, claim_of(office, machine), replace(PATIENT, again_s=5.0))
    assert len([line for line in office.said if "global/forbidden" in line]) == 1


def test_the_message_names_the_machine_the_reason_and_where_to_look(office: Place) -> None:
    machine = ours(office)
    office.fake.add_fault("*", "bad-key", times=None)
    assert str(unconfirmed(office, claim_of(office, machine), PATIENT)) == (
        f"nobody confirmed that machine {machine} is gone, so it may still be billed (GET /instances/{machine}: "
        "HTTP 401 global/invalid-api-key: made-up message of bad-key made-up advice); end it with the command below"
    )


def test_the_rescue_command_is_ours_and_the_api_s_own_where_ours_fails() -> None:
    claim = Claim(session="slob-1", tags=TAGS)
    assert rescue_command(claim, ("abc",)) == (
        "slo-bench cloud reap --instance abc --yes || "
        f'curl -sS -X POST {DEFAULT_BASE}{TERMINATE} -H "Authorization: Bearer $LAMBDA_API_KEY" '
        "-H 'Content-Type: application/json' -d '{\"instance_ids\": [\"abc\"]}'"
    )
    assert rescue_command(claim, ()) == "slo-bench cloud reap --session slob-1 --yes"


@pytest.mark.skipif(shutil.which("curl") is None, reason="not installed here: curl")
@pytest.mark.parametrize("count", [1, 2])
def test_the_rescue_command_ends_the_machines_where_our_own_command_is_not_there(office: Place, count: int) -> None:
    machines = [ours(office) for _ in range(count)]
    other = office.fake.add_machine("another")
    office.fake.add_fault("terminate", "empty-list", times=None)
    told = unconfirmed(office, claim_of(office, *machines))
    office.fake.clear_faults()
    programs = office.folder / "bin"
    programs.mkdir()
    (programs / "slo-bench").write_text("#!/bin/sh\nexit 4\n")
    (programs / "slo-bench").chmod(0o755)
    done = in_shell(told.rescue, f"{programs}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert office.fake.alive() == [other]


@pytest.mark.parametrize("is_known", [True, False])
def test_our_half_of_the_rescue_command_ends_the_machine(
    office: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_known: bool
) -> None:
    machine = ours(office)
    rescue = rescue_command(claim_of(office), (machine,) if is_known else ())
    program, *words = shlex.split(rescue.partition(" || ")[0])
    monkeypatch.setenv("LAMBDA_API_KEY", API_KEY)
    monkeypatch.setenv("HOME", str(office.folder))
    assert program == "slo-bench"
    assert main([*words, "--calls-per-s", "500", "--poll-s", "0.05"]) == 0
    assert f"confirmed gone: {machine}" in capsys.readouterr().out
    assert office.fake.alive() == []


def in_shell(command: str, path: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, "LAMBDA_API_KEY": API_KEY, "no_proxy": "127.0.0.1"}
    shell: Sequence[str] = ("/bin/sh", "-c", command)
    return subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=30, check=False)


def test_a_cancellation_waits_for_the_end_and_is_not_lost(office: Place) -> None:
    office.fake.set(life=Life(terminating_looks=20))
    machine = ours(office)

    async def cancelled() -> asyncio.Task[tuple[str, ...]]:
        async with office.api() as api:
            work = end_machines(api, claim_of(office, machine), PATIENT, office.said.append)
            task = asyncio.create_task(to_the_end(work))
            for _ in range(3):
                await asyncio.sleep(0.05)
                task.cancel()
            await asyncio.wait({task})
            return task

    task = asyncio.run(cancelled())
    assert task.cancelled()
    assert office.fake.alive() == []
    assert office.fake.seen("instance")[-1].status == 404


def test_what_failed_comes_before_the_cancellation_and_neither_is_lost() -> None:
    told: list[str] = []

    async def failing() -> None:
        await asyncio.sleep(0.05)
        raise CloudTrouble("no machine")

    async def caller() -> None:
        try:
            await to_the_end(failing())
        except CloudTrouble as error:
            told.append(str(error))
        await asyncio.sleep(10)
        told.append("went on")

    async def cancelled() -> bool:
        task = asyncio.create_task(caller())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        return task.cancelled()

    assert asyncio.run(cancelled())
    assert told == ["no machine"]
