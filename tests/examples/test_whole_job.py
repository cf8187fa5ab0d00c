"""The examples of the whole job run as they stand, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def run(script: Path, folder: Path) -> str:
    """What a script printed, which must end well."""
    command = [sys.executable, script, folder / "made"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cells(notebook: Path) -> list[dict[str, Any]]:
    """Its cells of code, each a list of lines and what running it printed."""
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("starter_installed")
def test_the_script_ends_with_a_report(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "end_to_end.py", tmp_path)
    assert "went to http://127.0.0.1" in printed
    assert "Which words did the texts have?" in printed
    assert (tmp_path / "made/report/report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("starter_installed")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells(notebook)))
    assert "tokens that were read" in run(script, tmp_path)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_what_it_printed(notebook: Path) -> None:
    assert not [cell for cell in cells(notebook) if cell["outputs"] or cell["execution_count"] is not None]
