"""A fault at every step of a session: no machine is left alive, or the rescue line says how to end it; and whatever was
finished before the fault is at home."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from lambda_account import Fault, Life
from sessions import Place, Tool, held_up, two_runs, wait_for, writes

from cloud.errors import NotConfirmed
from cloud.jobs import Job
from cloud.kit import Checks, Kit, SessionOutcome
from cloud.session_file import State

pytestmark = pytest.mark.cloud

NOTHING = Kit()
"""A session that only rents: for faults that know nothing of the work."""


@pytest.fixture(autouse=True)
def _foreign(place: Place) -> Iterator[None]:
    """Somebody else's machine, with a name like ours: nobody may ever end it."""
    stranger = place.fake.account.add_machine("slob-test", tags={"slo-bench:session": "another"})
    yield
    asked = [each.body["instance_ids"] for each in place.fake.account.seen("terminate")]
    assert not [ids for ids in asked if stranger in ids]
    assert stranger in place.fake.account.alive()


def living(place: Place) -> list[str]:
    """Our machines that nobody has ended."""
    machines = place.fake.account.state()["machines"]
    ours = {each["id"] for each in machines if each["tags"].get("slo-bench:session") == "slob-test"}
    return [each for each in place.fake.account.alive() if each in ours]


def outcome_of(place: Place, kit: Kit) -> SessionOutcome | NotConfirmed:
    try:
        return asyncio.run(place.run(kit))
    except NotConfirmed as error:
        return error


def assert_gone(place: Place, outcome: SessionOutcome | NotConfirmed, *, launches: int = 1) -> SessionOutcome:
    assert isinstance(outcome, SessionOutcome), outcome
    assert living(place) == []
    assert outcome.is_confirmed_gone
    assert place.record.state is State.GONE
    assert place.fake.account.count("launch") == launches
    return outcome


def refused(kind: str) -> Fault:
    return Fault("launch", kind, times=None)


DEFINITIVE = (
    "wrong-region-filesystem quota invalid-parameters not-exist not-exist-400 bad-key inactive invalid-address "
    "forbidden not-found".split()
)
WITHOUT_ANSWER = (
    "unknown internal internal-409 upstream 429 408 502 500-html cloudflare not-json wrong-shape empty-body redirect "
    "hang close reset truncate dribble".split()
)


@pytest.mark.parametrize("kind", DEFINITIVE)
def test_a_refused_launch_ends_the_session_without_a_machine(place: Place, kind: str) -> None:
    place.fake.account.add_fault(Fault("launch", kind))
    outcome = assert_gone(place, outcome_of(place, NOTHING))
    assert outcome.trouble is not None
    assert place.fake.account.machines[1:] == []


def test_capacity_that_is_nowhere_ends_the_session_after_every_region(place: Place) -> None:
    place.fake.account.add_fault(Fault("launch", "no-capacity", times=None))
    outcome = assert_gone(place, outcome_of(place, NOTHING), launches=2)
    assert "is free in us-east-1, us-west-1" in str(outcome.trouble)


def test_capacity_that_was_lost_since_the_list_is_looked_for_in_the_next_region(place: Place) -> None:
    place.fake.account.add_fault(Fault("launch", "no-capacity"))
    outcome = assert_gone(place, outcome_of(place, NOTHING), launches=2)
    assert outcome.trouble is None
    assert place.record.region == "us-west-1"


@pytest.mark.parametrize("kind", WITHOUT_ANSWER)
def test_a_launch_whose_answer_is_lost_is_found_by_its_tags_and_never_repeated(place: Place, kind: str) -> None:
    place.fake.account.add_fault(Fault("launch", kind, is_done=True))
    outcome = assert_gone(place, outcome_of(place, NOTHING))
    assert outcome.trouble is None
    assert len(place.record.machine_ids) == 1


@pytest.mark.parametrize("kind", ["internal", "429", "502", "hang", "close"])
def test_a_launch_that_nobody_did_or_answered_is_not_repeated_either(place: Place, kind: str) -> None:
    place.fake.account.add_fault(Fault("launch", kind))
    outcome = assert_gone(place, outcome_of(place, NOTHING))
    assert "not launching again" in str(outcome.trouble)


