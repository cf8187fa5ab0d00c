"""What is said where an extra's packages are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlayer.core import MissingExtraError
from cutlayer.core.extras import require

METADATA = """Metadata-Version: 2.4
Name: cutlayer
Version: 1
Requires-Dist: not-installed-at-all>=1
Requires-Dist: not-a-server>=1; extra == "vendor"
Requires-Dist: pytest>=1; extra == "audit"
Requires-Dist: not-a-server; extra == "audit"
Requires-Dist: not-a-plotter[fast]>=2,<3; extra == "audit"
Requires-Dist: not-a-table; extra == "recipes"
Requires-Dist: not-for-this-system; extra == "starter" and python_version < "3"
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that says of cutlayer what an installer would write, of packages that are not there."""
    about = tmp_path / "cutlayer-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(METADATA)
    return tmp_path


@pytest.fixture
def here(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(installed)
    require.cache_clear()
    yield
    require.cache_clear()


@pytest.mark.usefixtures("here")
def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtraError) as caught:
        require("audit")
    assert str(caught.value) == (
        "This needs not-a-server, not-a-plotter, which are not installed. Run: pip install 'cutlayer[audit]'"
    )
    assert caught.value.exit_code == 13


@pytest.mark.usefixtures("here")
def test_what_another_system_needs_is_not_missing_here() -> None:
    require("starter")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("vendor serve --data-dir vendor", "vendor"),
        ("vendor key list --data-dir vendor", "vendor"),
        ("audit --data x.csv --eta 80 --out report", "audit"),
        ("calibrate --data x.csv --at-most token_recovery=0.1 --out out", "audit"),
        ("demo", "audit"),
        ("recipe list", "recipes"),
    ],
)
def test_a_command_says_what_it_lacks(arguments: str, extra: str, installed: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "cutlayer.cli", *arguments.split()],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        cwd=installed,
    )
    assert ran.stderr.endswith(f"not installed. Run: pip install 'cutlayer[{extra}]'\n")
    assert (ran.returncode, ran.stdout) == (MissingExtraError.exit_code, "")
