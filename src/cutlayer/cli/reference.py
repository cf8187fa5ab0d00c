"""The command line as a page of the documentation: `python -m cutlayer.cli.reference > docs/reference/cli.md`."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from typer.models import OptionInfo

from cutlayer.cli.app import app


@dataclass(frozen=True)
class Command:
    """A command, read from the function that runs it.

    Attributes:
        name: Its full name, for example `cutlayer vendor init`.
        text: What it is for.
        example: A whole command line.
        parameters: Its options and arguments.
    """

    name: str
    text: str
    example: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Parameter:
    """An option or an argument.

    Attributes:
        names: How it is written.
        value: What follows the option's name; empty for switches.
        default: Its default, as it would be typed; `required` where there is none.
        text: What it means.
    """

    names: tuple[str, ...]
    value: str
    default: str
    text: str


def commands(of: typer.Typer = app, name: str = "cutlayer") -> Iterator[Command]:
    """Every command, group by group."""
    for info in of.registered_commands:
        function = info.callback
        if function is not None:
            yield Command(
                name=f"{name} {info.name or function.__name__.replace('_', '-')}",
                text=inspect.getdoc(function) or "",
                example=(info.epilog or "").removeprefix("Example: "),
                parameters=tuple(_parameters(function)),
            )
    for group in of.registered_groups:
        if group.typer_instance is not None:
            yield from commands(group.typer_instance, f"{name} {group.name}")


def _parameters(function: Any) -> Iterator[Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = typing.get_args(hints[name])[:2]
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        if getattr(info, "hidden", False):
            continue
        dashed = name.replace("_", "-")
        if not isinstance(info, OptionInfo):
            names: tuple[str, ...] = (info.metavar or name.upper(),)
        elif declared := _declared(info):
            names = declared
        else:
            names = (f"--{dashed}", f"--no-{dashed}") if kind is bool else (f"--{dashed}",)
        text = info.help or ""
        if info.envvar:
            text += f"{'' if text.endswith('.') else '.'} Environment: `{info.envvar}`."
        yield Parameter(names, _value(names, info, kind), _default(parameter.default), text)


def _declared(info: OptionInfo) -> tuple[str, ...]:
    # inside Annotated, typer takes the first name for a default until the command is built
    first = (info.default,) if isinstance(info.default, str) else ()
    return (*first, *(info.param_decls or ()))


def _value(names: tuple[str, ...], info: Any, kind: Any) -> str:
    if kind is bool or not names[0].startswith("-"):
        return ""
    if info.metavar:
        return str(info.metavar)
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(typing.get_args(kind))
    return {int: "N", float: "NUMBER"}.get(kind, "VALUE")


def _default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if default is None or default is False:
        return ""
    if isinstance(default, list):
        return " ".join(map(str, default))
    return "on" if default is True else str(default)


def page() -> str:
    """The page, as Markdown."""
    lines = [
        "# Command line",
        "",
        "<!-- Written by `python -m cutlayer.cli.reference`; a test compares it with the program. -->",
        "",
        "With `--json` the last line of standard output is one JSON object; progress and messages go to standard",
        "error. On failure that object is `{error, remedy, exit_code}`. [Exit codes](errors.md) are stable.",
        "",
        "`cutlayer --version` prints the version, `cutlayer COMMAND --help` what stands here.",
    ]
    for command in commands():
        lines += ["", f"## {command.name}", "", command.text, "", "```console", f"$ {command.example}", "```", ""]
        lines += ["| option | default | meaning |", "| --- | --- | --- |"]
        lines += [_row(parameter) for parameter in command.parameters]
    return "\n".join(lines) + "\n"


def _row(parameter: Parameter) -> str:
    shown = ", ".join(f"`{name}`" for name in parameter.names) + (f" {parameter.value}" if parameter.value else "")
    default = parameter.default if parameter.default in ("", "required") else f"`{parameter.default}`"
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (shown, default, parameter.text)) + " |"


if __name__ == "__main__":
    sys.stdout.write(page())
