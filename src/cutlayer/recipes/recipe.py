"""What a recipe is: a paper's experiments as settings of the one road, and the report that they give."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml
from pydantic import ValidationError

from cutlayer.core import ConfigError, Fault, Registry, Spec
from cutlayer.customer import Progress
from cutlayer.reports import Table

S = TypeVar("S", bound=Spec)
T = TypeVar("T")


class Size(StrEnum):
    """How much of an experiment is run; a recipe may lack one."""

    TINY = "tiny"
    """Whether it runs at all, in seconds; the numbers mean nothing."""
    SMALL = "small"
    """The shape of the result, in some hours on two cores."""
    FULL = "full"
    """As much as the paper, as far as the data sets go."""


@dataclass(frozen=True)
class Order:
    """What is to be run.

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
    seeds: int
    model: str
    data: Path
    out: Path
    only: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError([Fault("seeds", self.seeds, "must be at least 1")])


@dataclass(frozen=True)
class Report:
    """What a recipe gives.

    Attributes:
        tables: For readers.
        content: For machines, the same and more.
        files: What was written: JSON, Markdown, PNG.
    """

    tables: tuple[Table, ...]
    content: Mapping[str, Any]
    files: tuple[Path, ...]


class Recipe(Protocol):
    """One paper's experiments.

    Attributes:
        title: The paper's.
        reference: Where it is found.
        default_model: What it runs on where the order names nothing else.
        parts: What can be run by itself (`Order.only`); none where the recipe is one piece.
    """

    title: str
    reference: str
    default_model: str
    parts: tuple[str, ...]

    def show(self) -> Mapping[str, Any]:
        """Its settings, the paper's figures and the deviations from it."""
        ...

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            ConfigError: The recipe lacks the size or a part that is asked for.
            DataError: A data set is missing.
            Stopped: The user interrupted; the same order goes on.
        """
        ...


RECIPES: Registry[Recipe] = Registry("recipe", package="cutlayer.recipes")


def read_config(name: str, kind: type[S]) -> S:
    """The settings that ship with a recipe.

    Raises:
        ConfigError: They are not what the recipe needs; every fault is named.
    """
    return _validated(kind, yaml.safe_load((files(__package__) / "configs" / f"{name}.yaml").read_text()))


def _validated(kind: type[S], content: Mapping[str, Any]) -> S:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ConfigError(
            [Fault(".".join(map(str, fault["loc"])), fault["input"], fault["msg"]) for fault in error.errors()]
        ) from None


def configured(config: S, settings: Mapping[str, str]) -> S:
    """A recipe's settings with some of them changed.

    Args:
        config: What ships.
        settings: New values as YAML, by dotted name.

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
            close = difflib.get_close_matches(name, _names(content), n=1)
            raise ConfigError(
                [Fault("set", name, f"is no setting{f'; did you mean {close[0]}?' if close else ''}")],
                remedy="`cutlayer recipe show` lists them.",
            )
        place[last] = yaml.safe_load(value)
    return _validated(type(config), content) if settings else config


def _names(content: Mapping[str, Any], above: str = "") -> list[str]:
    """Dotted names of all settings."""
    found = []
    for name, value in content.items():
        found.append(above + name)
        if isinstance(value, dict):
            found += _names(value, f"{above}{name}.")
    return found


def at_size(sizes: Mapping[Size, T], size: Size) -> T:
    """What a recipe is at a size.

    Raises:
        ConfigError: It has no such size.
    """
    if size not in sizes:
        raise ConfigError([Fault("size", size.value, f"must be one of this recipe's: {', '.join(sizes)}")])
    return sizes[size]


def chosen_parts(parts: Sequence[str], only: Sequence[str], *, other_names: Mapping[str, str]) -> tuple[str, ...]:
    """The parts of a recipe that an order asks for, in the recipe's order.

    Args:
        parts: All of the recipe's.
        only: Those asked for; none takes all.
        other_names: Further names, and the part that each stands for.

    Raises:
        ConfigError: The recipe has no such part; the known ones are listed.
    """
    wanted = [other_names.get(name, name) for name in only]
    faults = []
    for given, name in zip(only, wanted, strict=True):
        if name not in parts:
            close = difflib.get_close_matches(name, [*parts, *other_names], n=1)
            faults.append(Fault("only", given, f"is no part{f'; did you mean {close[0]}?' if close else ''}"))
    if faults:
        known = f"Choose among: {', '.join(parts)}." if parts else "This recipe is one piece: leave --only out."
        raise ConfigError(faults, remedy=known)
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
