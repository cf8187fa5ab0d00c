"""Commands whose options are the settings that specs declare.

```python
@settings_command
def finetune(texts: TrainingTexts, privacy: PrivacySpec, training: TrainSpec, as_json: AsJson = False) -> None: ...
```

takes `--train`, `--eta`, `--epochs` and so on, from the command line, the environment or a config file, and is called
with the specs. It has `--config`, `--print-config` and `--print-schema` besides.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints, overload

import typer
from pydantic import BaseModel
from typer.models import OptionInfo

from cutlayer.cli import config as files
from cutlayer.cli.renamed import RENAMED
from cutlayer.cli.settings import Setting, build, settings_of
from cutlayer.core.errors import ConfigError, Fault

CONFIG = "Output and config file"
# how an error of the SDK names a setting other than the one that is off
OTHER_SETTING = re.compile(r"`(\w+)`")
"""Panel of a command's help."""

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings in YAML, by the names of these options. Values given here win over the file's.",
        show_default=False,
        rich_help_panel=CONFIG,
    ),
]
PrintConfig = Annotated[
    bool,
    typer.Option(
        "--print-config",
        help="Print a config file with what was given, and all else with its default behind a #.",
        rich_help_panel=CONFIG,
    ),
]
PrintSchema = Annotated[
    bool,
    typer.Option(
        "--print-schema",
        help="Print the JSON schema of config files, for editors that complete and check them.",
        rich_help_panel=CONFIG,
    ),
]


_ETA = "Smaller numbers hide more, for example `--eta 60`; `--eta inf`, as a word, means no privacy"
REFUSED = dict.fromkeys(("eta", "frontier"), f"is no number above 0. {_ETA}")
"""What is said of a value that is refused, where more than its bounds should be said."""
MISSING = {
    "eta": "it has no default. Give a number (smaller hides more; `cutlayer privatize` shows what would leave),"
    " or `--eta inf` for no privacy"
}
"""The same of a setting that must be given: how much leaves is never decided by a default."""


