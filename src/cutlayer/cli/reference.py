"""Pages of the documentation that are made from the program: `python -m cutlayer.cli.reference docs/reference`.

`cli.md` is made as a whole. In `settings.md` the tables are, between `<!-- settings: SPEC TOPIC -->` and
`<!-- end -->`; what stands around them is written by hand.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from typer.models import CommandInfo, OptionInfo

from cutlayer.cli.app import app
from cutlayer.cli.command import arguments
from cutlayer.cli.options import Connection, TrainingFiles
from cutlayer.cli.settings import Setting, settings_of
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.embedding import EmbeddingSettings
from cutlayer.customer.settings import FinetuneSpec, Sampling
from cutlayer.gateway.settings import GatewaySettings
from cutlayer.reports.audit_spec import AuditSpec
from cutlayer.vendor.settings import VendorSettings


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
    """Every command, group by group; a group that does something by itself is one, too."""
    for info in [*_itself(of, name), *of.registered_commands]:
        function = info.callback
        if function is not None:
            yield Command(
                name=name if info.name == name else f"{name} {info.name or function.__name__.replace('_', '-')}",
                text=inspect.getdoc(function) or "",
                example=(info.epilog or "").removeprefix("Example: "),
                parameters=tuple(_parameters(function)),
            )
    for group in of.registered_groups:
        if group.typer_instance is not None:
            yield from commands(group.typer_instance, f"{name} {group.name}")


def _itself(of: typer.Typer, name: str) -> list[CommandInfo]:
    """A group's own command, where there is one."""
    itself = of.registered_callback
    if itself is None or not of.info.invoke_without_command:
        return []
    return [CommandInfo(name=name, callback=itself.callback, epilog=str(of.info.epilog))]


def _parameters(function: Any) -> Iterator[Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    settings = {setting.name: setting for each in arguments(function) for setting in each.settings}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in settings:
            yield _of_setting(settings[name])
        elif typing.get_origin(hints[name]) is typing.Annotated:
            yield from _own(name, parameter, hints[name])


def _of_setting(setting: Setting) -> Parameter:
    first, *others = setting.flags
    names = (first, f"--no-{first.removeprefix('--')}", *others) if setting.is_switch else setting.flags
    default = "required" if setting.required and not setting.default else setting.default
    return Parameter(names, setting.metavar, default, _with_environment(setting.meaning, setting.shown.env))


def _own(name: str, parameter: inspect.Parameter, hint: Any) -> Iterator[Parameter]:
    kind, info = typing.get_args(hint)[:2]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    if getattr(info, "hidden", False):
        return
    dashed = name.replace("_", "-")
    if not isinstance(info, OptionInfo):
        names: tuple[str, ...] = (info.metavar or name.upper(),)
    elif declared := _declared(info):
        names = declared
    else:
        names = (f"--{dashed}", f"--no-{dashed}") if kind is bool else (f"--{dashed}",)
    yield Parameter(
        names, _value(names, info, kind), _default(parameter.default), _with_environment(info.help or "", info.envvar)
    )


def _with_environment(text: str, variable: str | None) -> str:
    return f"{text}{'' if text.endswith('.') else '.'} Environment: `{variable}`." if variable else text


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


def command_page() -> str:
    """The page, as Markdown."""
    lines = [
        "# Command line",
        "",
        "<!-- Written by `python -m cutlayer.cli.reference docs/reference`; a test compares it with the program. -->",
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
    return _cells(shown, default, parameter.text)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


LISTED = (
    FinetuneSpec,
    DataSpec,
    TrainingFiles,
    Sampling,
    EmbeddingSettings,
    GatewaySettings,
    AttackerSpec,
    AuditSpec,
    Connection,
    VendorSettings,
)
SPECS: dict[str, type[BaseModel]] = {each.__name__: each for each in LISTED}
"""Whose settings the settings page lists."""
_BLOCK = re.compile(r"(<!-- settings: (\w+) ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def settings_page(written: str) -> str:
    """The settings page with its tables made anew.

    Args:
        written: The page as it is.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}\n{settings_table(SPECS[found[2]], found[3])}\n\n{found[4]}", written)


def settings_table(spec: type[BaseModel], topic: str) -> str:
    """A table of a spec's settings of one topic, as Markdown."""
    settings = [each for each in settings_of(spec) if each.shown.topic == topic]
    if spec is VendorSettings:
        rows = [_cells(f"`{each.key}`", _in_json(each), _sourced(each)) for each in settings]
        return "\n".join([_cells("setting", "default", "meaning"), _cells(*["---"] * 3), *rows])
    rows = [_cells(f"`{each.key}`", f"`{each.flags[0]}`", _told(each), _sourced(each)) for each in settings]
    return "\n".join([_cells("setting", "option", "default", "meaning"), _cells(*["---"] * 4), *rows])


def _told(setting: Setting) -> str:
    """A default: what can be typed as code, what it comes to in words."""
    default = "required" if setting.required and not setting.default else setting.default
    return default if setting.shown.default or default in ("", "required") else f"`{default}`"


def _in_json(setting: Setting) -> str:
    """A default of a setting that stands in a JSON file."""
    return f"`{setting.example}`" if setting.is_switch else _told(setting)


def _sourced(setting: Setting) -> str:
    text = _with_environment(setting.meaning, setting.shown.env)
    choices = f" One of `{'`, `'.join(setting.choices)}`." if setting.choices else ""
    source = f" Source: {setting.shown.source}." if setting.shown.source else ""
    return f"{text}{choices}{source}"


def write(folder: Path) -> None:
    """Makes both pages anew.

    Args:
        folder: Where they are.
    """
    (folder / "cli.md").write_text(command_page())
    settings = folder / "settings.md"
    settings.write_text(settings_page(settings.read_text()))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
