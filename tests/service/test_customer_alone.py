"""A customer who installed no extra: the whole job, against a vendor who did."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cutlayer import vendor
from cutlayer.vendor.process import VendorProcess
from tests.service.tiny import write_tiny_bert

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ABSENT = (
    "fastapi",
    "uvicorn",
    "starlette",
    "sqlalchemy",
    "prometheus_client",
    "plotly",
    "matplotlib",
    "sklearn",
    "pandas",
)
IMPORT = f"""
import importlib.util

import cutlayer

assert cutlayer.Client
assert not [name for name in {ABSENT} if importlib.util.find_spec(name)]
"""


def needed(lines: list[str]) -> Iterator[Distribution]:
    """What these requirements install, each once: packages, and what they require without an extra."""
    seen: set[str] = set()
    while lines:
        requirement = Requirement(lines.pop())
        # an extra of a package that is required by name comes along with it: `psycopg[binary]`
        extras = {"", *requirement.extras}
        if requirement.name.lower() in seen:
            continue
        seen.add(requirement.name.lower())
        found = distribution(requirement.name)
        yield found
        inner = [Requirement(line) for line in found.requires or ()]
        lines += [
            str(each).partition(";")[0]
            for each in inner
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        ]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with what `pip install cutlayer` installs, and nothing else."""
    folder = tmp_path / "site"
    folder.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for package in needed(list(project["dependencies"])):
        for name in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(package.locate_file(name))))
    return folder


def test_the_whole_job(site: Path, tmp_path: Path) -> None:
    vendor.init(tmp_path / "vendor", models=[str(write_tiny_bert(tmp_path / "tiny"))], threads=1)
    key = vendor.keys.create(tmp_path / "vendor", "hospital")
    notes = tmp_path / "notes.csv"
    with notes.open("w", newline="") as file:
        rows = [(f"w1 w{7 + number} w{9 + number}", "ab"[number % 2]) for number in range(40)]
        csv.writer(file).writerows([("text", "ward"), *rows])
    with VendorProcess(tmp_path / "vendor") as process:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)]),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "CUTLAYER_HOME": str(tmp_path / "home"),
            "CUTLAYER_VENDOR": process.url,
            "CUTLAYER_API_KEY": key,
        }

        def run(*arguments: str) -> str:
            # -S: this environment's own packages are not on the path
            command = [sys.executable, "-S", *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout

        def cutlayer(line: str) -> str:
            return run("-m", "cutlayer.cli", *line.split())

        run("-c", IMPORT)
        told = cutlayer(f"finetune --train {notes} --label-column ward --test {notes} --eta 80 --epochs 1")
        assert "utility accuracy" in told
        assert "empirical privacy" in told
        adapter = cutlayer("adapter list").split("│")[1].strip()
        assert len(adapter) == 32
        cutlayer(f"predict --adapter {adapter} --input {notes} --output {tmp_path / 'labelled.csv'}")
        assert len((tmp_path / "labelled.csv").read_text().splitlines()) == 41
        cutlayer(f"privatize --model {tmp_path / 'tiny'} --input {notes} --output {tmp_path / 'left.csv'} --eta 80")
        assert "text-to-text" in cutlayer("ledger show --releases")
