"""The key that opens a rented machine: the account's public half must be that of a private half which is here."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloud.errors import CloudUsageError
from cloud.machine import SshKey
from cloud.ssh import output_of

_KEYGEN_S = 15.0
_KILL_S = 1.0


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An account's key and what ssh is given for it: a private key, or a public one whose other half the agent has."""

    name: str
    identity: Path


async def find_key(wanted: str, account: Sequence[SshKey], *, home: Path | None = None) -> KeyPair:
    """The pair that `--ssh-key` means: a private key's path, or the name of a key of the account.

    home: where `.ssh` is. Raises CloudUsageError where the two halves do not meet: a machine would be paid for that
    nobody can enter.
    """
    place = _file(wanted)
    if place is not None:
        public = await _public_half(place)
        for key in account:
            if key_body(key.public_key) == public:
                return KeyPair(key.name, place.absolute())
        raise CloudUsageError(
            f"the account has no key for {wanted}: add its public half to the account ({_names(account)})"
        )
    for key in account:
        if key.name == wanted:
            return KeyPair(key.name, await _private_half(key, Path.home() if home is None else home))
    raise CloudUsageError(f"{wanted} is neither a file here nor a key of the account ({_names(account)})")


def key_body(public_key: str) -> tuple[str, ...]:
    """Type and base64 of a public key; the comment says nothing."""
    return tuple(public_key.split()[:2])


def _file(wanted: str) -> Path | None:
    path = Path(wanted).expanduser()
    return path if path.is_file() else None


def _refuse_open(private: Path) -> None:
    mode = stat.S_IMODE(private.stat().st_mode)
    if mode & 0o077:
        raise CloudUsageError(f"others can read {private} (mode {mode:04o}), so ssh refuses it: chmod 600 {private}")


async def _public_half(private: Path) -> tuple[str, ...]:
    _refuse_open(private)
    made = await output_of(
        ("ssh-keygen", "-y", "-P", "", "-f", str(private)), stdin=None, timeout_s=_KEYGEN_S, kill_s=_KILL_S
    )
    if made.rc == 0:
        return key_body(made.stdout.decode(errors="replace"))
    with suppress(OSError):  # a passphrase: its public half must be beside it, and the agent must have it
        public = key_body(private.with_name(f"{private.name}.pub").read_text())
        if public in await _agent_keys():
            return public
    raise CloudUsageError(f"{private} cannot be used without asking: if it has a passphrase, ssh-add it first")


async def _private_half(key: SshKey, home: Path) -> Path:
    """A key of ~/.ssh with this public half, else the public file itself where the agent has the other half."""
    body = key_body(key.public_key)
    publics = [each for each in sorted((home / ".ssh").glob("*.pub")) if _body_of(each) == body]
    for public in publics:
        private = public.with_suffix("")
        if private.is_file() and await _public_half(private) == body:
            return private
    for private in sorted(each for each in (home / ".ssh").glob("*") if _looks_private(each)):
        with suppress(CloudUsageError):
            if await _public_half(private) == body:
                return private
    if publics and body in await _agent_keys():
        return publics[0]
    raise CloudUsageError(
        f"no private key in {home / '.ssh'} fits the account's key {key.name}: give --ssh-key the private key's path"
    )


async def _agent_keys() -> list[tuple[str, ...]]:
    if "SSH_AUTH_SOCK" not in os.environ:
        return []
    listed = await output_of(("ssh-add", "-L"), stdin=None, timeout_s=_KEYGEN_S, kill_s=_KILL_S)
    return [key_body(line) for line in listed.stdout.decode(errors="replace").splitlines()]


def _looks_private(path: Path) -> bool:
    with suppress(OSError):
        if path.is_file() and path.stat().st_mode & 0o077 == 0:
            with path.open("rb") as file:
                return b"PRIVATE KEY" in file.readline(100)
    return False


def _body_of(path: Path) -> tuple[str, ...]:
    with suppress(OSError):
        return key_body(path.read_text(errors="replace"))
    return ()


def _names(account: Sequence[SshKey]) -> str:
    return f"it has: {', '.join(key.name for key in account)}" if account else "it has none"
