"""Which recipes there are, by their settings alone: what runs them takes seconds to import."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import yaml


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


def listed() -> list[Listed]:
    """All recipes, by name; each has its settings in `configs/<name>.yaml`."""
    found = []
    for file in (files(__package__) / "configs").iterdir():
        settings = yaml.safe_load(file.read_text())
        found.append(Listed(file.name.removesuffix(".yaml"), settings["title"], settings["reference"]))
    return sorted(found)
