"""A session's folder: its record is on the disk before a launch can cost, read back as it was, or refused in a line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_lambda import API_KEY, JUPYTER_SECRET, FakeLambda, Life
from sessions import END, Place, copied

from cloud.ending import Claim
from cloud.errors import ApiError, CloudTrouble, CloudUsageError
from cloud.preflight import check_labels
from cloud.rental import claim_of
from cloud.session_file import (
    EXPIRES_TAG,
    SESSION_TAG,
    JobRecord,
    SessionFolder,
    SessionRecord,
    State,
    new_session_name,
    read_record,
)

TAGS = {SESSION_TAG: "slob-test", EXPIRES_TAG: "1790000000"}
HELD = """\
import sys
from pathlib import Path
from cloud.session_file import SessionFolder
with SessionFolder.open(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def record_of(office: Place, **more: Any) -> SessionRecord:
    told: dict[str, Any] = {
        "name": office.home.name,
        "state": State.PREPARING,
        "rental": office.facts(),
        "tags": TAGS,
        "max_minutes": 5.0,
        "max_usd": 1.5,
        "reserve_s": 10.0,
        "fail_fast": False,
        "started_utc": 1_789_999_700.25,
        "deadline_utc": 1_790_000_000.25,
        "jobs_folder": "~/slo-bench/slob-test/jobs",
        "jobs": (
            JobRecord(name="install", kind="setup", results=None, limit_s=60.0),
            JobRecord(name="first", kind="run", results="~/runs/first", limit_s=600.0),
        ),
        "request": {"run": ["LABEL=first"], "yes": True},
    }
    return SessionRecord(**{**told, **more})


def folder_of(office: Place, **more: Any) -> SessionFolder:
    return SessionFolder.create(office.home, record_of(office, **more))


def text_of(office: Place) -> str:
    return (office.home / "session.json").read_text()


def refusal_of(office: Place) -> str:
    """What is said of the folder; always one line that names the file."""
    with pytest.raises(CloudUsageError) as refused:
        SessionFolder.open(office.home)
    assert str(office.home / "session.json") in str(refused.value)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_record_is_read_back_as_it_was_written(office: Place) -> None:
    folder = folder_of(office)
    folder.change(state=State.BOOTING, region="us-east-1", machine_ids=("one", "two"), appear_until_utc=1.5)
    folder.change_job("first", state="ended", rc=0, is_home=True)
    folder.set_host("192.0.2.7")
    again = SessionFolder.open(office.home)
    assert again.record == folder.record
    assert again.job("first").rc == 0
    assert again.job("install").state == "waiting"
    assert again.login == folder.login
    assert again.login is not None
    assert again.login.host == "192.0.2.7"
    assert json.loads(text_of(office))["schema_version"] == 1


def test_no_machine_is_reached_before_it_has_an_address(office: Place) -> None:
    assert folder_of(office).login is None


def test_what_another_process_has_written_is_read(office: Place) -> None:
    ours = folder_of(office)
    SessionFolder.open(office.home).change(state=State.GONE, ended_utc=7.0)
    assert ours.record.state is State.PREPARING
    assert ours.reread().state is State.GONE
    assert ours.record.ended_utc == 7.0


def test_a_session_has_a_folder_of_its_own(office: Place) -> None:
    folder_of(office)
    before = copied(office.home)
    with pytest.raises(CloudUsageError, match=r"is there already: every session has a folder of its own$"):
        folder_of(office, name="another")
    assert copied(office.home) == before


def test_a_folder_that_cannot_be_made_is_refused(office: Place) -> None:
    (office.folder / "file").write_text("")
    with pytest.raises(CloudUsageError) as refused:
        SessionFolder.create(office.folder / "file" / "runs" / "slob-test", record_of(office))
    assert str(refused.value) == f"cannot write {office.folder}/file/runs/slob-test: not a directory"


def test_a_file_where_the_folder_of_sessions_should_be_is_told(office: Place) -> None:
    (office.folder / "file").write_text("")
    with pytest.raises(CloudUsageError) as refused:
        SessionFolder.create(office.folder / "file" / "slob-test", record_of(office))
    assert str(refused.value) == f"cannot write {office.folder}/file/slob-test: file exists"


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_schema_that_we_do_not_know_is_refused(office: Place, version: object) -> None:
    folder_of(office)
    told = {**json.loads(text_of(office)), "schema_version": version, "something_new": 1}
    (office.home / "session.json").write_text(json.dumps(told))
    assert refusal_of(office).endswith("cannot be read: schema_version: Input should be 1")


def test_a_damaged_file_is_refused_in_one_line(office: Place) -> None:
    folder_of(office)
    whole = text_of(office).encode()
    for damaged in (b"", whole[: len(whole) // 2], b"\0" * 64, b"\xff\xfe", b"[]", b"null"):
        (office.home / "session.json").write_bytes(damaged)
        assert "cannot be read: the whole: " in refusal_of(office)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"state": "asleep"}, "state"),
        ({"deadline_utc": "NaN"}, "deadline_utc"),
        ({"machine_ids": "abc"}, "machine_ids"),
        ({"jobs": [{"name": "first"}]}, "jobs.0.kind"),
        ({"api_key": "x"}, "api_key"),
    ],
)
def test_a_field_that_is_wrong_or_not_ours_is_named(office: Place, change: Mapping[str, Any], where: str) -> None:
    folder_of(office)
    (office.home / "session.json").write_text(json.dumps({**json.loads(text_of(office)), **change}))
    assert f"cannot be read: {where}: " in refusal_of(office)