@pytest.mark.parametrize("kind", ["no-ids", "two-ids"])
def test_a_launch_that_answers_with_another_number_of_machines_ends_all_of_them(place: Place, kind: str) -> None:
    place.fake.account.add_fault(Fault("launch", kind))
    assert "instead of one" in str(assert_gone(place, outcome_of(place, NOTHING)).trouble)


def test_a_machine_that_shows_up_late_is_still_found_after_a_lost_answer(place: Place) -> None:
    place.fake.account.settings.life = Life(hidden_lists=3)
    place.fake.account.add_fault(Fault("launch", "502", is_done=True))
    assert assert_gone(place, outcome_of(place, NOTHING)).trouble is None


def test_a_machine_that_shows_up_when_the_search_is_over_is_still_ended(place: Place) -> None:
    place.fake.account.settings.life = Life(hidden_lists=6)
    place.rental = replace(place.rental, look_s=0.3, appear_s=1.0)
    place.fake.account.add_fault(Fault("launch", "502", is_done=True))
    place.fake.account.add_fault(Fault("instances", "internal", after=0, times=8, since="launch"))
    outcome_of(place, NOTHING)
    place.wait_for(lambda: living(place) == [])


READS = (
    "429 internal upstream 502 cloudflare not-json wrong-shape empty-body redirect hang close reset truncate".split()
)


@pytest.mark.parametrize("kind", READS)
def test_reads_that_fail_for_a_while_after_the_launch_do_not_lose_the_machine(place: Place, kind: str) -> None:
    place.fake.account.add_fault(Fault("instance", kind, times=2, since="launch"))
    place.fake.account.add_fault(Fault("instances", kind, times=2, since="launch"))
    outcome = assert_gone(place, outcome_of(place, NOTHING))
    assert outcome.trouble is None


@dataclass(frozen=True, slots=True)
class Boot:
    """A machine that never becomes usable, and a word of what is said about it."""

    name: str
    life: Life
    word: str


BOOTS = (
    Boot("never active", Life(looks_booting=10**6), "waiting for it to be active"),
    Boot("never an address", Life(ip=None), "waiting for its address"),
    Boot("an address of nobody", Life(ip="10.0.0.5"), "waiting for a public address"),
    Boot("unhealthy", Life(becomes="unhealthy"), "is unhealthy"),
    Boot("preempted", Life(becomes="preempted"), "is preempted"),
    Boot("terminating", Life(becomes="terminating"), "is terminating"),
    Boot("a word that nobody knows", Life(becomes="cooking"), "now: cooking"),
)


@pytest.mark.parametrize("boot", BOOTS, ids=lambda boot: boot.name)
def test_a_machine_that_never_becomes_usable_is_ended(place: Place, boot: Boot) -> None:
    place.rental = replace(place.rental, boot_s=0.6)
    place.fake.account.settings.life = boot.life
    assert boot.word in str(assert_gone(place, outcome_of(place, NOTHING)).trouble)


def test_ssh_that_refuses_for_good_ends_the_machine(place: Place) -> None:
    place.rental = replace(place.rental, boot_s=1.0)
    place.machine.stop_listening()
    assert "still waiting for SSH" in str(assert_gone(place, outcome_of(place, NOTHING)).trouble)


def test_ssh_that_refuses_the_key_for_good_ends_the_machine(place: Place) -> None:
    place.rental = replace(place.rental, boot_s=1.5)
    (place.machine.folder / "authorized_keys").write_text("")
    assert "still waiting for SSH" in str(assert_gone(place, outcome_of(place, NOTHING)).trouble)


def test_ssh_that_refuses_first_the_connection_and_then_the_key_is_waited_for(place: Place) -> None:
    keys = place.machine.folder / "authorized_keys"
    given = keys.read_text()
    keys.write_text("")
    place.machine.stop_listening()
    with later(0.6, place.machine.listen), later(1.4, lambda: keys.write_text(given)):
        assert assert_gone(place, outcome_of(place, Kit(runs=(writes("first"),)))).trouble is None
    assert place.result("first") == "first"


