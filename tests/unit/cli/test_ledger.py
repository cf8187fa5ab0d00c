"""What `ledger show` says to people."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cutlayer.cli.ledger import show_summary
from cutlayer.cli.output import Output
from cutlayer.privacy import Ledger


def test_looks_are_shown_by_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over all of a model's tables: each of them has a unit of eta and a sum of its own."""
    summary = dataclasses.replace(Ledger(tmp_path / "ledger.db").summary(), looks={"large": 6, "": 1})
    show_summary(Output(), summary)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["│", "large", "│", "6", "│"] in shown
    assert ["│", "not", "written", "down", "│", "1", "│"] in shown