@dataclass(frozen=True)
class Part:
    """Some of a spec's settings, for a command that has no use for the others.

    Annotates a parameter of the spec's type, or one that takes what of the spec was given, by name; parts of a spec
    that are specs are made.

    Attributes:
        spec: The spec.
        names: What are options of the command: fields, parts of the spec or fields of those. None: all.
        defaults: What a setting's default comes to in this command, by its key, where that is another than the spec's.
    """

    spec: type[BaseModel]
    names: tuple[str, ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()

    def settings(self) -> Iterator[Setting]:
        """Those that are options."""
        comes_to = dict(self.defaults)
        for each in settings_of(self.spec):
            if not self.names or any(f"{each.key}.".startswith(f"{name}.") for name in self.names):
                default = comes_to.get(each.key) or each.shown.default
                yield dataclasses.replace(each, shown=dataclasses.replace(each.shown, default=default))


@dataclass(frozen=True)
class Argument:
    """A parameter of a command that takes settings.

    Attributes:
        name: The parameter's.
        spec: The spec that declares them.
        settings: Those that are options of the command.
        made: Whether the command is given the spec, and not what it would be made from.
    """

    name: str
    spec: type[BaseModel]
    settings: tuple[Setting, ...]
    made: bool


def arguments(function: Callable[..., Any]) -> tuple[Argument, ...]:
    """The parameters of a command that take settings."""
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    return tuple(
        found
        for name in inspect.signature(inspect.unwrap(function)).parameters
        if (found := _argument(name, hints[name])) is not None
    )


def _argument(name: str, hint: Any) -> Argument | None:
    part = next((each for each in get_args(hint)[1:] if isinstance(each, Part)), None)
    kind = hint if part is None else get_args(hint)[0]
    made = isinstance(kind, type) and issubclass(kind, BaseModel)
    if part is None and not made:
        return None
    part = part or Part(kind)
    return Argument(name, part.spec, tuple(part.settings()), made)


Function = Callable[..., None]


@overload
def settings_command(function: Function) -> Function: ...


@overload
def settings_command(*, config: bool) -> Callable[[Function], Function]: ...


def settings_command(function: Function | None = None, *, config: bool = True) -> Any:
    """Gives a command options for the settings of its parameters.

    Args:
        function: Takes a spec for each parameter that is annotated with one, and typer's own options by keyword.
        config: Whether the settings may stand in a file, too.

    Returns:
        What typer makes a command of. It raises `ConfigError` for values that are refused, by the names that were used.
    """
    if function is None:
        return functools.partial(_decorated, config=config)
    return _decorated(function, config=config)


def _decorated(function: Function, *, config: bool) -> Function:
    command = _Command(function, config=config)

    @functools.wraps(function)
    def run(context: typer.Context, **values: Any) -> None:
        command(context, **values)

    run.__signature__ = command.signature  # type: ignore[attr-defined] # what typer reads
    run.__annotations__ = {each.name: each.annotation for each in command.signature.parameters.values()}
    return run


class _Command:
    def __init__(self, function: Function, *, config: bool) -> None:
        self._function = function
        self._takes_config = config
        self._arguments = arguments(function)
        self._settings = [setting for each in self._arguments for setting in each.settings]
        names = [each.name for each in self._settings]
        if twice := {name for name in names if names.count(name) > 1}:
            raise TypeError(f"{function.__name__} has two settings named {', '.join(sorted(twice))}")
        self.signature = self._signature()

    def _signature(self) -> inspect.Signature:
        hints = get_type_hints(self._function, include_extras=True)
        taken = {each.name for each in self._arguments}
        own = [
            _keyword(
                name,
                _in_panel(hints[name]) if self._takes_config and each.default is not each.empty else hints[name],
                each.default,
            )
            for name, each in inspect.signature(self._function).parameters.items()
            if name not in taken
        ]
        of_files = [
            _keyword("config", ConfigFile, None),
            _keyword("print_config", PrintConfig, False),
            _keyword("print_schema", PrintSchema, False),
        ] * self._takes_config
        # what must be given stands first in help
        settings = sorted(self._settings, key=lambda each: not each.required or len(each.path) > 2)
        options = [_keyword(each.name, _option(each), None) for each in settings]
        return inspect.Signature([_keyword("context", typer.Context), *options, *own, *of_files])

    def __call__(
        self,
        context: typer.Context,
        *,
        config: Path | None = None,
        print_config: bool = False,
        print_schema: bool = False,
        **values: Any,
    ) -> None:
        if context.invoked_subcommand is not None:
            return  # a group's own settings are for where none of its commands is called
        name = context.command_path
        if print_schema:
            sys.stdout.write(json.dumps(files.schema(name, self._settings), indent=2) + "\n")
            return
        typed = {each: value for each in self._settings if (value := values.pop(each.name)) is not None}
        typed = {each: _parsed(context, each, value) for each, value in typed.items()}
        read = {} if config is None else files.read(config, self._settings, renamed=RENAMED)
        of_environment = {each for each in typed if _is_of_environment(context, each)}
        _check_sources(typed, of_environment, read)
        given = {each: found.value for each, found in read.items()} | typed
        if print_config:
            told = {each: value for each, value in given.items() if each not in of_environment}
            sys.stdout.write(files.write(name, self._settings, told))
            return
        self._check(context, given)
        places = {each: f"{found.place}: {each.key}" for each, found in read.items() if each not in typed}
        try:
            self._function(**self._made(given), **values)
        except ConfigError as error:
            if not error.faults:
                raise
            raise ConfigError([self._named(each, places) for each in error.faults], remedy=error.remedy) from error

    def _check(self, context: typer.Context, given: Mapping[Setting, Any]) -> None:
        """Says everything that is wrong with each value by itself.

        Raises:
            typer.BadParameter: A setting that must be given was not.
            ConfigError: Values are out of bounds.
        """
        switches = {each.path: each for each in self._settings if each.nested is not None}
        for setting in self._settings:
            switch = switches.get(setting.path[:-1])
            if switch is not None and setting in given and not given.get(switch):
                raise typer.BadParameter(
                    f"it means nothing without {switch.flags[0]}. Add {switch.flags[0]}",
                    ctx=context,
                    param_hint=setting.flags[0],
                )
            if setting.required and not setting.shown.default and switch is None and setting not in given:
                raise typer.BadParameter(
                    MISSING.get(setting.name, "it has no default. Give it, here or in the file of --config"),
                    ctx=context,
                    param_hint=setting.flags[0],
                )
        faults = [
            Fault(setting.name, value, said) for setting, value in given.items() if (said := setting.check(value))
        ]
        if faults:
            raise ConfigError(faults)

    def _made(self, given: Mapping[Setting, Any]) -> dict[str, Any]:
        """What the function is called with for its specs."""
        made: dict[str, Any] = {}
        for each in self._arguments:
            values = build(each.spec, {one.path: given[one] for one in each.settings if one in given})
            made[each.name] = each.spec(**values) if each.made else values
        return made

    def _named(self, fault: Fault, places: Mapping[Setting, str]) -> Fault:
        """A fault by the name of its option, or by the place in a file where its value stands."""
        allowed = OTHER_SETTING.sub(lambda found: self._flag(found[1]) or found[1], fault.allowed)
        named = self._settings_of(fault.path)
        if len(named) != 1:
            return dataclasses.replace(fault, allowed=allowed)
        given = fault.given
        if isinstance(given, tuple) and len(given) == 1:
            given = given[0]
        if isinstance(given, Enum):
            given = given.value
        return Fault(places.get(named[0], named[0].name), given, allowed)

    def _settings_of(self, path: str) -> list[Setting]:
        """The settings that a fault may mean by a name of the SDK, or by an option's."""
        return [each for each in self._settings if path == each.name or f".{each.key}".endswith(f".{path}")]

    def _flag(self, name: str) -> str | None:
        """The option that an error's remedy means by a name of the SDK."""
        meant = self._settings_of(name)
        return meant[0].flags[0] if len(meant) == 1 else None


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _in_panel(hint: Any) -> Any:
    """An own option of a command, outside of the panel that is for those settings that most people need first."""
    kind, option = get_args(hint)[:2]
    if not isinstance(option, OptionInfo) or option.rich_help_panel is not None:
        return hint
    option = copy.copy(option)
    option.rich_help_panel = CONFIG
    return Annotated[kind, option]


def _option(setting: Setting) -> Any:
    """A setting as typer's option. What was not given is `None`, so that a file may give it."""
    kind: Any = Path if setting.kind is Path else str
    flags, metavar = setting.flags, setting.metavar or None
    if setting.is_switch:
        kind, flags = bool, (f"{flags[0]}/--no-{flags[0].removeprefix('--')}", *flags[1:])
    option = typer.Option(
        *flags,
        metavar=metavar,
        # typer reads rich's markup in it
        help=setting.described.replace("[", r"\["),
        show_default=False,
        rich_help_panel=None if setting.shown.common else setting.shown.topic,
        envvar=setting.shown.env or None,
        autocompletion=_completion(setting) if setting.choices else None,
    )
    return Annotated[list[kind] | None if setting.repeatable else kind | None, option]


def _completion(setting: Setting) -> Callable[[str], list[str]]:
    """Finds values that begin so, for shells that complete them."""
    words = (*setting.choices, *filter(None, [setting.shown.none]))

    def complete(incomplete: str) -> list[str]:
        return [each for each in words if each.startswith(incomplete)]

    return complete


def _parsed(context: typer.Context, setting: Setting, given: Any) -> Any:
    """A value that was typed, of the setting's type.

    Raises:
        typer.BadParameter: It is of another one.
    """
    if setting.repeatable:
        return tuple(_parsed_one(context, setting, each) for each in given)
    return _parsed_one(context, setting, given)


def _parsed_one(context: typer.Context, setting: Setting, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        value = setting.parse(given)
        refused = setting.path[-1] in REFUSED and setting.check((value,) if setting.repeatable else value)
    except ValueError as error:
        refused = str(error)
    if not refused:
        return value
    raise typer.BadParameter(
        f"{given} {REFUSED.get(setting.path[-1], refused)}", ctx=context, param_hint=setting.flags[0]
    )


def _is_of_environment(context: typer.Context, setting: Setting) -> bool:
    source = context.get_parameter_source(setting.name)
    return source is not None and source.name == "ENVIRONMENT"


def _check_sources(
    typed: Mapping[Setting, Any], of_environment: Collection[Setting], read: Mapping[Setting, files.Given]
) -> None:
    """Refuses a file that says another thing than the environment: neither is known to be what was meant.

    Raises:
        ConfigError: It does.
    """
    wrong = [
        f"{read[each].place}: {each.key} is {each.text(read[each].value)}, and {each.shown.env} is "
        f"{each.text(typed[each])}. Give {each.flags[0]}, which wins over both"
        for each in of_environment
        if each in read and read[each].value != typed[each]
    ]
    if wrong:
        raise ConfigError("; ".join(wrong))