DRIVERS = (
    ("580.95.05", 0, "580.105", "driver is 580.95.05, and 580.105 is needed"),
    ("Failed to initialize NVML: Driver/library version mismatch", 18, "580", "needs a reboot"),
    ("NVIDIA-SMI has failed", 9, "580", "nvidia-smi on the machine failed"),
)


@pytest.mark.parametrize(("line", "rc", "least", "word"), DRIVERS)
def test_r26_a_wrong_driver_ends_the_session_before_anything_is_sent(
    place: Place, line: str, rc: int, least: str, word: str
) -> None:
    place.drivers(line, rc)
    kit = Kit(checks=Checks(min_driver=least), uploads=((Path(__file__), "~/upload/file"),), runs=(writes("first"),))
    assert word in str(assert_gone(place, outcome_of(place, kit)).trouble)
    assert not (place.machine.home / "upload").exists()


def test_r26_driver_versions_are_compared_by_their_numbers(place: Place) -> None:
    place.drivers("580.105.08")
    kit = Kit(checks=Checks(min_driver="580.95"), uploads=((Path(__file__), "~/upload/file"),))
    assert assert_gone(place, outcome_of(place, kit)).trouble is None
    assert (place.machine.home / "upload" / "file").exists()


TERMINATIONS = (
    Fault("terminate", "internal", times=2),
    Fault("terminate", "upstream", times=2, is_done=True),
    Fault("terminate", "429", times=2),
    Fault("terminate", "502"),
    Fault("terminate", "hang"),
    Fault("terminate", "hang", is_done=True),
    Fault("terminate", "close", is_done=True),
    Fault("terminate", "reset"),
    Fault("terminate", "truncate", is_done=True),
    Fault("terminate", "unknown"),
    Fault("terminate", "conflict"),
    Fault("terminate", "empty-list"),
    Fault("terminate", "not-json"),
    Fault("terminate", "not-exist"),
    Fault("instances", "internal", times=3, since="terminate"),
    Fault("instances", "not-json", times=3, since="terminate"),
    Fault("instance", "502", times=3, since="terminate"),
    Fault("instance", "hang", since="terminate"),
)


@pytest.mark.parametrize("fault", TERMINATIONS, ids=lambda fault: f"{fault.call} {fault.kind} done={fault.is_done}")
def test_a_terminate_that_goes_wrong_is_asked_again_until_the_machine_is_gone(place: Place, fault: Fault) -> None:
    place.fake.account.add_fault(fault)
    assert_gone(place, outcome_of(place, NOTHING))


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_machine_that_takes_long_to_end_is_waited_for(place: Place, is_shown: bool) -> None:
    place.fake.account.settings.life = Life(terminating_looks=8, is_shown_terminated=is_shown)
    assert_gone(place, outcome_of(place, NOTHING))
    assert place.fake.account.machines[-1].status == "terminated"


def assert_rescued(place: Place, outcome: SessionOutcome | NotConfirmed) -> None:
    assert isinstance(outcome, NotConfirmed), outcome
    machine = place.record.machine_ids[0]
    assert machine in str(outcome)
    assert f"slo-bench cloud reap --instance {machine} --yes" in outcome.rescue
    assert place.record.state is State.UNCONFIRMED


UNENDED = (
    Fault("terminate", "internal", times=None),
    Fault("terminate", "stuck"),
    Fault("*", "bad-key", times=None, since="instance"),
    Fault("*", "502", times=None, since="terminate"),
    Fault("instances", "internal", times=None, since="launch"),
)


@pytest.mark.parametrize("fault", UNENDED, ids=lambda fault: f"{fault.call} {fault.kind}")
def test_a_machine_that_nobody_confirms_gone_gives_its_rescue_command(place: Place, fault: Fault) -> None:
    place.end = replace(place.end, confirm_s=1.5)
    place.fake.account.add_fault(fault)
    assert_rescued(place, outcome_of(place, Kit(runs=(writes("first"),))))
    assert place.result("first") == ("first" if fault.kind != "bad-key" else place.result("first"))


