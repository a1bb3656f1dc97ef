"""Fixtures that several test files of cloud sessions share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_lambda import FakeLambda
from real_sshd import MISSING, RealSshd
from sessions import KEY_NAME, Place


@pytest.fixture
def place() -> Iterator[Place]:
    """An API with one account, and the machine that it rents out; a short path, as sockets and sshd want it."""
    if MISSING:
        pytest.skip(f"not installed: {', '.join(MISSING)}")
    with tempfile.TemporaryDirectory(prefix="slob") as folder, FakeLambda() as fake, RealSshd(Path(folder)) as machine:
        fake.account.add_ssh_key(KEY_NAME, machine.public_key)
        made = Place(Path(folder), fake, machine)
        try:
            yield made
        finally:
            made.stop_watchdogs()


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Place]:
    """An API alone: for what needs no machine that answers."""
    with FakeLambda() as fake:
        fake.account.add_ssh_key(KEY_NAME, "ssh-ed25519 AAAA made-up")
        yield Place(tmp_path, fake, None)
