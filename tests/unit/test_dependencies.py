"""What the package imports is what it says it needs."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> Iterator[str]:
    """The first word of everything that is imported anywhere in `src`."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.split(".")[0]


def test_every_import_is_declared() -> None:
    """One that comes along with another package goes when that package stops needing it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {plain(re.split(r"[<>=!~;\[ ]", line)[0]) for line in lines}
    owners = importlib.metadata.packages_distributions()
    others = set(imported()) - sys.stdlib_module_names - {"cutlayer"}
    assert {"torch", "yaml"} <= others
    undeclared = {name for name in others if not {plain(each) for each in owners.get(name, [name])} & declared}
    assert not undeclared