def test_the_watchdog_goes_on_where_the_session_had_to_give_up(place: Place) -> None:
    place.end = replace(place.end, confirm_s=1.0)
    place.fake.account.add_fault(Fault("terminate", "502", times=None))
    assert_rescued(place, outcome_of(place, NOTHING))
    place.fake.account.clear_faults()
    place.wait_for(lambda: living(place) == [] and place.record.state is State.GONE)


@contextmanager
def later(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def once(condition: Callable[[], bool], action: Callable[[], object], *, seconds: float = 20.0) -> Iterator[None]:
    """Do something at the moment when something is true, beside the session."""

    def watch() -> None:
        end_s = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end_s:
                return
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def is_in_second(place: Place) -> bool:
    return (place.machine.home / "runs" / "second" / "number").exists()


def unplugged(place: Place) -> None:
    place.machine.stop_listening()
    place.machine.cut()


def replugged(place: Place, seconds: float) -> None:
    unplugged(place)
    time.sleep(seconds)
    place.machine.listen()


def test_a_link_that_is_cut_in_a_run_and_healed_costs_nothing(place: Place) -> None:
    place.session = replace(place.session, patience_s=10.0)
    kit = Kit(runs=(writes("first"), writes("second", after="sleep 2")))
    with once(lambda: is_in_second(place), lambda: replugged(place, 1.5)):
        outcome = assert_gone(place, outcome_of(place, kit))
    assert outcome.trouble is None
    assert [run.is_done for run in outcome.runs] == [True, True]
    assert "the link is back" in " ".join(place.said)


def test_a_link_that_is_cut_for_good_ends_the_machine_and_keeps_what_was_home(place: Place) -> None:
    place.session = replace(place.session, patience_s=0.8, last_fetch_s=0.8)
    with once(lambda: is_in_second(place), lambda: unplugged(place)):
        outcome = assert_gone(place, outcome_of(place, held_up()))
    assert "no answer over SSH" in str(outcome.trouble)
    assert place.result("first") == "first"
    assert [run.is_done for run in outcome.runs] == [True, False]


def test_a_link_that_freezes_in_a_run_is_noticed_and_healed(place: Place) -> None:
    place.session = replace(place.session, patience_s=20.0)
    kit = Kit(runs=(writes("first"), writes("second", after="sleep 1")))
    with once(lambda: is_in_second(place) and place.machine.freeze() > 0, lambda: None):
        outcome = assert_gone(place, outcome_of(place, kit))
    assert [run.is_done for run in outcome.runs] == [True, True]


def test_another_machine_at_the_address_ends_the_session_at_once(place: Place) -> None:
    def swap() -> None:
        unplugged(place)
        place.machine.listen(with_new_host_key=True)

    with once(lambda: is_in_second(place), swap):
        outcome = assert_gone(place, outcome_of(place, held_up()))
    assert "another host key" in str(outcome.trouble)
    assert place.result("first") == "first"


def test_a_machine_that_is_preempted_in_a_run_ends_the_session_with_what_was_home(place: Place) -> None:
    def preempt() -> None:
        place.fake.account.find(place.record.machine_ids[0]).forced = "preempted"

    with once(lambda: is_in_second(place), preempt):
        outcome = assert_gone(place, outcome_of(place, held_up()))
    assert "is preempted" in str(outcome.trouble)
    assert place.result("first") == "first"


def test_a_machine_that_somebody_else_has_ended_is_noticed_in_a_run(place: Place) -> None:
    def end() -> None:
        place.fake.account.find(place.record.machine_ids[0]).terminating = 99
        unplugged(place)

    with once(lambda: is_in_second(place), end):
        outcome = assert_gone(place, outcome_of(place, held_up()))
    assert "does not exist any more" in str(outcome.trouble)


def test_the_key_that_expires_in_a_run_is_an_alarm_with_a_rescue_command(place: Place) -> None:
    def expire() -> None:
        place.fake.account.add_fault(Fault("*", "bad-key", times=None))

    with once(lambda: is_in_second(place), expire):
        assert_rescued(place, outcome_of(place, held_up()))
    assert (place.result("first"), place.result("second")) == ("first", "second")
    assert any("refuses the key" in line for line in place.said)


def test_a_job_that_is_killed_with_all_that_looks_after_it_is_no_result_and_the_next_one_runs(place: Place) -> None:
    def kill() -> None:
        for pid in place.machine.processes():
            with suppress(OSError):
                if (
                    b"second" in Path(f"/proc/{pid}/cmdline").read_bytes()
                    or b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
                ):
                    os.kill(pid, signal.SIGKILL)

    kit = Kit(runs=(writes("first"), writes("second", after="sleep 60"), writes("third")))
    with once(lambda: is_in_second(place), kill):
        outcome = assert_gone(place, outcome_of(place, kit))
    assert [run.is_done for run in outcome.runs] == [True, False, True]
    assert place.result("third") == "third"


def test_a_failed_run_does_not_stop_the_next_one(place: Place) -> None:
    kit = Kit(runs=(writes("first", after="echo it broke; exit 3"), writes("second")))
    outcome = assert_gone(place, outcome_of(place, kit))
    assert [(run.rc, run.reason) for run in outcome.runs] == [(3, "it ended with 3: it broke"), (0, None)]
    assert (place.result("first"), outcome.trouble) == ("first", None)


def test_fail_fast_stops_after_a_failed_run(place: Place) -> None:
    place.fail_fast = True
    outcome = assert_gone(place, outcome_of(place, Kit(runs=(writes("first", after="exit 3"), writes("second")))))
    assert [run.rc for run in outcome.runs] == [3, None]
    assert "not started" in str(outcome.runs[1].reason)


def test_a_run_that_is_over_its_time_is_ended_there_and_the_next_one_runs(place: Place) -> None:
    kit = Kit(runs=(writes("first", after="sleep 60", limit_s=1.0), writes("second")))
    outcome = assert_gone(place, outcome_of(place, kit))
    assert "time of 1 s was over" in str(outcome.runs[0].reason)
    assert [run.is_home for run in outcome.runs] == [True, True]


def test_a_failed_set_up_skips_all_runs(place: Place) -> None:
    kit = Kit(setup=(Job(name="prepare", command=("false",), limit_s=5.0),), runs=(writes("first"),))
    outcome = assert_gone(place, outcome_of(place, kit))
    assert "prepare" in str(outcome.trouble)
    assert outcome.runs[0].rc is None


def test_the_deadline_ends_the_work_and_brings_home_what_there_is(place: Place) -> None:
    place.max_minutes, place.reserve_s = 26.0 / 60, 11.0
    outcome = assert_gone(place, outcome_of(place, held_up()))
    assert "time for work is over" in str(outcome.trouble)
    assert (place.result("first"), place.result("second")) == ("first", "second")


@contextmanager
def small_disk(at: Path) -> Iterator[None]:
    """A disk of 64 KiB."""
    at.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(at)],  # noqa: S607 - of this system
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("nobody may mount a small disk here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)  # noqa: S607 - of this system


def test_a_disk_that_is_full_here_ends_the_session_with_what_was_home(place: Place) -> None:
    fill = "head -c 300000 /dev/urandom > $HOME/runs/second/much"
    with small_disk(place.folder / "small"):
        second = place.folder / "small" / "second"
        second.mkdir()
        kit = Kit(runs=(writes("first"), writes("second", after=fill), writes("third")))
        with once((place.home / "logs").exists, lambda: (place.home / "second").symlink_to(second)):
            outcome = assert_gone(place, outcome_of(place, kit))
        assert "disk of this computer is full" in str(outcome.trouble)
        assert place.result("first") == "first"


def test_a_disk_that_is_full_there_fails_the_run_and_not_the_session(place: Place) -> None:
    with small_disk(place.machine.home / "runs" / "second"):
        fill = "head -c 300000 /dev/zero > $HOME/runs/second/much || exit 5"
        kit = Kit(runs=(writes("first"), writes("second", after=fill), writes("third")))
        outcome = assert_gone(place, outcome_of(place, kit))
    assert [run.rc for run in outcome.runs] == [0, 5, 0]
    assert (place.result("first"), place.result("third")) == ("first", "third")


@dataclass(frozen=True, slots=True)
class Phase:
    """A moment of a session in a process of its own."""

    name: str
    is_reached: Callable[[Place], bool]
    faults: tuple[Fault, ...] = ()
    life: Life = field(default_factory=Life)
    results: tuple[str, ...] = ()


PHASES = (
    Phase("before the launch", lambda place: (place.home / "session.json").exists()),
    Phase(
        "in the launch", lambda place: place.fake.account.count("launch") > 0, (Fault("launch", "hang", is_done=True),)
    ),
    Phase("while it boots", lambda place: place.fake.account.count("instance") > 1, life=Life(looks_booting=10**6)),
    Phase("in the second run", is_in_second, results=("first", "second")),
    Phase(
        "in the end",
        lambda place: place.fake.account.count("terminate") > 0,
        (Fault("terminate", "internal", times=6),),
        Life(becomes="unhealthy"),
    ),
)


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
def test_a_tool_that_is_killed_leaves_no_machine_and_what_was_finished_is_home(place: Place, phase: Phase) -> None:
    tool = started(place, phase)
    tool.send(signal.SIGKILL)
    tool.end()
    place.wait_for(lambda: living(place) == [] and not place.is_watched(), 25.0)
    assert place.fake.account.count("launch") <= 1
    assert [place.result(name) for name in phase.results] == list(phase.results)


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda signum: signum.name)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
def test_a_signal_ends_the_machine_before_the_tool_goes(place: Place, phase: Phase, signum: signal.Signals) -> None:
    tool = started(place, phase)
    tool.send(signum)
    rc, text = tool.end()
    assert rc in (SIGNALS[signum], 4), text
    assert living(place) == [], text
    assert place.record.state is State.GONE
    assert place.fake.account.count("launch") <= 1
    assert [place.result(name) for name in phase.results] == list(phase.results)


