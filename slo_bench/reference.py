"""The command reference, made from the program itself: `python -m slo_bench.reference > docs/commands.md`."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from enum import Enum

from pydantic.fields import FieldInfo

from reports.markdown import code, escape, heading, table
from slo_bench.cli import COMMANDS, Command
from slo_bench.options import flag, metavar_of, parser, plain_type

_INTRODUCTION = """\
Made from the program by `python -m slo_bench.reference > docs/commands.md`; a test compares the two. `slo-bench COMMAND
--help` shows the same.

Every option can also stand in `slo-bench.toml` (or the file that `--config` names), at the top for all commands or in a
table named after one, and in the environment: `--sweep-start 8` is `sweep_start = 8.0` or `SLO_BENCH_SWEEP_START=8`.
Flags win over the environment, the environment over the file. A repeatable option is a list in TOML, and several words
or lines in a variable."""

_EXIT_CODES = (
    ("0", "done"),
    ("1", "no rate passed, a gate failed, or a regression is proven"),
    ("2", "the command cannot work as it was given"),
    ("3", "the measurement is invalid; the message says why and what to do"),
    ("4", "the engine, its host or the cloud cannot be reached, died or does not come to rest"),
    ("5", "inconclusive, or not comparable"),
    ("6", "`slo-bench run`: skipped, since the tuned file that it needs is not there"),
    ("129, 130, 143", "stopped by SIGHUP, SIGINT or SIGTERM; what was measured is kept"),
)


def reference() -> str:
    """The whole reference as Markdown."""
    parts = [
        heading("Commands", 1),
        _INTRODUCTION,
        table(
            ["command", ""],
            [[f"[`{name}`](#slo-bench-{name.replace(' ', '-')})", each.summary] for name, each in COMMANDS.items()],
            ["left", "left"],
        ),
        *(part for name, command in COMMANDS.items() for part in _command(name, command)),
        heading("Exit codes", 2),
        table(["code", "meaning"], _EXIT_CODES, ["right", "left"]),
    ]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Command) -> Iterator[str]:
    model, _ = command.find()
    yield heading(f"slo-bench {name}", 2)
    yield escape(command.summary)
    if command.details():
        yield f"```\n{command.details()}\n```"
    usage = parser(model, f"slo-bench {name}", command.summary).format_usage().removeprefix("usage: ")
    yield f"```\n{usage.strip()}\n```"
    groups: dict[str, list[list[str]]] = {}
    for field_name, field in model.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        groups.setdefault(str(extra.get("group", "options")), []).append(_row(field_name, field))
    for title, rows in groups.items():
        yield f"**{title}**"
        yield table(["option", "meaning", "default"], rows, ["left", "left", "left"])


def _row(name: str, field: FieldInfo) -> list[str]:
    return [_shown(name, field), escape(field.description or ""), _default(field)]


def _shown(name: str, field: FieldInfo) -> str:
    """The option as it is typed."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kind = plain_type(field.annotation)
    if extra.get("is_positional"):
        return code(metavar_of(name, field))
    if kind is bool:
        return code(flag(name) if field.default is not None else f"{flag(name)}, --no-{flag(name)[2:]}")
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    return code(f"{flag(name)} {'{' + ','.join(choices) + '}' if choices else metavar_of(name, field)}")


def _default(field: FieldInfo) -> str:
    """The default where there is one that a reader can use."""
    default = field.get_default(call_default_factory=True)
    if default is None or default is False or default == [] or field.is_required():
        return ""
    if isinstance(default, Enum):
        default = default.value
    return code(f"{default:g}" if isinstance(default, float) else str(default))


if __name__ == "__main__":
    sys.stdout.write(reference())
