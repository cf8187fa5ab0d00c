"""What a recipe is asked for, and its settings: `configs/NAME.yaml`, with changes laid over them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import AfterValidator, Field

from cutlayer.core import ConfigError, Deviation, Fault, Spec
from cutlayer.core.spec import checked, unknown

S = TypeVar("S", bound=Spec)
V = TypeVar("V")
C = TypeVar("C", bound="RecipeConfig[Any]")
Setting = float | int | str | bool | None


class Size(StrEnum):
    """How much of an experiment is run; a recipe may lack one."""

    TINY = "tiny"
    """Whether it runs at all, in minutes; the numbers mean nothing."""
    SMALL = "small"
    """The shape of the result, in some hours on two cores."""
    FULL = "full"
    """As much as the paper, as far as the data sets go."""


class RecipeOptions(Spec):
    """What is asked for.

    Attributes:
        size: How much of it.
        seeds: Runs of each cell, with seeds 0, 1, …
        model: An embedded model's name, a local folder or a hub id.
        data: The folder of public data sets.
        out: Where cells and the report are kept; the same folder goes on with an unfinished run.
        only: Names of the recipe's parts; none takes all.
        settings: Other settings than those that ship, by dotted name, as YAML.
    """

    size: Size
    seeds: int = Field(default=1, ge=1)
    model: str
    data: Path
    out: Path
    only: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}


class RecipeConfig(Spec, Generic[S]):
    """What `configs/NAME.yaml` holds of every recipe.

    Attributes:
        title: The paper's, or what is measured.
        reference: Where it is found.
        deviations: Where this differs from the paper.
        sizes: What `--size` changes.
    """

    title: str
    reference: str
    deviations: tuple[Deviation, ...] = ()
    sizes: Mapping[Size, S]

    def at(self, size: Size) -> S:
        """What the recipe is at a size.

        Raises:
            ConfigError: It has no such size.
        """
        if size not in self.sizes:
            raise ConfigError([Fault("size", size.value, f"must be one of this recipe's: {', '.join(self.sizes)}")])
        return self.sizes[size]


class Named(dict[str, V]):
    """Settings by name, of which other settings name some: an unknown name is a user's error.

    Args:
        kind: What they are, for messages.
        items: Them.
    """

    def __init__(self, kind: str, items: Mapping[str, V]) -> None:
        super().__init__(items)
        self._kind = kind

    def __missing__(self, name: str) -> V:
        raise unknown(self._kind, name, self)


def named(kind: str) -> AfterValidator:
    """Makes `Named` of a field that is a mapping."""
    return AfterValidator(lambda items: Named(kind, items))


def read_yaml(folder: str, name: str) -> dict[str, Any]:
    """A file that ships with the recipes: of `configs` (settings), `papers` (numbers that papers print), `layouts`."""
    found = yaml.safe_load((files(__package__) / folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return dict(found)


def shipped(name: str, kind: type[C]) -> C:
    """The settings that ship with a recipe.

    Raises:
        ConfigError: They are not what the recipe needs; every fault is named.
    """
    with checked():
        return kind.model_validate(read_yaml("configs", name))


def configured(config: S, settings: Mapping[str, str]) -> S:
    """A recipe's settings with some of them changed: new values as YAML, by dotted name.

    Raises:
        ConfigError: There is no such setting, or it cannot have this value.
    """
    content = config.model_dump()
    for name, value in settings.items():
        *above, last = name.split(".")
        place: Any = content
        for part in above:
            place = place.get(part) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            fault = Fault("set", name, f"is no setting{_nearest(name, _names(content))}")
            raise ConfigError([fault], remedy="`cutlayer recipe show` lists them.")
        place[last] = yaml.safe_load(value)
    with checked():
        return type(config).model_validate(content) if settings else config


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _names(content: Mapping[str, Any], above: str = "") -> list[str]:
    found = []
    for name, value in content.items():
        found.append(above + name)
        if isinstance(value, dict):
            found += _names(value, f"{above}{name}.")
    return found


def chosen_parts(parts: Sequence[str], only: Sequence[str], other_names: Mapping[str, str]) -> tuple[str, ...]:
    """The parts of a recipe that are asked for, in the recipe's order, some by other names; none takes all.

    Raises:
        ConfigError: The recipe has no such part; the known ones are listed.
    """
    wanted = [other_names.get(name, name) for name in only]
    faults = [
        Fault("only", given, f"is no part{_nearest(name, [*parts, *other_names])}")
        for given, name in zip(only, wanted, strict=True)
        if name not in parts
    ]
    if faults:
        raise ConfigError(faults, remedy=f"Choose among: {', '.join(parts)}.")
    return tuple(part for part in parts if part in wanted or not wanted)


def data_folder(given: Path | None) -> Path:
    """The folder of public data sets: the one given, or the one that `CUTLAYER_DATA` names.

    Raises:
        ConfigError: There is none.
    """
    folder = given or (Path(os.environ["CUTLAYER_DATA"]) if os.environ.get("CUTLAYER_DATA") else None)
    if folder is None or not folder.is_dir():
        raise ConfigError(
            [Fault("data", None if folder is None else str(folder), "must be the folder of public data sets")],
            remedy="Set CUTLAYER_DATA (or --data) to it: it holds <name>/<split>.jsonl.gz.",
        )
    return folder
