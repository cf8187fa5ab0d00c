"""A room's public surface is exactly what its `__init__.py` lists."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import cutlayer

ROOMS = [module.name for module in pkgutil.iter_modules(cutlayer.__path__) if module.ispkg]


@pytest.mark.parametrize("room", ROOMS)
def test_exported_members(room: str) -> None:
    module = importlib.import_module(f"cutlayer.{room}")
    public = {name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public - {"annotations", "TYPE_CHECKING", "on_first_use", "require"} <= set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("room", ROOMS)
def test_public_things_are_documented(room: str) -> None:
    module = importlib.import_module(f"cutlayer.{room}")
    assert module.__doc__
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"cutlayer.{room}.{name}"


def test_the_package_offers_the_client() -> None:
    assert set(cutlayer.__all__) >= {"Client"}
    for name in cutlayer.__all__:
        assert getattr(cutlayer, name) is not None
