"""Specs name what was built, registries build it, and both refuse what they do not know.

A `Spec` is the identity of a part: its name and its arguments, frozen and closed (`extra="forbid"`:
a dropped privacy key must stop the run, not warn). A report holds specs, so it can be run again.
"""

from __future__ import annotations

import difflib
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from cutlayer.core.errors import ConfigError, Fault

T = TypeVar("T")


class Spec(BaseModel):
    """A frozen, closed description of something that can be built."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)


class SettingsSpec(Spec):
    """A spec that users write: what it refuses when it is made is a `ConfigError` with every fault.

    Inside another spec its faults are collected with those of the others.
    """

    # infinity is a value here, and JSON has no other word for it
    model_config = ConfigDict(ser_json_inf_nan="strings")

    def __init__(self, **values: Any) -> None:
        with checked():
            super().__init__(**values)

    # else it is called inside another spec, too
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class SpecFamily(SettingsSpec):
    """A spec of which there are several kinds, told apart by the value of one field, such as `mechanism`.

    A family names that field in `tag`. Each subclass of it that gives the field a default
    is a kind, known by that name from when it is defined. A field annotated with the family takes any kind.
    """

    tag: ClassVar[str]
    kinds: ClassVar[dict[str, type[Any]]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if "tag" in vars(cls):
            cls.kinds = {}
        elif (field := cls.model_fields.get(cls.tag)) is not None:
            if field.default in cls.kinds:
                raise TypeError(f"There are two kinds with {cls.tag} {field.default!r}.")
            cls.kinds[field.default] = cls

    @classmethod
    def read(cls, data: Any) -> Any:
        """A spec of the kind that a mapping names; what is no mapping is left as it is."""
        if not isinstance(data, Mapping):
            return data
        name = data.get(cls.tag)
        if not isinstance(name, str) or name not in cls.kinds:
            close = difflib.get_close_matches(str(name), cls.kinds, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(cls.kinds)}"
            raise ValueError(f"there is no {cls.tag} {name!r}: {hint}")
        return cls.kinds[name].model_validate(data)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if "tag" not in vars(cls):
            return handler(source)
        return core_schema.no_info_before_validator_function(
            cls.read,
            core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda spec, info: spec.model_dump(mode=info.mode), info_arg=True
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        if "tag" not in vars(cls):
            return handler(schema)
        return {"oneOf": [handler(kind.__pydantic_core_schema__) for kind in cls.kinds.values()]}


@contextmanager
def checked() -> Iterator[None]:
    """Turns values that a spec refuses into a user's error with every fault, by field.

    Raises:
        ConfigError: A spec that was made inside refused its values.
    """
    try:
        yield
    except ValidationError as error:
        raise ConfigError([_fault(error.title, each) for each in error.errors(include_url=False)]) from error


def _fault(title: str, fault: ErrorDetails) -> Fault:
    """What is wrong, at its field: a check of several fields says first which one it is about."""
    path, given, said = [*map(str, fault["loc"])], fault["input"], allowed(fault)
    if fault["type"] == "value_error" and isinstance(given, Mapping):
        name, _, rest = said.partition(" ")
        name = name.rstrip(":")
        if name in given:
            fields = [each for each in path if each[:1].islower()]  # and not the kind of spec that they are of
            return Fault(".".join([*fields, name]), given[name], rest)
        given = ", ".join(map(str, given))  # the settings' names, which are fewer words than all that was given
    return Fault(".".join(path) or title, given, said)


_BOUNDS: Final = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}
"""What pydantic's faults of a bound mean."""


