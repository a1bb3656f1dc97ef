"""Options come from flags, environment, file and defaults, in this order; a mistake is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from slo_bench.options import Options, StringList, flag, load, parser
from traffic.errors import UsageError


class Small(Options):
    """A command's options."""

    rate: float = Field(1.0, description="requests per second", gt=0)
    mode: Literal["a", "b"] = Field("a", description="one of two, 100 % sure")
    header: StringList = Field([], description="repeatable")
    dry_run: bool = Field(default=False, description="do nothing")
    maybe: int | None = Field(None, description="optional")
    json_: bool = Field(default=False, description="print JSON")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RATE", "MODE", "HEADER", "MAYBE"):
        monkeypatch.delenv(f"SLO_BENCH_{name}", raising=False)


def loaded(*argv: str) -> Small:
    return load(Small, argv, prog="slo-bench small", description="", command="small")


def refusal(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(*argv)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded().rate == 1.0
    (tmp_path / "slo-bench.toml").write_text("rate = 2\n")
    assert loaded().rate == 2.0
    monkeypatch.setenv("SLO_BENCH_RATE", "3")
    assert loaded().rate == 3.0
    assert loaded("--rate", "4").rate == 4.0


def test_a_table_named_after_the_command_wins_over_shared_keys(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("rate = 2\n[small]\nrate = 5\ndry-run = true\n[sweep]\nfoo = 1\n")
    options = loaded("--config", "other.toml")
    assert (options.rate, options.dry_run) == (5.0, True)


def test_a_repeatable_flag_keeps_commas_and_colons() -> None:
    assert loaded("--header", "Accept: a, b", "--header", "X-Id: 1").header == ["Accept: a, b", "X-Id: 1"]


def test_a_list_in_the_environment_is_split_at_blanks_or_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLO_BENCH_HEADER", "a b")
    assert loaded().header == ["a", "b"]
    monkeypatch.setenv("SLO_BENCH_HEADER", "Accept: a, b\nX-Id: 1")
    assert loaded().header == ["Accept: a, b", "X-Id: 1"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--rate", "0"), ("--rate", "greater than 0", "given: 0")),
        (("--rate", "fast"), ("--rate", "number", "fast")),
        (("--mode", "c"), ("--mode", "'a' or 'b'")),
        (("--maybe", "1.5"), ("--maybe", "integer")),
        (("--foo",), ("--foo", "slo-bench small --help")),
        (("--rate",), ("--rate", "expected one argument")),
        (("--ra", "3"), ("--ra",)),
        (("--rate", "nan"), ("--rate",)),
        (("--config", "missing.toml"), ("missing.toml", "No such file")),
    ],
)
def test_a_mistake_is_one_line_that_names_the_flag(argv: tuple[str, ...], words: tuple[str, ...]) -> None:
    said = refusal(*argv)
    assert all(word in said for word in words), said


def test_a_file_with_an_unknown_key_or_broken_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("ratee = 3\n")
    assert "no option 'ratee'" in refusal("--config", "bad.toml")
    (tmp_path / "bad.toml").write_text("rate = \n")
    assert "is not TOML" in refusal("--config", "bad.toml")
    (tmp_path / "bad.toml").write_text("small = 3\n")
    assert "must be a table" in refusal("--config", "bad.toml")


def test_every_field_stands_in_the_help() -> None:
    text = parser(Small, "slo-bench small", "What it does.").format_help()
    for name, field in Small.model_fields.items():
        assert flag(name) in text
        assert (field.description or "") in text


def test_the_flag_of_a_field_is_its_name_with_dashes() -> None:
    assert (flag("sweep_start"), flag("json_")) == ("--sweep-start", "--json")
    assert loaded("--json").json_
