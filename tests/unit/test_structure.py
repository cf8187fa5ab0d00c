"""No module imports itself by way of others, no file is too long, no function takes too many parameters.

And whoever calls a public function reads which shape a tensor has, without the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
LINES, PARAMETERS = 500, 8


# ---------------------------------------------------------------- circles


def modules(source: Path) -> dict[str, Path]:
    """Every module below a folder, by its dotted name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: Path) -> dict[str, set[str]]:
    """Which modules each one imports: at its top, in functions, and for types alone.

    That Python runs `a/__init__.py` before `a/b.py` is no import of `a` by `a.b`.
    """
    known = modules(source)
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & set(known)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                assert not node.level, f"{name} imports relatively"
                within = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= within & set(known)
                if not within <= set(known):
                    found[name] |= {node.module} & set(known)
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The largest sets of modules that all import one another, directly or by others (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            at = stack.index(name)
            members = stack[at:]
            del stack[at:]
            if len(members) > 1 or name in graph[name]:
                found.append(sorted(members))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = imports(SRC)
    assert len(graph) > 200
    assert not circles(graph)


PLANTED = {
    "at the top": "from package.two import name",
    "of the module": "from package import two",
    "whole": "import package.two",
    "in a function": "def late():\n    from package.two import name",
    "for types alone": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.two import name",
}


@pytest.mark.parametrize("how", PLANTED)
def test_a_planted_circle_is_found(tmp_path: Path, how: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from package.three import name\n")
    (package / "two.py").write_text("from package.three import name\n")
    (package / "three.py").write_text("import json\n")
    assert not circles(imports(tmp_path))
    (package / "three.py").write_text(PLANTED[how] + "\n")
    assert circles(imports(tmp_path)) == [["package.three", "package.two"]]


def test_a_module_that_imports_its_package_is_in_a_circle_with_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from package.two import name\n")
    (package / "two.py").write_text("from package import other\n")
    assert circles(imports(tmp_path)) == [["package", "package.two"]]


# ---------------------------------------------------------------- sizes


def lengths(source: Path) -> dict[str, int]:
    """Lines of each file."""
    return {
        str(path.relative_to(source)): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules(source).values()
    }


def parameters(source: Path) -> dict[str, int]:
    """Most parameters of each function, `self` and `cls` left out; a dataclass's constructor is not written as one."""
    found: dict[str, int] = {}
    for path in modules(source).values():
        for name, node in functions(ast.parse(path.read_text(encoding="utf-8"))):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
            count = sum(arg is not None and arg.arg not in ("self", "cls") for arg in every)
            key = f"{path.relative_to(source)}:{name}"
            found[key] = max(count, found.get(key, 0))
    return found


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function, by the names of what it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from functions(node, f"{within}{node.name}." if named else within)


def too_large(sizes: Mapping[str, int], limit: int) -> set[str]:
    return {name for name, size in sizes.items() if size > limit}


def test_no_file_is_too_long() -> None:
    assert too_large(lengths(SRC), LINES) == set()


def test_no_function_takes_too_much() -> None:
    assert too_large(parameters(SRC), PARAMETERS) == set()


def test_what_is_too_large_is_found(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * (LINES + 1))
    (tmp_path / "right.py").write_text("x = 1\n" * LINES)
    names = [f"a{number}" for number in range(PARAMETERS)]
    (tmp_path / "many.py").write_text(
        f"class One:\n    def right(self, {', '.join(names)}): ...\n"
        f"    def wrong(self, {', '.join(names[2:])}, *, b, **others):\n"
        f"        async def inner({', '.join(names)}, c=1): ...\n"
    )
    assert too_large(lengths(tmp_path), LINES) == {"long.py"}
    assert too_large(parameters(tmp_path), PARAMETERS) == {"many.py:One.wrong.inner"}


# ---------------------------------------------------------------- shapes

TENSOR = re.compile(r"\bTensor\b")
BY_NAME = re.compile(r"\b(?:Mapping|dict)\[.*\]")  # shapes of named tensors stand where the names are
SHAPE = re.compile(r"`\[[^\]]*\]|\bscalar\b|^See `")  # or the docstring that is overridden has it


def without_shape(source: Path) -> set[str]:
    """Public functions with a tensor among their parameters or as their result, and no shape in their docstring."""
    found = set()
    for path in modules(source).values():
        every_function = dict(functions(ast.parse(path.read_text(encoding="utf-8"))))
        for name, node in every_function.items():
            if name.rpartition(".")[0] in every_function:
                continue  # within a function, where nobody else calls it
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg]
            kinds = [arg.annotation for arg in every if arg is not None] + [node.returns]
            takes = any(kind is not None and TENSOR.search(BY_NAME.sub("", ast.unparse(kind))) for kind in kinds)
            private = any(part.startswith("_") and part != "__call__" for part in name.split("."))
            if takes and not private and not SHAPE.search(ast.get_docstring(node) or ""):
                found.add(f"{path.relative_to(source)}:{name}")
    return found


def test_public_functions_give_the_shapes_of_their_tensors() -> None:
    assert without_shape(SRC) == set()


def test_a_missing_shape_is_found(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "class One:\n"
        "    def right(self, rows: Tensor) -> None:\n        'Rows `[n, width]`.'\n"
        "    def overrides(self) -> Tensor:\n        'See `Two.overrides`.'\n"
        "    def named(self) -> dict[str, Tensor]:\n        'By name.'\n"
        "    def _private(self, rows: Tensor): ...\n"
        "    def undocumented(self) -> Tensor: ...\n"
        "async def wrong(*, rows: Tensor | None):\n    'Takes rows.'\n"
        "def several() -> tuple[Tensor, dict[str, int]]:\n    'Rows.'\n    def inner(rows: Tensor): ...\n"
    )
    assert without_shape(tmp_path) == {"some.py:One.undocumented", "some.py:wrong", "some.py:several"}
