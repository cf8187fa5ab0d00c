from __future__ import annotations

import json
import struct

import pytest

from cutlayer.core import StorageError
from cutlayer.reports import Curve, Estimate, Panel, Table, draw_panels, percent, write_report

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
    with pytest.raises(StorageError):
        draw_panels([Panel("P", ("1",), ())], tmp_path / "file" / "p.png", title="T")


def test_plots_are_png_and_repeat_byte_for_byte(tmp_path):
    values = (Estimate(value=0.5, standard_error=0.1, n=10, runs=1), None)
    curves = (Curve("c", "g", values), Curve("d", "g", values, dashed=True))
    panels = [Panel("P", ("1", "∞"), curves, values[0], "level")]
    for name in ("a.png", "b.png"):
        draw_panels(panels * 3, tmp_path / name, title="T")
    a, b = ((tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert a == b
    assert a.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", a[16:24])
    assert width > 1000
    assert height > 900
