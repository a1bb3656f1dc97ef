"""What runs on the machine: it starts a job that outlives its connection, looks after it, and says how it ended.

The standard library of Python 3.8 and coreutils are all it needs; it is sent as text and imports nothing of ours. One
JSON object on stdin says what to do. A job is a folder that mkdir claimed, once only, with these files: job.json (the
command and its limits), pid (who looks after it), started, out.log, stop (asked for), completion.json (the last).
The environment comes by a pipe and stays in memory: it may hold secrets. What the job wrote of these is
overwritten when it has ended, before its checksums are taken.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import mmap
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

LOG = "out.log"
COMPLETION = "completion.json"
MARK = "SLOB_JOB"
RESERVE_BYTES = 1 << 20  # so that the completion record fits on a disk that the job filled
FULL_BYTES = 1 << 20
POLL_S = 0.05
LAUNCH_S = 30.0
GONE_S = 5.0
RECORD_S = 60.0
TIMED_OUT = 124
LEAST_SECRET = 8  # bytes; a shorter word stands in files by chance
BY_SIGNAL = 128


def main(told: dict[str, Any]) -> None:
    """Do what was asked; every answer is one JSON object."""
    path = Path(expanded(told["folder"])) / told["name"]
    if told["action"] == "supervise":
        supervise(told, path)
        return
    answer = {"start": start, "look": look, "stop": stop}[told["action"]](told, path)
    with contextlib.suppress(BrokenPipeError):  # the link was cut; what was asked is done all the same
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def start(told: dict[str, Any], path: Path) -> dict[str, Any]:
    """Claim the job's folder, start who looks after it in a session of its own, and wait for its sign."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited: a link cut now takes nothing with it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError:
        return {"outcome": "already"}
    except OSError as error:
        return refusal(error)
    token = secrets.token_hex(16)
    try:
        kept = {key: told[key] for key in ("command", "limit_s", "kill_after_s", "results")}
        write(path / "job.json", json.dumps({**kept, "token": token}))
        write(path / "job_script.py", told["script"])
        (path / "reserve").write_bytes(bytes(RESERVE_BYTES))
        child = launched({**told, "action": "supervise", "token": token}, path)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)  # so that it can be started once the trouble is over
        return refusal(error)
    sign = path / "started"
    wait_for(lambda: sign.exists() or child.poll() is not None, told["start_s"])
    if sign.exists():
        return {"outcome": "started"}
    child.kill()
    end_members(token, 0.0)
    return {"outcome": "failed", "detail": ((read(path / "supervisor.log") or "").strip().splitlines() or [""])[-1]}


def refusal(error: OSError) -> dict[str, Any]:
    """Why a folder could not be made or filled."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return {"outcome": "full" if is_full else "failed", "detail": f"{error.filename}: {error.strerror}"}


def launched(told: dict[str, Any], path: Path) -> subprocess.Popen[bytes]:
    """The process that looks after the job."""
    with (path / "supervisor.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, str(path / "job_script.py")],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(json.dumps(told).encode())
    return child


def supervise(told: dict[str, Any], path: Path) -> None:
    """Run the job's command under `timeout`, end what it left, and write the record of how it ended last."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    write(path / "pid", identity(os.getpid()) or "")
    started_utc, started_s = utc(), time.monotonic()
    child = command(told, path)
    write(path / "started", started_utc + "\n")
    wait_for_end(child, asked)
    was_stopped = child.poll() is None
    if was_stopped:
        child.terminate()  # `timeout` hands it on to all of its group
        patience_s = float(read(path / "stop") or told["kill_after_s"])
        wait_for(lambda: child.poll() is not None, patience_s)
        end_members(told["token"], 0.0)
    rc = child.wait()
    rc = BY_SIGNAL - rc if rc < 0 else rc
    is_late = time.monotonic() - started_s >= told["limit_s"]
    end_members(told["token"], told["kill_after_s"])
    is_full = free_bytes(path) < FULL_BYTES
    with contextlib.suppress(OSError):
        (path / "reserve").unlink()
    blot(path / LOG, told["secrets"])
    for each in files_of(Path(expanded(told["results"]))) if told["secrets"] and told["results"] is not None else ():
        blot(each, told["secrets"])
    files, unreadable = checksums(told["results"])
    why = reason(rc, was_stopped=was_stopped, is_full=is_full, limit_s=told["limit_s"] if is_late else None)
    if unreadable:
        why = why or f"{unreadable[0]} cannot be read on the machine"
    record = {
        "schema_version": 1,
        "rc": rc,
        "reason": why,
        "started_utc": started_utc,
        "ended_utc": utc(),
        "files": files,
    }
    keep(path / COMPLETION, json.dumps(record))


