"""A local copy of the server's tokenizer: from a file or a folder, and one line for what is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from slo_bench.tokenizer import load_tokenizer
from traffic.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder whose tokenizer splits at blanks, and would cut and pad what it is given."""
    tokenizer = Tokenizer(models.WordLevel({"the": 0, "moon": 1, "[UNK]": 2}, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_a_folder_and_its_file_count_alike_without_cutting_or_padding(name: str, folder: Path) -> None:
    count = load_tokenizer(str(folder / name))
    assert [count(text) for text in ("", "the moon", "the moon " * 50)] == [0, 2, 100]


def test_what_is_no_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    for name in ("other.json", "missing.json", ""):
        with pytest.raises(UsageError, match=r"--tokenizer \S+: ") as told:
            load_tokenizer(str(tmp_path / name))
        assert "\n" not in str(told.value)
