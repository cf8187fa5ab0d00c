"""Packages that load what they hand out when it is first asked for: reading a ledger need not wait for torch.

An `__init__` names what its package hands out once, as imports under `if TYPE_CHECKING:`. There type checkers, linters
and import-linter see ordinary imports; when the program runs, `on_first_use` does each when its name is asked for.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.abc import InspectLoader
from types import ModuleType
from typing import Any, cast

from cutlayer.core.extras import require


class _LazyPackage(ModuleType):
    """A package whose names are loaded on first use (PEP 562)."""

    _sources: dict[str, tuple[str, str | None]]
    """By name, the module that it is in, and its name there; `None` where it is that module."""

    _extra: str | None

    def __getattr__(self, name: str) -> Any:
        if name not in self._sources:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if self._extra is not None:
            require(self._extra)
        module, attribute = self._sources[name]
        loaded = import_module(module)
        value = self.__dict__[name] = loaded if attribute is None else getattr(loaded, attribute)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # whoever imports the module `package.render` sets `package.render`: not where that is to be the function in it
        if not (isinstance(value, ModuleType) and name in self._sources):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._sources})


def on_first_use(package: str, *, extra: str | None = None) -> None:
    """Makes the imports under a package's `if TYPE_CHECKING:` happen one by one, when their names are asked for.

    Args:
        package: Its name; called from its `__init__`.
        extra: What must be installed for its names. Its modules of settings can be imported without: `--help` shows
            what there is to set where an extra is missing, too.
    """
    module = sys.modules[package]
    source = cast(InspectLoader, module.__loader__).get_source(package) or ""
    module.__dict__["_sources"] = {
        alias.asname or alias.name: (
            (f"{package}.{alias.name}", None) if statement.module == package else (statement.module or "", alias.name)
        )
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    module.__dict__["_extra"] = extra
    module.__class__ = _LazyPackage
