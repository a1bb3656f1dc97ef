"""Options: one model for the flags, the environment (prefix SLO_BENCH_) and the TOML file of a command.

The models live in `slo_bench.config`; here is how their values are found. Flags win over the environment, the
environment over the file, the file over the defaults.
"""

from __future__ import annotations

import argparse
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from traffic.errors import UsageError

DEFAULT_FILE = Path("slo-bench.toml")


class Options(BaseSettings):
    """Base of every command's options."""

    model_config = SettingsConfigDict(
        env_prefix="SLO_BENCH_", extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


SomeOptions = TypeVar("SomeOptions", bound=Options)


def _split(value: object) -> object:
    """A list in one environment variable: items on lines of their own, or between blanks."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in (value.split("\n") if "\n" in value or ": " in value else value.split())]


StringList = Annotated[list[str], NoDecode, BeforeValidator(_split)]
"""Repeatable as a flag; a list in TOML; several words or lines in an environment variable."""


class _Parser(argparse.ArgumentParser):
    """argparse that answers a mistake with one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def flag(name: str) -> str:
    """The flag of a field: sweep_start -> --sweep-start; json_ (json is pydantic's word) -> --json."""
    return "--" + name.rstrip("_").replace("_", "-")


def parser(model: type[Options], prog: str, description: str) -> argparse.ArgumentParser:
    """The command's parser, made from the model's fields: their names, types and descriptions."""
    made = _Parser(
        prog=prog,
        usage=_usage(model, prog),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        title = str(extra.get("group", "options"))
        if title not in groups:
            groups[title] = made.add_argument_group(title)
        _add(groups[title], name, field)
    made.add_argument("--config", metavar="FILE", help=f"TOML file of options (default: {DEFAULT_FILE} where present)")
    return made


def _usage(model: type[Options], prog: str) -> str:
    extras = {name: field.json_schema_extra for name, field in model.model_fields.items()}
    named = [name for name, extra in extras.items() if isinstance(extra, dict) and extra.get("is_positional")]
    words = [prog, *(metavar_of(name, model.model_fields[name]) for name in named), "[options]"]
    return " ".join([*words, "[-- ARGUMENTS FOR vllm serve]"] if "vllm_arg" in model.model_fields else words)


def _add(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind = plain_type(field.annotation)
    text = (field.description or "").replace("%", "%%")
    if kind is bool and field.default is None:
        both = argparse.BooleanOptionalAction
        group.add_argument(flag(name), dest=name, action=both, default=argparse.SUPPRESS, help=text)
        return
    if kind is bool:
        group.add_argument(flag(name), dest=name, action="store_true", default=argparse.SUPPRESS, help=text)
        return
    if extra.get("is_positional"):
        many = "*" if kind is list else "?"
        group.add_argument(name, nargs=many, default=argparse.SUPPRESS, help=text, metavar=metavar_of(name, field))
        return
    action = "append" if kind is list else "store"
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else None
    group.add_argument(
        flag(name),
        dest=name,
        action=action,
        default=argparse.SUPPRESS,
        help=text,
        metavar="{" + ",".join(choices) + "}" if choices else metavar_of(name, field),
    )


def metavar_of(name: str, field: FieldInfo) -> str:
    """What stands for the option's value in its help."""
    extra = field.json_schema_extra
    return str(extra["metavar"]) if isinstance(extra, dict) and "metavar" in extra else name.rpartition("_")[2].upper()


def plain_type(annotation: Any) -> Any:
    """The type without None, Annotated and list's item."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return plain_type(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return plain_type(next(each for each in typing.get_args(annotation) if each is not type(None)))
    return list if origin is list else annotation


def load(
    model: type[SomeOptions],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    command: str,
    shown: Callable[[str], str] = flag,
) -> SomeOptions:
    """The command's options from its arguments, the environment and the file. Raises UsageError in one line.

    shown: how a fault names an option. command: its table in the file; of two words, a table in a table.
    """
    flags = vars(parser(model, prog, description).parse_args(list(argv)))
    file = flags.pop("config", None)
    values = {**_from_file(model, file, command), **EnvSettingsSource(model)(), **flags}
    try:
        return model(**values)
    except ValidationError as error:
        raise UsageError(f"{_fault(error, shown)}; see {prog} --help") from None


def checked(model: type[SomeOptions], values: Mapping[str, Any], *, where: str) -> SomeOptions:
    """The options of a table in a file. Raises UsageError in one line that begins with `where`."""
    try:
        return model(**values)
    except ValidationError as error:
        raise UsageError(f"{where}: {_fault(error, str)}") from None


def _fault(error: ValidationError, shown: Callable[[str], str]) -> str:
    """The first fault, with the option's name as it was written."""
    first = error.errors()[0]
    where = shown(str(first["loc"][0])) + ": " if first["loc"] else ""
    return f"{where}{_message(first)}"


def _message(first: Mapping[str, Any]) -> str:
    said = str(first["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    given = first.get("input")
    shown = f" (given: {given})" if isinstance(given, (str, int, float)) else ""
    return said[0].lower() + said[1:] + shown


def _from_file(model: type[Options], file: str | None, command: str) -> dict[str, Any]:
    """Options from TOML: top-level keys for every command, and the table named after this one."""
    path = Path(file) if file else DEFAULT_FILE
    if file is None and not path.exists():
        return {}
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config {path} is not TOML: {error}") from error
    table: Any = content
    for word in command.split():
        table = table.get(word, {})
        if not isinstance(table, dict):
            raise UsageError(f"--config {path}: [{command.replace(' ', '.')}] must be a table of options")
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    values = {key.replace("-", "_"): value for key, value in {**shared, **table}.items()}
    for key in values:
        if key not in model.model_fields:
            raise UsageError(f"--config {path}: slo-bench {command} has no option {key!r}")
    return values
