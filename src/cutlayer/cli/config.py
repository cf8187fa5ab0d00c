"""Config files: a command's settings in YAML, by the names of its options.

```yaml
training:
  epochs: 3
privacy.eta: 80        # the same as `eta: 80` below `privacy:`
label-column: ward     # names of options are known without their section, too
```

Values given on the command line win. A file is read whole before anything is done, and everything wrong with it is
said at once, each with its line.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cutlayer.cli.settings import Setting
from cutlayer.core.errors import ConfigError
from cutlayer.wire.keys import API_KEY

WIDTH = 110
"""Of a file that is written here."""
MAX_BYTES = 2**20
_CREDENTIAL = re.compile(r"(^|_)(api_?key|key|token|secret|password|credentials?)$")
_TYPES = {bool: "boolean", int: "integer", float: "number"}
_NULL, _BOOL = "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool"


@dataclass(frozen=True)
class Given:
    """A value that a file gives, and where.

    Attributes:
        value: The value, of the setting's type.
        place: Where it stands: file and line.
    """

    value: Any
    place: str


def read(file: Path, settings: Sequence[Setting], *, renamed: Mapping[str, str]) -> dict[Setting, Given]:
    """What a config file gives.

    Args:
        file: The file.
        settings: Those of the command.
        renamed: Names that options had before, each with today's.

    Raises:
        ConfigError: With everything that is wrong with it.
    """
    return _Reading(file, settings, renamed).found


class _Reading:
    def __init__(self, file: Path, settings: Sequence[Setting], renamed: Mapping[str, str]) -> None:
        self.file = file
        self.found: dict[Setting, Given] = {}
        self._lines: dict[Setting, int] = {}
        self._wrong: list[str] = []
        self._settings = settings
        self._renamed = {_plain(old): new for old, new in renamed.items()}
        self._keys = {_plain(each.key): each for each in settings}
        for each in settings:
            for name in each.flags:
                self._keys.setdefault(_plain(name), each)
                self._keys.setdefault(_plain(".".join((*each.path[:-1], _plain(name)))), each)
        self._sections = {_plain(name) for name in _sections(settings)}
        root = self._compose()
        if root is not None:
            self._mapping(root, ())
        if self._wrong:
            raise ConfigError(
                "; ".join(self._wrong),
                remedy="Correct the file. Nothing was sent.",
            )

    def _compose(self) -> yaml.MappingNode | None:
        try:
            content = self.file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.file} cannot be read: {error.strerror}.", remedy="See --config.") from error
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{self.file} has over {MAX_BYTES} bytes: it is no config file.", remedy="See --config.")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            raise ConfigError(
                f"{self._at(line)}: it is no YAML: not UTF-8.", remedy="`--print-config` writes one that is."
            ) from error
        for number, line_of_text in enumerate(text.splitlines(), start=1):
            if API_KEY.search(line_of_text):
                self._refuse_key(number)
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{self._at(mark.line + 1)}" if mark is not None else str(self.file)
            said = getattr(error, "problem", None) or "it cannot be read"
            raise ConfigError(
                f"{where}: it is no YAML: {said}.", remedy="`--print-config` writes one that is."
            ) from error
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise ConfigError(
                f"{self._at(root.start_mark.line + 1)}: it is no list of `name: value` lines.",
                remedy="`--print-config` writes one that is.",
            )
        return root

    def _at(self, line: int) -> str:
        return f"{self.file}, line {line}"

    def _refuse_key(self, line: int) -> None:
        raise ConfigError(
            f"{self._at(line)}: an API key does not belong in a file. Nothing was sent.",
            remedy="Take it out, and set CUTLAYER_API_KEY. If others could read the file, ask for a new key.",
        )

    def _mapping(self, node: yaml.MappingNode, path: tuple[str, ...]) -> None:
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._wrong.append(f"{self._at(line)}: a name must be a word")
                continue
            name = ".".join((*path, key.value))
            setting = self._keys.get(_plain(name))
            section = _plain(name) in self._sections
            if (setting is not None and setting.secret) or (setting is None and _CREDENTIAL.search(_plain(key.value))):
                self._refuse_key(line)
            elif section and isinstance(value, yaml.MappingNode):
                self._mapping(value, (name,))
            elif section and value.tag == _NULL:
                pass  # a section all of whose settings are commented out
            elif setting is None:
                self._wrong.append(f"{self._at(line)}: {self._unknown(name)}")
            elif setting.nested is not None and isinstance(value, yaml.MappingNode):
                self._give(setting, True, line)
                self._mapping(value, (setting.key,))
            else:
                self._value(setting, value, line)

    def _unknown(self, name: str) -> str:
        """What is said of a name that there is not, with the nearest one."""
        plain = _plain(name)
        last = plain.rpartition(".")[2]
        if last in self._renamed and last not in self._keys:
            today = self._keys.get(_plain(self._renamed[last]))
            return f"`{name}` is now `{self._renamed[last] if today is None else today.key}`"
        if last in self._keys:
            return f"there is no `{name}`. It is `{self._keys[last].key}`"
        names = [*self._keys, *self._sections]
        close = difflib.get_close_matches(plain, names, n=1) or difflib.get_close_matches(last, names, n=1)
        if not close:
            return f"there is no setting `{name}`. `--print-config` lists those that there are"
        nearest = self._keys.get(close[0])
        return f"there is no setting `{name}`. Did you mean `{close[0] if nearest is None else nearest.key}`?"

    def _value(self, setting: Setting, node: yaml.Node, line: int) -> None:
        try:
            value = self._parse(setting, node)
        except ValueError as error:
            given = f" = {node.value}" if isinstance(node, yaml.ScalarNode) else ""
            self._wrong.append(f"{self._at(line)}: {setting.key}{given}: {error}")
            return
        if value is None and not setting.shown.none:
            return  # as if it was left out
        if said := setting.check(value):
            self._wrong.append(f"{self._at(line)}: {setting.key} = {setting.text(value)}: {said}")
            return
        self._give(setting, value, line)

    def _parse(self, setting: Setting, node: yaml.Node) -> Any:
        if isinstance(node, yaml.SequenceNode):
            if not setting.repeatable:
                raise ValueError("must be one value")
            return tuple(_scalar(setting, each) for each in node.value)
        value = _scalar(setting, node)
        return (value,) if setting.repeatable and value is not None else value

    def _give(self, setting: Setting, value: Any, line: int) -> None:
        if setting in self.found and self.found[setting].value != value:
            self._wrong.append(
                f"{self.file}, lines {self._lines[setting]} and {line}: {setting.key} is "
                f"{setting.text(self.found[setting].value)} and {setting.text(value)}. Keep one of them"
            )
            return
        self.found[setting] = Given(value, self._at(line))
        self._lines[setting] = line


def _scalar(setting: Setting, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"must be a value{' or a list of values' if setting.repeatable else ''}, and no more names")
    if node.tag == _NULL and setting.nested is None:
        return None
    # as it stands in the file, not as YAML reads it: 3e-4 would be a word there, and a column called `no` a switch
    quoted = node.style in ("'", '"')
    if setting.is_switch and (quoted or node.tag != _BOOL):
        raise ValueError("must be true or false")
    return setting.parse(node.value.removeprefix(".") if node.value.lower() == ".inf" else node.value)


def _plain(name: str) -> str:
    """A name whatever it is written with: `--learning-rate` and `learning_rate` are one."""
    return name.removeprefix("--").replace("-", "_")


def write(command: str, settings: Sequence[Setting], given: Mapping[Setting, Any]) -> str:
    """A config file that gives what was given, and has all else as comments with its default.

    Args:
        command: The command that it is for.
        settings: Those of the command.
        given: Values by setting.
    """
    about = (
        f"Settings of `{command} --config FILE`. Values on the command line win over these. Paths are of the folder "
        "that it is run in. A name behind # shows the default; take the # away to change it."
    )
    lines = _comment(about, "")
    opened: set[tuple[str, ...]] = set()
    # a name of the root behind a section would be one of the section's
    for setting in sorted(settings, key=lambda each: len(each.path) > 1):
        if setting.secret:
            continue
        section = setting.path[:-1]
        if section and section not in opened and not _is_switched(section, settings):
            lines += ["", f"{section[-1]}:"]
        opened.add(section)
        lines += ["", *_entry(setting, given)] if len(setting.path) == 1 else _entry(setting, given)
    return "\n".join(lines) + "\n"


def _sections(settings: Sequence[Setting]) -> set[str]:
    """Names of parts that have settings, and are none."""
    return {each.path[0] for each in settings if len(each.path) > 1}


def _is_switched(path: tuple[str, ...], settings: Sequence[Setting]) -> bool:
    return any(each.path == path for each in settings)


def _entry(setting: Setting, given: Mapping[Setting, Any]) -> Iterator[str]:
    indent = "  " * (len(setting.path) - 1)
    yield from _comment(setting.described, indent)
    inside = [each for each in given if each.path[:-1] == setting.path]
    if setting.nested is not None and inside and given.get(setting):
        yield f"{indent}{setting.path[-1]}:"
    elif setting in given:
        yield f"{indent}{setting.path[-1]}: {_yaml(setting, given[setting])}"
    else:
        yield f"{indent}# {setting.path[-1]}: {setting.example}"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _yaml(setting: Setting, value: Any) -> str:
    if setting.repeatable:
        return f"[{', '.join(_yaml_scalar(setting, each) for each in value)}]"
    return _yaml_scalar(setting, value)


def _yaml_scalar(setting: Setting, value: Any) -> str:
    text = setting.text(value)
    if setting.is_switch or setting.kind in (int, float):
        return text
    return (
        yaml.safe_dump(text, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("\n...\n").strip()
    )


def schema(command: str, settings: Sequence[Setting]) -> dict[str, Any]:
    """The JSON schema of files as `write` makes them, for editors that complete and check YAML.

    Args:
        command: The command that they are for.
        settings: Those of the command.
    """
    root = _object(f"Settings of `{command} --config FILE`.")
    for setting in settings:
        if setting.secret:
            continue
        inside = root
        for name in setting.path[:-1]:
            inside = inside["properties"].setdefault(name, _object(""))
            inside = inside["anyOf"][1] if "anyOf" in inside else inside
        inside["properties"][setting.path[-1]] = _value_schema(setting)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root}


def _object(description: str) -> dict[str, Any]:
    about = {"description": description} if description else {}
    return {**about, "type": "object", "properties": {}, "additionalProperties": False}


def _value_schema(setting: Setting) -> dict[str, Any]:
    about: dict[str, Any] = {"description": setting.described}
    if setting.nested is not None:
        return {**about, "anyOf": [{"type": "boolean"}, _object("")]}
    if setting.example and setting.example == setting.default and not setting.repeatable:
        default = setting.parse(setting.example)
        about["default"] = default if isinstance(default, bool | int | float | str) else setting.example
    one: dict[str, Any] = (
        {"enum": list(setting.choices)} if setting.choices else {"type": _TYPES.get(setting.kind, "string")}
    )
    one |= setting.limits
    words = [*(["inf"] if "inf" in setting.metavar.split("|") else []), *filter(None, [setting.shown.none])]
    value = {"anyOf": [one, {"enum": words}]} if words else one
    return about | ({"anyOf": [value, {"type": "array", "items": value}]} if setting.repeatable else value)
