"""The walls between rooms stand where packages load what they hand out on first use: a planted fault is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAZY = "if TYPE_CHECKING:\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the package, which import-linter finds instead of the real one."""
    copy = tmp_path / "cutlayer"
    shutil.copytree(ROOT / "src/cutlayer", copy, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    return copy


def plant(file: Path, line: str) -> None:
    content = file.read_text()
    assert LAZY in content
    file.write_text(content.replace(LAZY, f"{LAZY}    {line}\n", 1))


def lint(source: Path) -> tuple[int, str]:
    """In a process of its own: it finds the copy first, and what it sets up of logging is not ours."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", program, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(source.parent)}
    done = subprocess.run(command, cwd=source.parent, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_without_a_fault_all_contracts_are_kept(source: Path) -> None:
    assert (source / "core/lazy.py").exists()
    assert lint(source)[0] == 0


def test_a_room_that_hands_out_what_is_above_it(source: Path) -> None:
    plant(source / "attacks/__init__.py", "from cutlayer.customer import Client")
    code, told = lint(source)
    assert code == 1
    assert "Rooms know only the rooms below them BROKEN" in told


def test_a_web_framework_behind_what_a_lower_room_hands_out(source: Path) -> None:
    (source / "models/planted.py").write_text("import fastapi\n\nServed = fastapi.FastAPI\n")
    plant(source / "models/__init__.py", "from cutlayer.models.planted import Served")
    code, told = lint(source)
    assert code == 1
    assert "The customer ships no server and no database BROKEN" in told


def test_a_gateway_that_asks_the_vendors_own_side(source: Path) -> None:
    (source / "gateway/planted.py").write_text("from cutlayer.vendor import VendorSettings as Served\n")
    code, told = lint(source)
    assert code == 1
    assert "The gateway knows nothing of the vendor's side BROKEN" in told
