"""Secrets in files are overwritten where they stand, and nothing else changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from cloud.blotting import blot_folder, words_of
from cloud.fetching import without

WORD = "hf_0123456789abcdef"


def test_every_occurrence_is_overwritten_and_sizes_and_times_stay(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "server.log"
    path.parent.mkdir()
    path.write_bytes(f"a {WORD} b {WORD}{WORD}".encode() + b"\xff end")
    os.utime(path, ns=(1_000_000_007, 2_000_000_011))
    blot_folder(tmp_path, words_of([SecretStr(WORD)]))
    stars = "*" * len(WORD)
    assert path.read_bytes() == f"a {stars} b {stars}{stars}".encode() + b"\xff end"
    assert path.stat().st_mtime_ns == 2_000_000_011


def test_files_without_a_secret_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "other").write_text(WORD[:-1])
    (tmp_path / "other").chmod(0o400)
    before = (tmp_path / "other").stat()
    blot_folder(tmp_path, words_of([SecretStr(WORD)]))
    assert (tmp_path / "other").read_text() == WORD[:-1]
    assert (tmp_path / "other").stat().st_mtime_ns == before.st_mtime_ns


def test_what_a_link_leads_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "mine").write_text(WORD)
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "mine")
    blot_folder(tmp_path / "inside", words_of([SecretStr(WORD)]))
    assert (tmp_path / "mine").read_text() == WORD


def test_a_word_that_stands_there_by_chance_is_not_looked_for() -> None:
    assert words_of([SecretStr("1"), SecretStr(""), SecretStr("longer-one"), SecretStr(WORD)]) == (WORD, "longer-one")


@pytest.mark.parametrize("known", range(1, len(WORD)))
def test_a_line_whose_end_was_overwritten_between_two_looks_shows_no_part_of_it(known: int) -> None:
    line = f"token {WORD[:known]}{'*' * (len(WORD) - known)}, and *"
    assert without([SecretStr(WORD)])(line) == "token [secret], and *"