def test_a_folder_without_a_record_is_no_session(office: Place) -> None:
    office.home.mkdir()
    assert refusal_of(office) == (
        f"{office.home} is no session: cannot read {office.home}/session.json: no such file or directory"
    )


def test_a_write_that_fails_in_its_middle_leaves_the_record_before(office: Place) -> None:
    folder = folder_of(office)
    before = copied(office.home)
    with files_no_longer_than(200), pytest.raises(CloudTrouble) as failed:
        folder.change(state=State.ENDING)
    assert str(failed.value) == f"cannot write {office.home}/session.json: file too large"
    assert copied(office.home) == before
    assert folder.record.state is State.ENDING  # whoever ends the machine goes on by it
    folder.change(trouble="later")
    assert read_record(office.home) == folder.record


def test_a_folder_that_was_deleted_is_trouble_and_no_new_folder(office: Place) -> None:
    folder = folder_of(office)
    shutil.rmtree(office.home)
    with pytest.raises(CloudTrouble, match=r"cannot write .*session\.json: no such file or directory"):
        folder.change(state=State.ENDING)
    folder.beat()
    folder.log("stops nothing")
    assert not office.home.exists()


def test_nothing_but_whole_files_is_left_in_a_folder(office: Place) -> None:
    folder = folder_of(office)
    for index in range(5):
        folder.change(trouble=str(index))
    assert sorted(copied(office.home)) == ["heartbeat", "known_hosts", "session.json"]
    assert folder.known_hosts.stat().st_mode & 0o077 == 0


def test_the_heartbeat_says_when_the_process_was_last_alive(office: Place) -> None:
    folder = folder_of(office)
    os.utime(folder.heartbeat, (5.0, 5.0))
    folder.beat()
    assert folder.heartbeat.stat().st_mtime > 1e9


