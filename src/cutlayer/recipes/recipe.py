"""What a recipe is: a paper's experiments as settings of the one road, and the report that they give."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
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


class Size(StrEnum):
    """How much of an experiment is run."""

    SMALL = "small"
    """Some thousand rows of each data set and few epochs: the shape of the result, in some hours on two cores."""
    FULL = "full"
    """All rows that the data sets have."""


@dataclass(frozen=True)
class Order:
    """What is to be run.

    Attributes:
        size: How much of it.
        seeds: Runs of each cell, with seeds 0, 1, …
        model: `starter`, a local folder or a hub id.
        data: The folder of public data sets.
        out: Where cells and the report are kept; the same folder goes on with an unfinished run.
    """

    size: Size
    seeds: int
    model: str
    data: Path
    out: Path

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
    """One paper's experiments."""

    title: str
    reference: str

    def show(self) -> Mapping[str, Any]:
        """Its settings, the paper's figures and the deviations from it."""
        ...

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            DataError: A data set is missing.
            Stopped: The user interrupted; the same order goes on.
        """
        ...


RECIPES: Registry[Recipe] = Registry("recipe")


def read_config(name: str, kind: type[S]) -> S:
    """The settings that ship with a recipe.

    Raises:
        ConfigError: They are not what the recipe needs; every fault is named.
    """
    text = (files(__package__) / "configs" / f"{name}.yaml").read_text()
    try:
        return kind.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        raise ConfigError(
            [Fault(".".join(map(str, fault["loc"])), fault["input"], fault["msg"]) for fault in error.errors()]
        ) from None


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
