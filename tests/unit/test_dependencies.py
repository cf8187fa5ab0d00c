"""What the package imports is what it says it needs, and where it says so."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/cutlayer"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OWNERS = importlib.metadata.packages_distributions()
SOURCES = sorted(PACKAGE.rglob("*.py"))


def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(lines: Iterable[str]) -> set[str]:
    """What requirements name, and what the extras of cutlayer among them name."""
    found = set()
    for line in lines:
        if line.startswith("cutlayer["):
            found |= packages(inner for extra in line[9:-1].split(",") for inner in EXTRAS[extra])
        else:
            found.add(plain(re.split(r"[<>=!~;\[ ]", line)[0]))
    return found


def imported(node: ast.AST) -> Iterator[str]:
    """The first words of what a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.split(".")[0]


def required(tree: ast.AST) -> set[str]:
    """The extras that `require` is called for, or that a package has its names wait for."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    named = [call.args[0] for call in calls if call.func.id == "require" and isinstance(call.args[0], ast.Constant)]
    named += [
        word.value for call in calls for word in call.keywords if (call.func.id, word.arg) == ("on_first_use", "extra")
    ]
    return {ast.literal_eval(each) for each in named}


def asked_for(path: Path) -> set[str]:
    """The extras that whoever imports a file has been asked for: by the packages that it is in."""
    doors = [folder / "__init__.py" for folder in path.parents if folder.is_relative_to(PACKAGE)]
    return set().union(*(required(ast.parse(door.read_text())) for door in doors))


def test_every_import_is_declared() -> None:
    """One that comes along with another package goes when that package stops needing it."""
    declared = packages([*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)])
    statements = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    others = {name for node in statements for name in imported(node)} - sys.stdlib_module_names - {"cutlayer"}
    assert {"torch", "yaml"} <= others
    undeclared = {name for name in others if not {plain(each) for each in OWNERS.get(name, [name])} & declared}
    assert not undeclared


def scopes(path: Path) -> Iterator[tuple[set[str], list[ast.AST]]]:
    """A file's top level and each of its functions: the extras that were asked for there, and its own nodes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    held = asked_for(path)
    yield held, [node for node in ast.walk(tree) if id(node) not in inside]
    for function in functions:
        yield held | required(function), list(ast.walk(function))


def test_what_an_extra_brings_is_imported_where_the_extra_was_asked_for() -> None:
    """Else whoever has not installed it sees a traceback, and no command that installs it."""
    unasked = set()
    for path in SOURCES:
        for extras, nodes in scopes(path):
            brought = packages([*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])])
            for name in {name for node in nodes for name in imported(node)} - sys.stdlib_module_names - {"cutlayer"}:
                if not {plain(each) for each in OWNERS.get(name, [name])} & brought:
                    unasked.add(f"{path.relative_to(PACKAGE)}: {name}")
    assert not unasked
