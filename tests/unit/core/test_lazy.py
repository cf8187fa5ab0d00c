"""Packages that load on first use what they hand out."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

INIT = """
from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from planted import tools
    from planted.draw import draw
    from planted.models import Large as Model, Small

on_first_use(__name__)
"""
FILES = {
    "__init__.py": INIT,
    "draw.py": "def draw(): return 'drawn'\n",
    "models.py": "class Large: ...\nclass Small: ...\n",
    "tools.py": "TOOL = 1\n",
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "planted"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("planted")
    for name in [name for name in sys.modules if name.partition(".")[0] == "planted"]:
        del sys.modules[name]


def test_a_name_loads_its_module_and_no_other(planted: ModuleType) -> None:
    assert "planted.models" not in sys.modules
    assert planted.Small is planted.Small
    assert planted.Model.__name__ == "Large"
    assert "planted.models" in sys.modules
    assert not {"planted.draw", "planted.tools"} & sys.modules.keys()


def test_a_function_is_not_lost_to_the_module_that_it_is_in(planted: ModuleType) -> None:
    importlib.import_module("planted.draw")
    assert planted.draw() == "drawn"
    assert sys.modules["planted.draw"].draw is planted.draw


def test_a_package_may_hand_out_a_module(planted: ModuleType) -> None:
    assert planted.tools.TOOL == 1


def test_what_is_handed_out_is_listed_and_nothing_else_is_there(planted: ModuleType) -> None:
    assert {"Model", "Small", "draw", "tools"} <= set(dir(planted))
    assert "Large" not in dir(planted)
    with pytest.raises(AttributeError, match=r"^module 'planted' has no attribute 'Large'$"):
        planted.Large  # noqa: B018