def test_a_second_signal_in_the_clean_up_does_not_cut_it_short(place: Place) -> None:
    place.fake.account.settings.life = Life(terminating_looks=40)
    tool = started(place, PHASES[3])
    tool.send(signal.SIGINT)
    place.wait_for(lambda: place.fake.account.count("terminate") > 0)
    tool.send(signal.SIGINT)
    tool.send(signal.SIGTERM)
    rc, text = tool.end()
    assert rc == SIGNALS[signal.SIGINT], text
    assert "confirmed gone" in text
    assert place.fake.account.machines[-1].status == "terminated"


def started(place: Place, phase: Phase) -> Tool:
    """A tool that has got as far as the phase."""
    place.fake.account.settings.life = phase.life
    for fault in phase.faults:
        place.fake.account.add_fault(fault)
    tool = Tool.start(place, "held_up")
    wait_for(lambda: phase.is_reached(place) or tool.process.poll() is not None, 30.0, lambda: phase.name)
    return tool


def test_an_api_that_is_down_at_the_end_for_a_while_is_waited_for(place: Place) -> None:
    def down() -> None:
        place.fake.stop()
        time.sleep(1.0)
        place.fake.start()

    with once(lambda: place.result("second") is not None, down):
        outcome = assert_gone(place, outcome_of(place, two_runs()))
    assert [run.is_done for run in outcome.runs] == [True, True]


def test_an_api_that_is_down_at_the_end_for_good_is_exit_4_with_the_rescue_line_last(place: Place) -> None:
    tool = started(place, PHASES[3])
    place.fake.stop()
    tool.send(signal.SIGTERM)
    rc, text = tool.end()
    machine = place.record.machine_ids[0]
    assert rc == 4
    assert f"slo-bench cloud reap --instance {machine} --yes" in text.splitlines()[-1]
    assert (place.result("first"), place.result("second")) == ("first", "second")
    place.fake.start()
    place.wait_for(lambda: living(place) == [])
