"""Whoever asks for a list of machines is told when the API is silent, and until when it is asked."""

from __future__ import annotations

import asyncio
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_lambda import API_KEY, FakeLambda
from pydantic import SecretStr

from cloud.errors import CloudTrouble
from cloud.lambda_api import LambdaApi
from cloud.pacing import Pacing
from slo_bench.renting.account import Patience
from slo_bench.renting.machines import list_machines, reap_machines
from slo_bench.renting.options import ListOptions, ProviderOptions, ReapOptions

PATIENCE = Patience(silence_s=0.2, whole_s=3.0)
LINE = re.compile(r"no answer from (\S+): it is asked again until (\d\d:\d\d:\d\d) UTC \((\d+) s more\)")
Command = Callable[[Any, Patience], Awaitable[int]]
CASES: dict[str, tuple[type[ProviderOptions], Command]] = {
    "list": (ListOptions, list_machines),
    "reap": (ReapOptions, reap_machines),
}


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LAMBDA_API_KEY", API_KEY)


@pytest.fixture
def closed() -> Iterator[str]:
    """The address of a port that is taken and where nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}/api/v1"


def asked(case: str, base: str, patience: Patience = PATIENCE) -> None:
    model, command = CASES[case]
    asyncio.run(command(model(api_base=base, calls_per_s=1000.0), patience))  # type: ignore[arg-type]


def seconds_until(clock: str, now: datetime) -> float:
    moment = datetime.combine(now.date(), datetime.strptime(clock, "%H:%M:%S").time(), UTC)  # noqa: DTZ007 - combined with UTC
    return (moment - now + timedelta(days=moment < now - timedelta(hours=12))).total_seconds()


@pytest.mark.parametrize("case", CASES)
def test_of_a_closed_port_one_line_says_until_when_it_is_asked_and_then_it_ends(
    case: str, closed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    began = datetime.now(UTC)
    with pytest.raises(CloudTrouble, match="gave up after 3 s"):
        asked(case, closed)
    took_s = (datetime.now(UTC) - began).total_seconds()
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    told = LINE.fullmatch(line)
    assert told is not None, line
    assert told[1] == closed
    assert seconds_until(told[2], began) == pytest.approx(3.0, abs=1.1)
    assert int(told[3]) == 3
    assert took_s < 4.5


@pytest.mark.parametrize("case", CASES)
def test_of_an_api_that_hangs_the_line_comes_while_it_hangs_and_the_deadline_holds(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeLambda() as fake:
        fake.add_fault("instances", "hang", times=None)
        began_s = time.monotonic()
        with pytest.raises(CloudTrouble, match=r"gave up after 1\.5 s"):
            asked(case, fake.base_url, Patience(silence_s=0.2, whole_s=1.5))
        assert time.monotonic() - began_s < 3.0
        assert fake.count("instances") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert LINE.fullmatch(line), line


@pytest.mark.parametrize("case", CASES)
def test_of_an_api_that_answers_nothing_is_said(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeLambda() as fake:
        asked(case, fake.base_url)
    said = capsys.readouterr()
    assert said.err == ""
    assert "of ours" in said.out


def test_a_silence_is_told_once_and_the_next_one_again(tmp_path: Path) -> None:
    said: list[str] = []

    async def through_it() -> None:
        with FakeLambda() as fake:
            pacing = Pacing(1000.0, 0.001, lock_file=tmp_path / "pacing")
            async with LambdaApi(
                SecretStr(API_KEY),
                pacing=pacing,
                base_url=fake.base_url,
                timeout_s=0.3,
                patience_s=0.5,
                backoff_s=0.01,
                say=said.append,
                silence_s=0.1,
            ) as api:
                for is_silent in (True, True, False, True):
                    if is_silent:
                        fake.add_fault("instances", "502", times=None)
                        with pytest.raises(CloudTrouble):
                            await api.machines()
                        fake.clear_faults()
                    else:
                        assert await api.machines() == ()

    asyncio.run(through_it())
    assert len(said) == 2
    assert all(LINE.fullmatch(line) for line in said), said


@pytest.mark.cloud
def test_at_a_terminal_the_line_comes_within_seconds_and_ctrl_c_ends_it(tmp_path: Path, closed: str) -> None:
    words = [sys.executable, "-m", "slo_bench", "cloud", "list", "--api-base", closed]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert select.select([process.stderr], [], [], 30.0)[0], "it is silent"
            first = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            rest, code = process.communicate(timeout=20), process.returncode
        finally:
            process.kill()
    told = LINE.fullmatch(first.strip())
    assert told is not None, first
    assert 110 <= int(told[3]) <= 116
    assert code == 130
    assert rest[0] == ""
