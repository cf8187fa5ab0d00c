"""The settings that specs declare, read for options, config files, the JSON schema and the settings page.

A setting has one declaration (`cutlayer.core.setting`); everything here is made from it.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from cutlayer.core.errors import ConfigError, Fault
from cutlayer.core.setting import Shown
from cutlayer.core.spec import SpecFamily, allowed

_BOUNDS: dict[type, tuple[str, str, str]] = {
    Ge: ("ge", "at least", "minimum"),
    Gt: ("gt", "above", "exclusiveMinimum"),
    Le: ("le", "at most", "maximum"),
    Lt: ("lt", "below", "exclusiveMaximum"),
}
"""Of pydantic's bounds the attribute that holds them, the words for them, and JSON schema's name."""
_NO_NOISE, _NOISE = "none", "text-to-text"
"""Mechanisms of an infinite eta, and of any other where none is named."""
_METAVARS: dict[object, str] = {int: "N", float: "NUMBER", Path: "PATH", SecretStr: "SECRET"}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_WORDS = {"true": "on", "false": "off"}
_SWITCH: dict[str, bool] = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


@dataclass(frozen=True)
class Setting:
    """One setting of one command.

    Attributes:
        path: Names of fields from the root down to it, such as `("training", "epochs")`.
        field: Its declaration.
        shown: How it is presented.
    """

    path: tuple[str, ...]
    field: FieldInfo
    shown: Shown

    @property
    def key(self) -> str:
        """Its name in a config file, such as `training.epochs`."""
        return ".".join(self.path)

    @cached_property
    def flags(self) -> tuple[str, ...]:
        """Its command-line names, the preferred one first."""
        return self.shown.flags or (f"--{self.path[-1].replace('_', '-')}",)

    @cached_property
    def name(self) -> str:
        """Its name as a parameter: that of its option."""
        return self.flags[0].removeprefix("--").replace("-", "_")

    @cached_property
    def kind(self) -> Any:
        """The type of one value: a class, or a `Literal`."""
        return _kind(self.field.annotation)[0]

    @cached_property
    def repeatable(self) -> bool:
        """Whether it takes several values."""
        return _kind(self.field.annotation)[1]

    @property
    def nested(self) -> type[BaseModel] | None:
        """The spec that it switches on."""
        return _spec(self.field)

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.kind is bool or self.nested is not None

    @property
    def secret(self) -> bool:
        """Whether its value must not be written down."""
        return self.kind is SecretStr

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The values that there are, where they can be listed; without the word for `None`."""
        if get_origin(self.kind) is Literal:
            return tuple(map(str, get_args(self.kind)))
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(str(each.value) for each in self.kind)
        return ()

    @property
    def metavar(self) -> str:
        """What stands for a value, such as `N|text`; empty for a switch."""
        if self.is_switch:
            return ""
        made = "|".join(self.choices) or _METAVARS.get(self.kind, "TEXT")
        return self.shown.metavar or "|".join(filter(None, (made, self.shown.none)))

    @property
    def bounds(self) -> str:
        """What values are allowed, such as `at least 1, at most 1024`; empty where all of the type are."""
        return ", ".join(f"{words} {_round(bound)}" for words, _, bound in self._bounds())

    @property
    def limits(self) -> dict[str, float]:
        """The same in the words of JSON schema."""
        return {name: bound for _, name, bound in self._bounds()}

    def _bounds(self) -> Iterator[tuple[str, str, float]]:
        for bound in self.field.metadata:
            for kind, (attribute, words, name) in _BOUNDS.items():
                if isinstance(bound, kind):
                    yield words, name, getattr(bound, attribute)

    @property
    def described(self) -> str:
        """All that is said of it in one paragraph: its help, and what a reader looks up."""
        told = self.default and f"default: {self.default}"
        return self._described("required" if self.required and not told else told)

    @property
    def meaning(self) -> str:
        """The same where its default is told beside it."""
        return self._described("")

    def _described(self, default: str) -> str:
        unit = self.shown.unit and f"unit: {self.shown.unit}"
        more = "; ".join(filter(None, (default, unit, self.bounds, "repeatable" if self.repeatable else "")))
        return f"{self.field.description} [{more}]" if more else str(self.field.description)

    @property
    def required(self) -> bool:
        """Whether it must be given where its spec is made."""
        return self.field.is_required()

    @property
    def default(self) -> str:
        """The default as it would be typed, or what it comes to; empty where there is none to tell."""
        told = self.example if self._default_is_told else ""
        return self.shown.default or (_WORDS.get(told, told) if self.is_switch else told)

    @property
    def example(self) -> str:
        """A value as it would be typed: the default where it can be, else what stands for a value."""
        if self._default_is_told:
            return self.text(self._default)
        return "true" if self.is_switch else self.metavar

    @cached_property
    def _default(self) -> Any:
        return None if self.required else self.field.get_default(call_default_factory=True)

    @property
    def _default_is_told(self) -> bool:
        if self.nested is not None:
            return not self.required
        return not self.required and (self._default not in (None, ()) or bool(self.shown.none))

    def text(self, value: Any) -> str:
        """A value as it would be typed."""
        if value is None:
            return "false" if self.nested else self.shown.none
        if isinstance(value, Enum):
            return str(value.value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return f"{value:g}" if float(f"{value:g}") == value else repr(value)
        if isinstance(value, list | tuple):
            return " ".join(map(self.text, value))
        return str(value)

    def parse(self, text: str) -> Any:
        """One value, as it was typed.

        Raises:
            ValueError: It is of the wrong type; bounds are `check`'s.
        """
        if self.shown.none and text == self.shown.none:
            return None
        if self.is_switch:
            if text.lower() not in _SWITCH:
                raise ValueError("must be true or false")
            return _SWITCH[text.lower()]
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"must be one of {', '.join(self.choices)}{self._or_none}")
            return text
        return self._number(text) if self.kind in (int, float) else Path(text) if self.kind is Path else text

    def _number(self, text: str) -> float:
        word = text.strip().lower()
        if self.kind is float and self.shown.unit == "seconds" and word[-1:] in _SECONDS:
            return self._number(word[:-1]) * _SECONDS[word[-1]]
        infinite = self.kind is float and word == "inf"
        try:
            value = self.kind(word)
        except ValueError:
            value = math.nan
        # a number too large to be one does not mean infinity, nor one too small to be told from zero means zero
        vanished = value == 0 and any(digit in word.partition("e")[0] for digit in "123456789")
        if vanished or (not infinite and not math.isfinite(value)):
            what = "a whole number" if self.kind is int else "a number"
            raise ValueError(f"must be {what}{self._or_none}")
        return value  # type: ignore[no-any-return] # of the type that the annotation says

    @property
    def _or_none(self) -> str:
        return f", or {self.shown.none}" if self.shown.none else ""

    def check(self, value: Any) -> str:
        """What is wrong with a value of the right type, in words; empty if nothing is."""
        if self.nested is not None or (value == math.inf and self._takes_infinity):
            return ""
        try:
            self._adapter.validate_python(value)
        except ValidationError as error:
            return allowed(error.errors(include_url=False, include_input=False)[0])
        return ""

    @property
    def _takes_infinity(self) -> bool:
        return "inf" in self.metavar.split("|")

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(Annotated[self.field.annotation, self.field])  # type: ignore[arg-type]  # built while it runs


