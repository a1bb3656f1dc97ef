"""Jobs on a machine that is a real sshd: they outlive links, start once, end wholly, and tell how."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from real_sshd import MISSING, RealSshd

from cloud.errors import CloudTrouble, CloudUsageError, LinkLost
from cloud.jobs import Completion, Job, JobBounds, Jobs, JobState, mismatches

pytestmark = [
    pytest.mark.cloud,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}"),
]

BOUNDS = JobBounds(connection_s=20, kill_after_s=0.5, record_s=10, poll_s=0.05)
WAIT_S = 30.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[RealSshd]:
    with RealSshd(tmp_path) as machine:
        yield machine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)  # noqa: S607


def jobs_of(machine: RealSshd) -> Jobs:
    return Jobs(machine.remote(), "~/session/jobs", BOUNDS)


def shell(line: str, *, limit_s: float = 60, results: str | None = None, **env: str) -> Job:
    return Job(name="job", command=("sh", "-c", line), env=env, limit_s=limit_s, results=results)


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while True:
        seen = condition()
        if seen if isinstance(seen, bool) else await seen:
            return
        assert time.monotonic() < end_s, "it never came"
        await asyncio.sleep(0.02)


async def ended(jobs: Jobs) -> Completion:
    async def is_over() -> bool:
        return await jobs.state("job") is not JobState.RUNNING

    await until(is_over)
    completion = await jobs.completion("job")
    assert completion is not None
    return completion


def outcome(machine: RealSshd, job: Job) -> Completion:
    async def run() -> Completion:
        jobs = jobs_of(machine)
        assert await jobs.state(job.name) is JobState.ABSENT
        assert await jobs.start(job)
        return await ended(jobs)

    return asyncio.run(run())


def log(machine: RealSshd) -> str:
    return (machine.home / "session/jobs/job/out.log").read_text()


def test_a_job_lives_on_when_its_link_is_cut_and_its_log_and_results_come_home(
    machine: RealSshd, tmp_path: Path
) -> None:
    job = shell(
        "mkdir -p ~/res/in; for i in 1 2 3 4; do echo line $i; sleep 0.4; done; echo done > ~/res/in/file",
        results="~/res",
    )

    async def followed() -> tuple[bytes, Completion, bool]:
        jobs = jobs_of(machine)
        await jobs.start(job)
        holder = asyncio.ensure_future(machine.remote().run("touch ~/on; sleep 60", timeout_s=60))
        await until((machine.home / "on").exists)
        text = await jobs.log_from("job", 0)
        assert machine.cut()
        machine.stop_listening()
        with pytest.raises(LinkLost):
            await holder
        with pytest.raises(LinkLost):
            await jobs.state("job")
        machine.listen()
        completion = await ended(jobs)
        text += await jobs.log_from("job", len(text))
        return text, completion, await jobs.fetch(job, tmp_path / "home", 20)

    text, completion, is_whole = asyncio.run(followed())
    assert text.decode() == "line 1\nline 2\nline 3\nline 4\n" == log(machine)
    assert (completion.rc, completion.reason, is_whole) == (0, None, True)
    assert dict(completion.files) == {"in/file": hashlib.sha256(b"done\n").hexdigest()}
    assert (tmp_path / "home/in/file").read_text() == "done\n"


def test_a_start_that_loses_its_link_is_asked_again_and_the_job_runs_once(machine: RealSshd) -> None:
    job = shell("echo ran >> ~/ran; sleep 0.5")

    async def start() -> list[bool]:
        jobs = jobs_of(machine)
        starting = asyncio.ensure_future(jobs.start(job))
        await until((machine.home / "session/jobs/job").exists)
        machine.cut()
        with pytest.raises(LinkLost):
            await starting
        again = await asyncio.gather(*(jobs.start(job) for _ in range(3)))
        await ended(jobs)
        return again

    assert asyncio.run(start()) == [False] * 3
    assert (machine.home / "ran").read_text() == "ran\n"


def test_a_job_is_started_once_by_however_many_ask(machine: RealSshd) -> None:
    async def start() -> list[bool]:
        jobs = jobs_of(machine)
        started = await asyncio.gather(*(jobs.start(shell("echo ran >> ~/ran")) for _ in range(4)))
        await ended(jobs)
        return started

    assert sorted(asyncio.run(start())) == [False, False, False, True]
    assert (machine.home / "ran").read_text() == "ran\n"


@pytest.mark.parametrize(
    ("line", "rc", "reason"),
    [
        ("exit 0", 0, None),
        ("exit 255", 255, None),
        ("kill -KILL $$", 137, "SIGKILL ended it"),
        ("no-such-program", 127, None),
    ],
)
def test_a_job_tells_how_it_ended(machine: RealSshd, line: str, rc: int, reason: str | None) -> None:
    completion = outcome(machine, shell(line))
    assert (completion.rc, completion.reason) == (rc, reason)


@pytest.mark.parametrize(("line", "rc"), [("sleep 60", 124), ("trap '' TERM; while :; do sleep 0.1; done", 137)])
def test_the_machine_itself_ends_a_job_whose_time_is_over(machine: RealSshd, line: str, rc: int) -> None:
    completion = outcome(machine, shell(line, limit_s=0.5))
    assert (completion.rc, completion.reason) == (rc, "its time of 0.5 s was over")
    assert machine.processes() == []


def test_a_job_that_was_killed_with_who_looked_after_it_is_dead(machine: RealSshd) -> None:
    async def killed() -> tuple[JobState, Completion | None, bool]:
        jobs = jobs_of(machine)
        await jobs.start(shell("sleep 60", results="~/res"))
        assert await jobs.state("job") is JobState.RUNNING
        for pid in machine.processes():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not machine.processes())
        fetched = await jobs.fetch(shell("", results="~/res"), machine.folder / "res", 20)
        return await jobs.state("job"), await jobs.completion("job"), fetched

    assert asyncio.run(killed()) == (JobState.DEAD, None, False)


def test_a_number_that_belongs_to_another_process_by_now_does_not_keep_a_job_alive(machine: RealSshd) -> None:
    folder = machine.home / "session/jobs/job"
    folder.mkdir(parents=True)
    (folder / "pid").write_text(f"{os.getpid()} another-boot 12345")
    assert asyncio.run(jobs_of(machine).state("job")) is JobState.DEAD


def test_the_environment_reaches_the_job_with_home_signs_of_the_machine_and_never_a_disk(machine: RealSshd) -> None:
    secret = "hf_" + "x" * 30
    job = Job(
        name="job",
        command=("sh", "-c", 'echo "$FOLDER $1 $MIDDLE ${#TOKEN} $(pwd)"; touch ~/on; sleep 0.5', "sh", "~/word"),
        env={"FOLDER": "~/moe-tuned", "MIDDLE": "a ~/b $HOME 'c'", "TOKEN": secret},
        limit_s=60,
    )

    def written() -> list[Path]:
        return [path for path in machine.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]

    async def run() -> None:
        jobs = jobs_of(machine)
        await jobs.start(job)
        await until((machine.home / "on").exists)
        assert written() == []
        await ended(jobs)

    asyncio.run(run())
    home = machine.home
    assert log(machine) == f"{home}/moe-tuned {home}/word a ~/b $HOME 'c' {len(secret)} {home}\n"
    assert written() == []
    assert secret not in repr(job)


def test_a_stopped_job_has_its_grace_and_leaves_nothing_that_runs(machine: RealSshd) -> None:
    job = shell(
        "trap 'echo saved; exit 9' TERM; setsid sh -c \"trap '' TERM; touch ~/on; sleep 61; sleep 62\" & "
        "while :; do sleep 0.1; done"
    )

    async def stopped() -> Completion:
        jobs = jobs_of(machine)
        await jobs.start(job)
        await until((machine.home / "on").exists)
        await jobs.stop("job", grace_s=10)
        await jobs.stop("job", grace_s=10)
        await jobs.stop("another", grace_s=10)
        assert await jobs.state("job") is JobState.ENDED
        return await ended(jobs)

    since_s = time.monotonic()
    completion = asyncio.run(stopped())
    assert (completion.rc, completion.reason) == (9, "it was stopped")
    assert time.monotonic() - since_s < WAIT_S
    assert log(machine).endswith("saved\n")
    assert machine.processes() == []


def test_what_a_dead_job_left_running_is_ended_by_a_stop(machine: RealSshd) -> None:
    async def stopped() -> JobState:
        jobs = jobs_of(machine)
        await jobs.start(shell("sleep 60"))
        os.kill(int((machine.home / "session/jobs/job/pid").read_text().split()[0]), signal.SIGKILL)
        await jobs.stop("job", grace_s=5)
        return await jobs.state("job")

    assert asyncio.run(stopped()) is JobState.DEAD
    assert machine.processes() == []


def test_a_record_is_written_only_when_nothing_of_the_job_runs_any_more(machine: RealSshd) -> None:
    completion = outcome(machine, shell("setsid sleep 63 & sleep 0.1; exit 4"))
    assert completion.rc == 4
    assert machine.processes() == []


def test_a_job_that_fills_the_disk_is_told_so_and_one_that_finds_it_full_is_not_started(
    tmp_path: Path, small_disk: Path
) -> None:
    with RealSshd(tmp_path, home=small_disk) as machine:
        jobs = jobs_of(machine)
        completion = outcome(machine, shell("head -c 20000000 /dev/zero > ~/big"))
        assert (completion.rc, completion.reason) == (1, "the machine's disk is full")
        late = Job(name="late", command=("true",), limit_s=60)
        (small_disk / "more").write_bytes(b"")
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "more").write_bytes(bytes(20_000_000))
        with pytest.raises(CloudTrouble, match="disk of the machine is full: the job late was not started"):
            asyncio.run(jobs.start(late))
        (small_disk / "big").unlink()
        assert asyncio.run(jobs.start(late))


def test_what_a_running_job_has_written_comes_home_as_partial(machine: RealSshd, tmp_path: Path) -> None:
    job = shell("mkdir ~/res; echo 1 > ~/res/first; touch ~/on; sleep 60", results="~/res")

    async def fetched() -> list[bool]:
        jobs = jobs_of(machine)
        absent = await jobs.fetch(job, tmp_path / "home", 20)
        await jobs.start(job)
        await until((machine.home / "on").exists)
        return [absent, await jobs.fetch(job, tmp_path / "home", 20)]

    assert asyncio.run(fetched()) == [False, False]
    assert (tmp_path / "home/first").read_text() == "1\n"


def test_a_file_with_other_bytes_than_the_record_is_found_and_fetched_again(machine: RealSshd, tmp_path: Path) -> None:
    job = shell("mkdir ~/res; echo right > ~/res/file; echo more > ~/res/more", results="~/res")
    completion = outcome(machine, job)
    home = tmp_path / "home"
    fetch = jobs_of(machine).fetch
    assert asyncio.run(fetch(job, home, 20))
    kept = (home / "file").stat()
    (home / "file").write_text("wrong\n")
    os.utime(home / "file", ns=(kept.st_atime_ns, kept.st_mtime_ns))  # a quick look at size and time sees nothing
    assert mismatches(completion, home) == ("file",)
    assert asyncio.run(fetch(job, home, 20))
    assert (home / "file").read_text() == "right\n"
    (machine.home / "res/file").write_text("later than the record\n")
    assert not asyncio.run(fetch(job, home, 20))
    assert mismatches(completion, home) == ("file",)


def test_a_record_cannot_speak_for_files_outside_the_results(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    digest = hashlib.sha256(b"x").hexdigest()
    record = Completion(rc=0, started_utc="", ended_utc="", files={"../secret": digest})
    (tmp_path / "home").mkdir()
    assert mismatches(record, tmp_path / "home") == ("../secret",)


def test_a_record_that_is_none_is_trouble_of_one_line(machine: RealSshd) -> None:
    folder = machine.home / "session/jobs/job"
    folder.mkdir(parents=True)
    (folder / "completion.json").write_text(json.dumps({"schema_version": 1}))
    with pytest.raises(CloudTrouble, match="the record of the job job cannot be read"):
        asyncio.run(jobs_of(machine).completion("job"))


def test_start_files_that_print_do_not_spoil_an_answer(machine: RealSshd) -> None:
    (machine.home / ".bashrc").write_text("echo welcome; echo { >&2\n")
    assert asyncio.run(jobs_of(machine).state("job")) is JobState.ABSENT


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../x"},
        {"name": ""},
        {"name": "-x"},
        {"name": "x" * 65},
        {"command": ()},
        {"limit_s": 0.0},
        {"limit_s": float("nan")},
        {"limit_s": float("inf")},
        {"env": {"A-B": "1"}},
        {"env": {"A": "\0"}},
    ],
)
def test_a_job_that_could_not_be_one_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(CloudUsageError):
        Job(**{"name": "job", "command": ("true",), "limit_s": 1.0, **wrong})  # type: ignore[arg-type]