def test_the_record_is_on_the_disk_before_the_launch_call_leaves(
    office: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    folder = folder_of(office)
    follow_syncs(monkeypatch, events)
    on_disk = follow_calls(monkeypatch, office, events)
    acquire_and_release(office, folder)
    launch = events.index("launch")
    synced = [event for event in events[:launch] if event != "launch"]
    assert synced == [f".session.json.{os.getpid()}", office.home.name]  # the record's bytes, then its name
    assert events.count("launch") == 1
    (at_launch,) = [told for call, told in on_disk if call == "launch"]
    assert at_launch["state"] == "launching"
    assert at_launch["tags"] == TAGS
    assert at_launch["region"] == "us-east-1"
    assert at_launch["appear_until_utc"] > 0


def test_a_new_folder_is_on_the_disk_with_its_name(office: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    follow_syncs(monkeypatch, events)
    folder_of(office)
    assert events == [f".session.json.{os.getpid()}", office.home.name, office.home.parent.name]


def test_the_id_is_on_the_disk_before_the_machine_is_looked_for(office: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(office)
    on_disk = follow_calls(monkeypatch, office, [])
    acquire_and_release(office, folder)
    (machine,) = office.fake.account.machines
    first_look = next(told for call, told in on_disk if call == "instance")
    assert (first_look["state"], first_look["machine_ids"]) == ("booting", [machine.id])


def test_a_session_goes_forward_from_the_launch_to_gone(office: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(office)
    on_disk = follow_calls(monkeypatch, office, [])
    acquire_and_release(office, folder)
    states = [told["state"] for _, told in on_disk]
    order = ["launching", "booting", "ending"]
    assert list(dict.fromkeys(states)) == order
    assert states == sorted(states, key=order.index)
    assert next(told["state"] for call, told in on_disk if call == "terminate") == "ending"
    assert read_record(office.home).state is State.GONE
    assert office.fake.alive() == []


def test_gone_stays_gone_and_asks_nobody(office: Place) -> None:
    folder = folder_of(office)
    acquire_and_release(office, folder)
    before = office.fake.count()
    asyncio.run(release(office, folder))
    assert read_record(office.home).state is State.GONE
    assert office.fake.count() == before


def test_after_a_launch_that_was_surely_refused_there_is_nothing_to_end(office: Place) -> None:
    office.fake.add_fault("launch", "quota")
    folder = folder_of(office)
    with pytest.raises(ApiError):
        asyncio.run(acquire(office, folder))
    assert not read_record(office.home).may_have_machines
    assert read_record(office.home).appear_until_utc is None


@pytest.mark.parametrize(
    ("state", "ids", "appear_until_utc", "may"),
    [
        (State.PREPARING, (), None, False),
        (State.LAUNCHING, (), 9e9, True),  # its answer is not known
        (State.LAUNCHING, (), 1.0, True),  # nor is it by waiting: only an end that was confirmed says so
        (State.BOOTING, ("a",), None, True),
        (State.ENDING, ("a",), None, True),
        (State.UNCONFIRMED, ("a",), None, True),
        (State.GONE, ("a",), 9e9, False),
        (State.OVER, (), None, False),
    ],
)
def test_whether_a_machine_may_be_left_is_known_from_the_record(
    office: Place, state: State, ids: tuple[str, ...], appear_until_utc: float | None, may: bool
) -> None:
    record = record_of(office, state=state, machine_ids=ids, appear_until_utc=appear_until_utc)
    assert record.may_have_machines is may
    assert record.is_over is (state in (State.GONE, State.OVER))


def test_what_is_ours_is_known_from_the_record_alone(office: Place) -> None:
    folder_of(office, machine_ids=("one",), appear_until_utc=3.0)
    assert claim_of(read_record(office.home)) == Claim(
        session="slob-test", tags=TAGS, ids=("one",), appear_until_utc=3.0, api_base=office.fake.base_url
    )


def test_no_file_of_a_session_has_a_secret(office: Place) -> None:
    folder = folder_of(office)
    acquire_and_release(office, folder)
    assert any(JUPYTER_SECRET in str(machine.json()) for machine in office.fake.account.machines)
    for name, content in copied(office.home).items():
        assert API_KEY.encode() not in content, name
        assert JUPYTER_SECRET.encode() not in content, name


def test_the_record_has_no_field_for_a_secret(office: Place) -> None:
    folder_of(office)
    named = [name for name in names_in(json.loads(text_of(office))) if re.search("key|secret|token|pass", name)]
    assert sorted(named) == ["key", "ssh_key_name"]  # a path, and the account's name for a public key


def test_a_name_is_unique_tells_its_time_and_is_one_that_the_provider_takes() -> None:
    names = {new_session_name(1_790_000_000.0) for _ in range(200)}
    assert len(names) == 200
    for name in names:
        assert re.fullmatch(r"slob-20260921t141320z-[0-9a-f]{8}", name)
        check_labels(name, [(SESSION_TAG, name), (EXPIRES_TAG, "1790000000")])


def test_a_session_has_one_owner_and_is_free_once_that_is_killed(office: Place) -> None:
    folder = folder_of(office)
    assert not folder.is_owned
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(office.home)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"held\n"
            assert folder.is_owned
            with pytest.raises(CloudUsageError) as refused, folder.held():
                pass
            assert str(refused.value) == "slob-test is in use by another process, or is being ended"
        finally:
            owner.send_signal(signal.SIGKILL)
    assert not folder.is_owned
    with folder.held():
        assert folder.is_owned
        assert not folder.is_watched
    assert not folder.is_owned


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """As on a disk that is full: what is longer is written in part, and then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def follow_syncs(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> None:
    """Every fsync, still done, by the name of what is synced."""
    real = os.fsync

    def followed(descriptor: int) -> None:
        real(descriptor)
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", followed)


def follow_calls(monkeypatch: pytest.MonkeyPatch, office: Place, events: list[str]) -> list[tuple[str, Any]]:
    """Each call of the API with the record as it is on the disk at the moment when the API answers."""
    fake: FakeLambda = office.fake
    answer, seen = fake.account.answer, list[tuple[str, Any]]()

    def followed(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Any:
        told = json.loads(text_of(office))
        answered = answer(method, path, headers, body)
        call = fake.seen()[-1].call
        seen.append((call, told))
        if call == "launch":
            events.append(call)
        return answered

    monkeypatch.setattr(fake.account, "answer", followed)
    return seen


def names_in(told: Any) -> Iterator[str]:
    if isinstance(told, dict):
        for name, value in told.items():
            yield name
            yield from names_in(value)
    elif isinstance(told, list):
        for value in told:
            yield from names_in(value)


async def acquire(office: Place, folder: SessionFolder) -> None:
    office.rental = replace(office.rental, boot_s=0.3)
    office.end = replace(END, poll_s=0.01)
    async with office.api() as api:
        await office.rented(api).acquire(folder, office.said.append)


async def release(office: Place, folder: SessionFolder) -> None:
    async with office.api() as api:
        await office.rented(api).release(folder, office.said.append)


def acquire_and_release(office: Place, folder: SessionFolder) -> None:
    """A machine that never gets further than booting, so that nothing asks for SSH; then its end."""
    office.fake.set(life=Life(becomes="booting", terminating_looks=2))
    with pytest.raises(CloudTrouble, match="was not ready within"):
        asyncio.run(acquire(office, folder))
    asyncio.run(release(office, folder))