def command(told: dict[str, Any], path: Path) -> subprocess.Popen[bytes]:
    """The job itself; `timeout` bounds it even when nobody looks after it any more."""
    given = {name: expanded(value) for name, value in told["env"].items()}
    limit = ["timeout", f"--kill-after={told['kill_after_s']:g}s", f"{told['limit_s']:g}s"]
    with (path / LOG).open("ab") as log:
        return subprocess.Popen(
            [*limit, *map(expanded, told["command"])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=expanded("~"),
            env={**os.environ, **given, MARK: told["token"]},
        )


def wait_for_end(child: subprocess.Popen[bytes], asked: list[int]) -> None:
    """Sleep until the job has ended or somebody asks for its end; waking often would disturb what is measured."""
    awaited = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)  # only now: the job would have inherited it
    while not asked and child.poll() is None:
        came = signal.sigtimedwait(awaited, 60.0)
        if came is not None and came.si_signo == signal.SIGTERM:
            asked.append(came.si_signo)


def reason(rc: int, *, was_stopped: bool, is_full: bool, limit_s: float | None) -> str | None:
    """What an exit code does not say. limit_s: of a job that ran at least as long."""
    if was_stopped:
        return "it was stopped"
    if limit_s is not None and rc in (TIMED_OUT, BY_SIGNAL + signal.SIGKILL):
        return f"its time of {limit_s:g} s was over"
    if rc and is_full:
        return "the machine's disk is full"
    if rc > BY_SIGNAL:
        with contextlib.suppress(ValueError):
            return f"{signal.Signals(rc - BY_SIGNAL).name} ended it"
    return None


def look(told: dict[str, Any], path: Path) -> dict[str, Any]:
    """All that one short connection can bring: the state, the record, and the log from a byte on."""
    log = b""
    now = state(path)  # before the log: what an ended job wrote is all there
    with contextlib.suppress(OSError), (path / LOG).open("rb") as file:
        file.seek(told["log_offset"])
        log = file.read(told["log_bytes"])
    return {
        "state": now,
        "completion": read(path / COMPLETION) if now == "ended" else None,
        "log": base64.b64encode(log).decode(),
        "has_results": told["results"] is not None and Path(expanded(told["results"])).is_dir(),
        "disk_free_bytes": free_bytes(path if now != "absent" else Path(expanded("~"))),
    }


def state(path: Path) -> str:
    """Absent, running, ended, or dead: nobody looks after it and there is no record."""
    if not path.is_dir():
        return "absent"
    if (path / COMPLETION).exists():
        return "ended"
    pid = read(path / "pid")
    if pid is None:
        return "running" if time.time() - path.stat().st_mtime < LAUNCH_S else "dead"
    if is_alive(pid):
        return "running"
    return "ended" if (path / COMPLETION).exists() else "dead"  # it may have ended between the two looks


