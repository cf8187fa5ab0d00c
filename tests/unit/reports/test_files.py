from __future__ import annotations

import json

import pytest

from cutlayer.core import StorageError
from cutlayer.reports import Table, percent, write_report

TABLE = Table(title="T", columns=("a", "b"), rows=(("1", "x|y"),), notes=("A note.",))


def test_markdown():
    assert TABLE.markdown() == "## T\n\n| a | b |\n| --- | --- |\n| 1 | x\\|y |\n\nA note.\n"


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.1234, "12.3"), (1.0, "100.0")])
def test_percent(value, text):
    assert percent(value) == text


def test_a_report_in_files(tmp_path):
    machines, readers = write_report(tmp_path / "new", [TABLE], {"a": 1}, title="R", pictures=["p.png"])
    assert json.loads(machines.read_text()) == {"a": 1}
    assert readers.read_text(encoding="utf-8") == "# R\n\n![p](p.png)\n\n" + TABLE.markdown()


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        write_report(tmp_path / "file", [TABLE], {}, title="R")
