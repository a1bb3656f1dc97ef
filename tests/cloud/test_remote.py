"""The link to a machine, on a real sshd: what is told apart, what is resumed, and that nothing waits for ever."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from real_sshd import MISSING, QUICK, RealSshd

from cloud.errors import CloudTrouble, CloudUsageError, HostKeyChanged, LinkLost
from cloud.remote import PARTIAL_DIR, Login, Ran, Remote

pytestmark = [
    pytest.mark.cloud,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}"),
]

LARGE_BYTES = 400_000_000
FOUND_S = 12.0
"""Within this a dead link must be found; the bounds of these tests promise about four seconds, on a free machine."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[RealSshd]:
    with RealSshd(tmp_path) as machine:
        yield machine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)  # noqa: S607


def run(remote: Remote, command: str, *, stdin: bytes | None = None) -> Ran:
    return asyncio.run(remote.run(command, timeout_s=20, stdin=stdin))


async def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it never came"
        await asyncio.sleep(0.005)


def large_file(path: Path) -> Path:
    """A file that is long on its way: bytes at both ends, a hole between, so that the test's disk stays free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"begin")
        file.truncate(LARGE_BYTES)
        file.seek(LARGE_BYTES - 3)
        file.write(b"end")
    return path


def has_come(folder: Path, name: str) -> Callable[[], bool]:
    """Whether rsync has begun to write a file: it has a temporary name then."""
    return lambda: any(each.stat().st_size > 1_000_000 for each in folder.glob(f".{name}.*"))


def programs_of_ours() -> list[str]:
    own = Path(f"/proc/{os.getpid()}/task")
    children = [pid for task in own.iterdir() for pid in (task / "children").read_text().split()]
    return [name for pid in children if (name := Path(f"/proc/{pid}/comm").read_text().strip()) in {"ssh", "rsync"}]


@pytest.mark.parametrize(
    ("command", "rc"), [("true", 0), ("exit 7", 7), ("exit 255", 255), ("kill -KILL $$", 137), ("nothing-like-it", 127)]
)
def test_a_commands_own_exit_code_is_never_taken_for_a_lost_link(machine: RealSshd, command: str, rc: int) -> None:
    assert run(machine.remote(), command).rc == rc


def test_a_command_gets_its_input_and_both_outputs_come_apart(machine: RealSshd) -> None:
    assert run(machine.remote(), "cat; echo two >&2", stdin=b"one\n") == Ran(0, "one\n", "two\n")


def test_a_home_sign_means_the_machines_home_for_commands_and_for_transfers(machine: RealSshd, tmp_path: Path) -> None:
    remote = machine.remote()
    (tmp_path / "up" / PARTIAL_DIR).mkdir(parents=True)
    (tmp_path / "up" / "one two").write_text("1")
    (tmp_path / "up" / PARTIAL_DIR / "half").write_text("")
    (tmp_path / "up" / "link").symlink_to("one two")

    async def there_and_back() -> None:
        await remote.push(tmp_path / "up", "~/a/folder", 20)
        await remote.push(tmp_path / "up" / "one two", "~/b/file", 20)
        await remote.pull("~/a", tmp_path / "down", 20, exclude=["link"])
        await remote.pull("~/b/file", tmp_path / "alone", 20)

    asyncio.run(there_and_back())
    assert {str(path.relative_to(machine.home)) for path in machine.home.rglob("*") if path.is_file()} == {
        "a/folder/one two",
        "a/folder/link",
        "b/file",
    }
    assert [path for path in (tmp_path / "down").rglob("*") if path.is_file()] == [tmp_path / "down/folder/one two"]
    assert (tmp_path / "alone").read_text() == "1"
    assert run(remote, "cd ~ && pwd").stdout.strip() == str(machine.home)


def test_a_file_is_read_from_a_byte_on_and_one_that_is_not_there_yet_is_empty(machine: RealSshd) -> None:
    remote = machine.remote()
    (machine.home / "it's a log").write_bytes(b"0123\xff5")

    async def reads() -> list[bytes]:
        places = (("~/it's a log", 4), ("~/it's a log", 99), ("~/none", 0))
        return [await remote.read_from(path, offset, 20) for path, offset in places]

    assert asyncio.run(reads()) == [b"\xff5", b"", b""]
    with pytest.raises(CloudTrouble, match=r"there is no ~/none on the machine"):
        asyncio.run(remote.pull("~/none", machine.folder / "x", 20))


def test_another_host_key_at_the_address_ends_everything_at_once(machine: RealSshd, tmp_path: Path) -> None:
    remote = machine.remote()
    assert not remote.login.is_known
    run(remote, "true")
    assert remote.login.is_known
    machine.stop_listening()
    machine.listen(with_new_host_key=True)
    (tmp_path / "up").mkdir()
    calls: list[Callable[[], Coroutine[None, None, object]]] = [
        lambda: remote.run("touch ~/reached", timeout_s=20),
        remote.probe,
        lambda: remote.wait_until_it_answers(time.monotonic() + 20),
        lambda: remote.push(tmp_path / "up", "~/reached", 20),
        lambda: remote.pull("~", tmp_path / "down", 20),
    ]
    for call in calls:
        with pytest.raises(HostKeyChanged, match="another host key"):
            asyncio.run(call())
    assert not (machine.home / "reached").exists()
    assert asyncio.run(Remote(machine.login(tmp_path / "another session"), QUICK).probe())


def test_a_key_that_the_user_trusts_already_is_held_against_the_machine(machine: RealSshd, tmp_path: Path) -> None:
    run(machine.remote(), "true")
    login = replace(machine.login(tmp_path / "new"), trusted=(machine.folder / "known_hosts",))
    assert asyncio.run(Remote(login, QUICK).probe())
    machine.stop_listening()
    machine.listen(with_new_host_key=True)
    with pytest.raises(HostKeyChanged):
        asyncio.run(Remote(login, QUICK).probe())


def test_a_machine_that_says_words_of_a_changed_key_has_not_changed(machine: RealSshd) -> None:
    remote = machine.remote()

    async def cut_while_it_speaks() -> None:
        running = asyncio.ensure_future(
            remote.run("echo Host key verification failed. >&2; touch ~/on; sleep 60", timeout_s=20)
        )
        await until((machine.home / "on").exists)
        machine.cut()
        await running

    with pytest.raises(LinkLost, match="the link to"):
        asyncio.run(cut_while_it_speaks())


def test_a_frozen_link_is_found_within_its_bounds_in_every_direction(machine: RealSshd, tmp_path: Path) -> None:
    remote = machine.remote()
    run(remote, "true")
    large_file(tmp_path / "up" / "large")
    large_file(machine.home / "down" / "large")

    async def frozen() -> tuple[list[object], float]:
        running = [
            asyncio.ensure_future(call)
            for call in (
                remote.run("touch ~/on; sleep 600", timeout_s=100),
                remote.push(tmp_path / "up", "~/up", 100),
                remote.pull("~/down", tmp_path / "down", 100),
            )
        ]
        await until((machine.home / "on").exists)
        await asyncio.gather(until(has_come(tmp_path / "down", "large")), until(has_come(machine.home / "up", "large")))
        assert machine.freeze() >= 3
        since_s = time.monotonic()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        return list(outcomes), time.monotonic() - since_s

    outcomes, found_s = asyncio.run(frozen())
    assert [type(each) for each in outcomes] == [LinkLost] * 3
    assert found_s < FOUND_S
    assert programs_of_ours() == []


@pytest.mark.parametrize("direction", ["push", "pull"])
def test_a_large_file_goes_on_where_the_link_was_cut(machine: RealSshd, tmp_path: Path, direction: str) -> None:
    remote = machine.remote()
    here, there = tmp_path / "here", machine.home / "there"
    source, target = (here, there) if direction == "push" else (there, here)
    large = large_file(source / "large")

    async def transfer() -> None:
        await (remote.push(here, "~/there", 60) if direction == "push" else remote.pull("~/there", here, 60))

    async def cut() -> None:
        running = asyncio.ensure_future(transfer())
        await until(has_come(target, "large"))
        machine.cut()
        await running

    with pytest.raises(LinkLost):
        asyncio.run(cut())
    assert not (target / "large").exists()  # a reader would take a part for the whole
    partial = target / PARTIAL_DIR / "large"
    asyncio.run(until(partial.exists))
    asyncio.run(transfer())
    assert (target / "large").stat().st_size == LARGE_BYTES
    assert not partial.exists()
    assert subprocess.run(["cmp", str(large), str(target / "large")], check=False).returncode == 0  # noqa: S607


def test_a_listener_that_comes_back_is_found_and_one_that_does_not_ends_the_wait(machine: RealSshd) -> None:
    remote = machine.remote()
    machine.stop_listening()
    assert not asyncio.run(remote.probe())
    since_s = time.monotonic()
    with pytest.raises(LinkLost, match="Connection refused"):
        asyncio.run(remote.wait_until_it_answers(since_s + 0.5))
    assert time.monotonic() - since_s < FOUND_S

    async def comes_back() -> None:
        waiting = asyncio.ensure_future(remote.wait_until_it_answers(time.monotonic() + 20))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(machine.listen)
        await waiting

    asyncio.run(comes_back())


def test_a_command_that_takes_too_long_and_one_that_is_cancelled_leave_no_program_here(machine: RealSshd) -> None:
    remote = machine.remote()
    with pytest.raises(LinkLost, match="did not answer within 1 s"):
        asyncio.run(remote.run("sleep 600", timeout_s=1))

    async def cancelled() -> None:
        running = asyncio.ensure_future(remote.run("touch ~/on; sleep 600", timeout_s=600))
        await until((machine.home / "on").exists)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert programs_of_ours() == []


def test_a_full_disk_of_the_machine_is_said_to_be_full(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "file").write_bytes(os.urandom(8 << 20))
    with (
        RealSshd(tmp_path, home=small_disk) as machine,
        pytest.raises(CloudTrouble, match="disk of the machine is full"),
    ):
        asyncio.run(machine.remote().push(tmp_path / "up", "~/up", 20))


def test_an_ssh_configuration_made_for_people_does_not_get_in_the_way(machine: RealSshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host box\n HostName 127.0.0.1\n Port {machine.port}\n User {machine.user}\n IdentityFile {machine.key}\n"
        f"Host *\n ControlMaster auto\n ControlPath {tmp_path}/%C\n ControlPersist 600\n RemoteCommand tmux\n"
        " RequestTTY force\n LogLevel QUIET\n LocalForward 1 127.0.0.1:1\n ExitOnForwardFailure yes\n"
    )
    login = Login(user=None, host="box", port=None, known_hosts=tmp_path / "session" / "known_hosts", config=config)
    remote = Remote(login, QUICK)
    assert run(remote, "tty >/dev/null || echo none").stdout == "none\n"
    (tmp_path / "up").mkdir()
    asyncio.run(remote.push(tmp_path / "up", "~/up", 20))
    assert (machine.home / "up").is_dir()
    machine.stop_listening()
    machine.listen(with_new_host_key=True)
    with pytest.raises(HostKeyChanged):
        asyncio.run(remote.probe())


def test_what_a_program_would_take_for_an_option_is_refused(machine: RealSshd, tmp_path: Path) -> None:
    for host in ("-oProxyCommand=touch x", "a b", ""):
        with pytest.raises(CloudUsageError):
            Login(user=None, host=host, known_hosts=tmp_path / "k")
    for path in ("relative", "~/a b", "~/$(touch x)", "~user/x"):
        with pytest.raises(CloudUsageError, match="no path for a transfer"):
            asyncio.run(machine.remote().pull(path, tmp_path, 20))


def test_a_program_that_is_missing_here_is_named(
    machine: RealSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CloudUsageError, match="ssh is not installed here"):
        run(machine.remote(), "true")
