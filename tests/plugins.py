"""Packages of one file, installed for a test: they lie on the path with what an installer would write about them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cutlayer.privacy import MECHANISMS

Install = Callable[..., None]
"""install(package, source, *, version="1.2", **names): `names` are mechanisms, each with the object that is one."""

FAINT = """
from cutlayer.privacy import DChi


class Faint(DChi):
    def noise(self, *, etas, width, rng):
        return super().noise(etas=10 * etas, width=width, rng=rng)


NOISE = Faint()
"""
"""A mechanism of a tenth of d_chi noise."""


@contextmanager
def installing(folder: Path) -> Iterator[Install]:
    """Gives a function that installs packages of mechanisms below `folder`, and takes them away again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MECHANISMS, "_loaded", {})
        packages = []

        def install(package: str, source: str, *, version: str = "1.2", **names: str) -> None:
            place = folder / f"{package}-{version}"
            about = place / f"{package}-{version}.dist-info"
            about.mkdir(parents=True)
            (place / f"{package}.py").write_text(source, encoding="utf-8")
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
            lines = [f"{name.replace('_', '-')} = {package}:{part}" for name, part in names.items()]
            (about / "entry_points.txt").write_text("\n".join(["[cutlayer.mechanisms]", *lines, ""]))
            patch.syspath_prepend(place)
            packages.append(package)

        yield install
    for package in packages:
        sys.modules.pop(package, None)