def settings_of(spec: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """The settings that a spec declares, and those of the specs that it is made of.

    Of a family they are which kind it is, and each kind's settings.
    """
    for name, field in spec.model_fields.items():
        shown = Shown.of(field)
        inner = _spec(field)
        here = (*path, name)
        if shown is not None:
            yield Setting(here, field, shown)
        if inner is not None and issubclass(inner, SpecFamily):
            yield from _settings_of_family(inner, field, here)
        elif inner is not None:
            yield from settings_of(inner, here)


def _settings_of_family(family: type[SpecFamily], field: FieldInfo, path: tuple[str, ...]) -> Iterator[Setting]:
    found: dict[tuple[str, ...], Setting] = {}
    for kind in family.kinds.values():
        for setting in settings_of(kind, path):
            found.setdefault(setting.path, setting)
    meanings = (f"{name}: {_first_sentence(kind)}" for name, kind in family.kinds.items())
    choice = FieldInfo(
        annotation=Literal[tuple(family.kinds)],  # type: ignore[arg-type]  # built while it runs
        default=None if field.is_required() else getattr(field.default, family.tag),
        description=" ".join(meanings),
    )
    default = f"{_NOISE}; {_NO_NOISE} at eta inf" if field.is_required() else ""
    yield Setting((*path, family.tag), choice, Shown(next(iter(found.values())).shown.topic, default=default))
    yield from found.values()


def _round(bound: float) -> str:
    power = int(bound).bit_length() - 1
    return f"2^{power}" if bound == 2**power > 10**6 else f"{bound:g}"


def _first_sentence(kind: type[BaseModel]) -> str:
    return f"{' '.join((kind.__doc__ or '').split()).partition('. ')[0].removesuffix('.')}."


def build(spec: type[BaseModel], given: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """What a spec is made from.

    Args:
        spec: The spec.
        given: The values that were given, by path. A spec that is switched on is `True`.

    Raises:
        ConfigError: A spec that it is made of refuses them.
    """
    values: dict[str, Any] = {}
    for name, field in spec.model_fields.items():
        inner = _spec(field)
        below = {path[1:]: value for path, value in given.items() if path[0] == name and len(path) > 1}
        if inner is None:
            values |= {name: given[name,]} if (name,) in given else {}
        elif below or given.get((name,)):
            values[name] = _made(inner, below, field, name)
    return values


def _made(spec: type[BaseModel], given: Mapping[tuple[str, ...], Any], field: FieldInfo, name: str) -> BaseModel:
    try:
        if not issubclass(spec, SpecFamily):
            return spec(**build(spec, given))
        kind, values = _kind_of(spec, given, field)
        if faults := [*_faults(spec, kind, values)]:
            raise ConfigError(faults)
        made: BaseModel = spec.kinds[kind](**build(spec.kinds[kind], values))
        return made
    except ConfigError as error:
        faults = [dataclasses.replace(fault, path=f"{name}.{fault.path}") for fault in error.faults]
        raise ConfigError(faults, remedy=error.remedy) from None


def _kind_of(
    family: type[SpecFamily], given: Mapping[tuple[str, ...], Any], field: FieldInfo
) -> tuple[str, dict[tuple[str, ...], Any]]:
    """Which kind of a family is meant, that which was named or the default, and what is given of it.

    Raises:
        ConfigError: A kind with noise was named for an infinite eta.
    """
    values = {path: value for path, value in given.items() if path != (family.tag,)}
    named = given.get((family.tag,))
    if values.get(("eta",)) == math.inf:
        if named not in (None, _NO_NOISE):
            raise ConfigError([Fault(family.tag, named, "must be left out at eta inf: nothing is drawn")])
        return _NO_NOISE, {path: value for path, value in values.items() if path != ("eta",)}
    default = _NOISE if field.is_required() else getattr(field.default, family.tag)
    return str(named or default), values


def _faults(family: type[SpecFamily], kind: str, given: Mapping[tuple[str, ...], Any]) -> Iterator[Fault]:
    """Settings that are those of other kinds."""
    have = {name: {each.path for each in settings_of(spec)} for name, spec in family.kinds.items()}
    for path, value in given.items():
        if path not in have[kind]:
            others = " or ".join(name for name, paths in have.items() if path in paths)
            remedy = f"add --{family.tag} {others}, or leave it out"
            yield Fault(".".join(path), value, f"means nothing with {family.tag} {kind}: {remedy}")


def _spec(field: FieldInfo) -> type[BaseModel] | None:
    kind = _kind(field.annotation)[0]
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _kind(annotation: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        (kind,) = {_kind(each)[0] for each in get_args(annotation) if each is not types.NoneType}
        return kind, any(_kind(each)[1] for each in get_args(annotation) if each is not types.NoneType)
    if get_origin(annotation) in (tuple, list):
        return _kind(get_args(annotation)[0])[0], True
    return annotation, False
