from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from cutlayer.cli.files import write_rows
from cutlayer.cli.output import Output, fields
from cutlayer.core import Guarantee, Proportion, StorageError
from cutlayer.data import read_dataset

ROWS = [('he said "no",\ntwice', "a"), ("tab\there", "b"), ("ünï 漢字", "c")]


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.jsonl", "out.csv.gz", "out.jsonl.gz"])
def test_what_is_written_can_be_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / name
    write_rows(path, ("text", "label"), ROWS)
    read = read_dataset(path, text_column="text", label_column="label")
    assert read.texts == tuple((text,) for text, _ in ROWS)
    assert read.labels == ("a", "b", "c")


def test_compressed_files_repeat(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_rows(tmp_path / name, ("x",), [(1,)])
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == b"x\n1\n"
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/out\.csv could not be written"):
        write_rows(tmp_path / "file" / "out.csv", ("x",), [])


def test_json_has_no_bare_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).result({"eta": math.inf, "nested": [{"eta": math.inf}]})
    assert capsys.readouterr().out == '{"eta": "inf", "nested": [{"eta": "inf"}]}\n'


def test_records_become_plain_values() -> None:
    assert fields(Proportion.of(1, 2)) == pytest.approx({"value": 0.5, "n": 2, "standard_error": 0.353553}, rel=1e-4)
    assert fields({"eta": math.inf}) == {"eta": "inf"}
    assert fields(Guarantee.nothing())["budget"] == "inf"


def test_readers_get_tables_and_machines_get_none(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        output = Output(as_json=as_json)
        output.table("Title [not markup]", ("a",), [("[red]x",)])
        captured = capsys.readouterr()
        shown, other = (captured.err, captured.out) if as_json else (captured.out, captured.err)
        assert "[red]x" in shown
        assert "Title [not markup]" in shown
        assert other == ""
