"""The recipes by name. Listing them reads their settings alone; a recipe's code is loaded when it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from cutlayer.core import ConfigError

if TYPE_CHECKING:
    from cutlayer.recipes.recipe import Recipe


class Listed(NamedTuple):
    """A recipe, as a list of them shows it.

    Attributes:
        name: What `cutlayer recipe run` takes.
        title: The paper's.
        reference: Where the paper is found.
    """

    name: str
    title: str
    reference: str


class Catalogue(Mapping[str, "Recipe[Any]"]):
    """One recipe for each file of `configs`: `NAME.yaml`, declared in `NAME.py`."""

    def __getitem__(self, name: str) -> Recipe[Any]:
        if name not in self._names():
            close = difflib.get_close_matches(name, self._names(), n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(self)}."
            raise ConfigError(f"There is no recipe named {name!r}.", remedy=hint)
        found: Recipe[Any] = import_module(f"{__package__}.{name}").RECIPE
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def listing(self) -> list[Listed]:
        """Each by its settings alone."""
        folder = files(__package__) / "configs"
        read = {name: yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")) for name in self}
        return [Listed(name, content["title"], content["reference"]) for name, content in read.items()]

    @staticmethod
    def _names() -> list[str]:
        return sorted(file.name.removesuffix(".yaml") for file in (files(__package__) / "configs").iterdir())


RECIPES = Catalogue()
