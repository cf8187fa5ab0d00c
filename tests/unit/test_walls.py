"""The walls between rooms stand where packages load what they hand out on first use: a planted fault is found."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_ERROR, EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]
LAZY = "if TYPE_CHECKING:\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package, which import-linter finds instead of the real one."""
    copy = tmp_path / "cutlayer"
    shutil.copytree(ROOT / "src/cutlayer", copy, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # import-linter looks for the package as Python does, and this process has imported the real one
    for name in [name for name in sys.modules if name.partition(".")[0] == "cutlayer"]:
        monkeypatch.delitem(sys.modules, name)
    return copy


def plant(file: Path, line: str) -> None:
    content = file.read_text()
    assert LAZY in content
    file.write_text(content.replace(LAZY, f"{LAZY}    {line}\n", 1))


def lint() -> int:
    return lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)


def test_without_a_fault_all_contracts_are_kept(source: Path) -> None:
    assert (source / "core/lazy.py").exists()
    assert lint() == EXIT_STATUS_SUCCESS


def test_a_room_that_hands_out_what_is_above_it(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(source / "attacks/__init__.py", "from cutlayer.customer import Client")
    assert lint() == EXIT_STATUS_ERROR
    assert "Rooms know only the rooms below them BROKEN" in capsys.readouterr().out


def test_a_web_framework_behind_what_a_lower_room_hands_out(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "models/planted.py").write_text("import fastapi\n\nServed = fastapi.FastAPI\n")
    plant(source / "models/__init__.py", "from cutlayer.models.planted import Served")
    assert lint() == EXIT_STATUS_ERROR
    assert "The customer ships no server and no database BROKEN" in capsys.readouterr().out
