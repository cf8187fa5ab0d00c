"""Specs name what was built, registries build it, and both refuse what they do not know.

A `Spec` is the identity of a part: its name and its arguments, frozen and closed (`extra="forbid"`:
a dropped privacy key must stop the run, not warn). A report holds specs, so it can be run again.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cutlayer.core.errors import ConfigError, Fault

T = TypeVar("T")


class Spec(BaseModel):
    """A frozen, closed description of something that can be built."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)


@contextmanager
def checked() -> Iterator[None]:
    """Turns values that a spec refuses into a user's error with every fault, by field.

    Raises:
        ConfigError: A spec that was made inside refused its values.
    """
    try:
        yield
    except ValidationError as error:
        faults = [
            Fault(".".join(map(str, fault["loc"])) or error.title, fault["input"], fault["msg"])
            for fault in error.errors(include_url=False)
        ]
        raise ConfigError(faults) from error


class Registry(Generic[T]):
    """Names for the parts of one kind.

    Args:
        kind: What the parts are, for messages: `mechanism`, `attack`, `recipe`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """Registers what it decorates under `name`; a name can be taken once."""

        def decorate(part: T) -> T:
            if name in self._parts:
                raise ConfigError(f"There are two parts named {name!r} of kind {self.kind}.")
            self._parts[name] = part
            return part

        return decorate

    def __getitem__(self, name: str) -> T:
        if name not in self._parts:
            close = difflib.get_close_matches(name, self._parts, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(self._parts))}."
            raise ConfigError(f"There is no {self.kind} named {name!r}.", remedy=hint)
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._parts))

    def __len__(self) -> int:
        return len(self._parts)