def allowed(fault: ErrorDetails) -> str:
    """What is allowed, in a few words.

    Args:
        fault: What pydantic says of a value.
    """
    if fault["type"] in _BOUNDS:
        bounds = {name: f"{bound:g}" for name, bound in fault["ctx"].items()}
        return _BOUNDS[fault["type"]].format(**bounds)
    if fault["type"] != "extra_forbidden":
        return fault["msg"].removeprefix("Value error, ")
    name = fault["loc"][-1]
    kinds = {
        kind.__name__
        for family in SpecFamily.__subclasses__()
        for kind in family.kinds.values()
        if name in kind.model_fields
    }
    return f"is no setting here, but of {' and '.join(sorted(kinds))}" if kinds else "is no setting here"


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """What to raise where nothing of a kind has a name, with the nearest name that something has."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}."
    return ConfigError(f"There is no {kind} named {name!r}.", remedy=hint)


class Registry(Generic[T]):
    """Names for the parts of one kind.

    Args:
        kind: What the parts are, for messages: `mechanism`, `attack`, `recipe`.
        package: Its modules add cutlayer's own parts; all are imported when the registry is first read. So a part
            of a new file is found without being named anywhere else.
        plugins: Group of entry points under which installed packages name further parts. An entry point
            is the part itself, and is imported when it is first asked for by name.
        of: The class that an installed package's part must have; `None` for any.
    """

    def __init__(
        self, kind: str, *, package: str | None = None, plugins: str | None = None, of: type[T] | None = None
    ) -> None:
        self.kind = kind
        self._of = of
        self._added: dict[str, T] = {}
        self._package = package
        self._reading = threading.RLock()
        self._loaded: dict[str, T] = {}
        self._plugins = plugins

    def add(self, name: str) -> Callable[[T], T]:
        """Registers what it decorates under `name`; a name can be taken once."""

        def decorate(part: T) -> T:
            if name in self._added:
                raise ConfigError(f"There are two parts named {name!r} of kind {self.kind}.")
            self._added[name] = part
            return part

        return decorate

    @property
    def _parts(self) -> Mapping[str, T]:
        """Cutlayer's own, all of them."""
        with self._reading:  # a second thread waits until all are there
            package, self._package = self._package, None
            if package is not None:
                try:
                    for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
                        import_module(module.name)
                except BaseException:
                    self._package = package
                    raise
        return self._added

    def plugged_in(self) -> Mapping[str, str]:
        """Names that installed packages give, each with its package and version. Nothing is imported."""
        return {name: _origin(entry) for name, entry in self._entries().items()}

    def origin(self, name: str) -> str | None:
        """The package and version that give a plug-in; `None` for cutlayer's own parts and unknown names."""
        return None if name in self._parts else self.plugged_in().get(name)

    def __getitem__(self, name: str) -> T:
        if name in self._parts:
            return self._parts[name]
        if name in (entries := self._entries()):
            if name not in self._loaded:
                self._loaded[name] = self._checked(_load(entries[name], self.kind), entries[name])
            return self._loaded[name]
        raise unknown(self.kind, name, self)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._parts, *self._entries()}))

    def __len__(self) -> int:
        return len({*self._parts, *self._entries()})

    def _checked(self, part: Any, entry: EntryPoint) -> T:
        """A plug-in of the right class.

        Raises:
            ConfigError: It is of another one.
        """
        if self._of is not None and not isinstance(part, self._of):
            raise ConfigError(
                f"{self.kind.capitalize()} {entry.name!r} of {_origin(entry)} is of type {type(part).__name__}.",
                remedy=f"Its entry point must name an instance of {self._of.__name__}.",
            )
        checked: T = part
        return checked

    def _entries(self) -> dict[str, EntryPoint]:
        """Plug-ins by name.

        Raises:
            ConfigError: Two packages give one name, or one gives a name that is taken here.
        """
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self._plugins) if self._plugins else ():
            if entry.name in found or entry.name in self._parts:
                other = _origin(found[entry.name]) if entry.name in found else "cutlayer"
                raise ConfigError(
                    f"{other} and {_origin(entry)} both have the name {entry.name!r} for a part of kind {self.kind}.",
                    remedy="Uninstall one of them.",
                )
            found[entry.name] = entry
        return found


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def _load(entry: EntryPoint, kind: str) -> Any:
    try:
        return entry.load()
    except Exception as error:  # whatever a stranger's module raises while it is imported
        raise ConfigError(
            f"{kind.capitalize()} {entry.name!r} of {_origin(entry)} cannot be loaded: {type(error).__name__}.",
            remedy=f"Mend or uninstall {_origin(entry)}.",
        ) from error