def stop(told: dict[str, Any], path: Path) -> dict[str, Any]:
    """Ask who looks after the job to end it; where nobody does, end what is left of it."""
    now = state(path)
    if now == "running":
        with contextlib.suppress(OSError):  # a full disk: the usual patience then
            write(path / "stop", f"{told['grace_s']:g}")
        wait_for((path / "started").exists, LAUNCH_S)
        pid = read(path / "pid") or ""
        if is_alive(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.split(maxsplit=1)[0]), signal.SIGTERM)
    elif now == "dead":
        token = json.loads(read(path / "job.json") or "{}").get("token")
        if token:
            end_members(token, told["grace_s"])
    return {"state": now}


def end_members(token: str, grace_s: float) -> None:
    """SIGTERM to what is left of a job, patience, SIGKILL; a server that was left would hold the GPU."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, GONE_S)):
        for pid in members(token):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        wait_for(lambda: not members(token), patience_s)


def members(token: str) -> list[int]:
    """Every living process that the job started, in whatever session: the environment tells."""
    mark = f"{MARK}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def identity(pid: int) -> str | None:
    """A process for ever: its number can become another's, and after a restart of the machine it will."""
    fields = (read(Path(f"/proc/{pid}/stat")) or "").rpartition(")")[2].split()
    if not fields or fields[0] in "ZX":
        return None
    boot = (read(Path("/proc/sys/kernel/random/boot_id")) or "").strip()
    return f"{pid} {boot} {fields[19]}"


def is_alive(kept: str) -> bool:
    """Whether the process that a pid file tells of still lives."""
    return bool(kept) and identity(int(kept.split(maxsplit=1)[0])) == kept


def checksums(results: str | None) -> tuple[dict[str, str], list[str]]:
    """The sha256 of every file by its path inside the folder, and the files that cannot be read."""
    files: dict[str, str] = {}
    unreadable: list[str] = []
    if results is None:
        return files, unreadable
    top = Path(expanded(results))
    for path in files_of(top):
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
        except OSError:
            unreadable.append(str(path))
        else:
            files[str(path.relative_to(top))] = digest.hexdigest()
    return files, unreadable


def files_of(top: Path) -> Iterator[Path]:
    """The files of a folder that are really in it, in their order."""
    for path in sorted(top.rglob("*")):
        if not path.is_symlink() and path.is_file() and ".rsync-partial" not in path.relative_to(top).parts:
            yield path


def blot(path: Path, words: Sequence[str]) -> None:
    """Overwrite every occurrence of the words in a file by as many stars; a file without any is not touched.

    Its size stays, so that whoever reads it from a byte on goes on where it was, and so does its time.
    """
    with contextlib.suppress(OSError, ValueError):  # it went, cannot be written, or is empty
        times = path.stat()
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            is_changed = False
            for word in map(str.encode, words):
                at = content.find(word)
                while at >= 0:
                    content[at : at + len(word)] = b"*" * len(word)
                    is_changed = True
                    at = content.find(word, at + len(word))
        if is_changed:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def keep(path: Path, text: str) -> None:
    """Write the record; others may fill the disk, and free some of it again."""
    end_s = time.monotonic() + RECORD_S
    while True:
        try:
            write(path, text)
        except OSError:
            if time.monotonic() >= end_s:
                raise
            time.sleep(1.0)
        else:
            return


def write(path: Path, text: str) -> None:
    """Write a file whole, under a temporary name first."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read(path: Path) -> str | None:
    """A file's text, or None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None


def free_bytes(path: Path) -> int:
    """What can still be written there."""
    try:
        place = os.statvfs(path)
    except OSError:
        return 0
    return place.f_bavail * place.f_frsize


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether it became true in time."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= end_s:
            return False
        time.sleep(POLL_S)
    return True


def expanded(word: str) -> str:
    """A word that begins with `~/`, with this machine's home for the sign."""
    return str(Path.home()) + word[1:] if word == "~" or word.startswith("~/") else word


def utc() -> str:
    """The time now, as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


if __name__ == "__main__":
    main(json.load(sys.stdin))
