"""The API key comes from the environment or from a file that only its owner can read, and is told to nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloud.api_key import read_api_key
from cloud.errors import CloudUsageError

KEY = "secret_made-up_0123.not-a-real-key"


def key_file(path: Path, text: str = f"{KEY}\n", mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_environment_comes_first_then_the_file_then_the_usual_place(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    key_file(tmp_path / ".lambda" / "api_key", "of-the-usual-place\n")
    other = key_file(tmp_path / "other", "of-the-file")
    given = {**environ, "LAMBDA_API_KEY": " of-the-environment\n"}
    assert read_api_key(given, other).get_secret_value() == "of-the-environment"
    assert read_api_key(environ, other).get_secret_value() == "of-the-file"
    assert read_api_key({**environ, "LAMBDA_API_KEY": ""}, None).get_secret_value() == "of-the-usual-place"


def test_without_any_the_ways_to_give_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(CloudUsageError) as refused:
        read_api_key({"HOME": str(tmp_path)})
    assert str(refused.value) == (
        f"no API key: set LAMBDA_API_KEY, or write it to {tmp_path}/.lambda/api_key with mode 0600 "
        "(--api-key-file names another file)"
    )


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_can_read_is_refused_with_the_command_that_helps(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path / "key", mode=mode)
    with pytest.raises(CloudUsageError) as refused:
        read_api_key({}, path)
    assert str(refused.value) == f"others can read the API key in {path} (mode {mode:04o}): chmod 600 {path}"


def test_a_key_that_its_owner_cannot_write_is_as_good(tmp_path: Path) -> None:
    assert read_api_key({}, key_file(tmp_path / "key", mode=0o400)).get_secret_value() == KEY


def test_only_a_regular_file_is_read_and_nothing_waits_for_another(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("fifo", "folder"):
        with pytest.raises(CloudUsageError, match="is not a regular file"):
            read_api_key({}, tmp_path / name)


@pytest.mark.parametrize("text", ["", "\n", f"api_key = {KEY}", f"{KEY}\n{KEY}", "kéy", "key\x00"])
def test_what_is_no_key_is_refused_and_not_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(CloudUsageError, match="it must be the key alone, on one line") as refused:
        read_api_key({}, key_file(tmp_path / "a-file", text))
    assert KEY not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [f"api_key = {KEY}", f"{KEY}\n{KEY}", "kéy"])
def test_nor_is_it_told_of_the_environment(tmp_path: Path, text: str) -> None:
    with pytest.raises(CloudUsageError, match="LAMBDA_API_KEY holds more than an API key") as refused:
        read_api_key({"LAMBDA_API_KEY": text}, key_file(tmp_path / "a-good-one"))
    assert KEY not in str(refused.value)


def test_a_key_is_shown_nowhere(tmp_path: Path) -> None:
    key = read_api_key({}, key_file(tmp_path / "key"))
    assert KEY not in f"{key} {key!r}"
