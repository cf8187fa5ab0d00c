from __future__ import annotations

import errno
import gzip
import math
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from cutlayer.cli.files import rows_file
from cutlayer.cli.output import Output, fields
from cutlayer.core import ConfigError, Guarantee, Proportion, StorageError
from cutlayer.data import read_dataset

ROWS = [('he said "no",\ntwice', "a"), ("tab\there", "b"), ("ünï 漢字", "c")]
LINE_ENDS = [("a lone\rreturn", "a"), ("\r", "b"), ("both\r\n", "c\r")]
ENDINGS = ["csv", "tsv", "jsonl", "csv.gz", "jsonl.gz"]


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with rows_file(path) as write:
        write(columns, rows)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("rows", [ROWS, LINE_ENDS], ids=["texts", "line ends"])
def test_what_is_written_can_be_read(rows: list[tuple[str, str]], ending: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"out.{ending}"
    write_rows(path, ("text", "label"), rows)
    read = read_dataset(path, text_column="text", label_column="label")
    assert read.texts == tuple((text,) for text, _ in rows)
    assert read.labels == tuple(label for _, label in rows)


@pytest.mark.parametrize(("ending", "between"), [("csv", ","), ("tsv", "\t")])
def test_rows_end_in_a_line_feed(ending: str, between: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{ending}"
    write_rows(path, ("text", "n"), [("a\r", 1), ("b\r\n", 2), ("c", 3)])
    lines = ("text|n", '"a\r"|1', '"b\r\n"|2', "c|3", "")
    assert path.read_bytes().decode() == "\n".join(lines).replace("|", between)


def test_compressed_files_repeat(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_rows(tmp_path / name, ("x",), [(1,)])
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == b"x\n1\n"
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("before", [None, b"the old rows"])
def test_a_full_disk_leaves_what_was_there(
    before: bytes | None, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.csv"
    if before is not None:
        path.write_bytes(before)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, no_space)
        with pytest.raises(StorageError, match="No space left"):
            write_rows(path, ("text",), ROWS[:1] * 1000)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if before is None else [before])


@pytest.mark.parametrize("error", [KeyboardInterrupt("by the user"), OSError("of the network")])
def test_work_that_fails_leaves_what_was_there(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("the old rows")
    with pytest.raises(type(error), match=str(error)), rows_file(path):
        raise error
    assert [each.read_text() for each in tmp_path.iterdir()] == ["the old rows"]


def test_rows_are_written_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"

    def rows() -> Iterator[tuple[str]]:
        yield from [("x" * 1000,)] * 1000
        (draft,) = tmp_path.iterdir()
        assert draft.stat().st_size > 900_000
        yield ("the last one",)

    write_rows(path, ("text",), rows())
    assert path.read_text().endswith("the last one\n")


KILLED = """
import itertools, os, pathlib, sys
from cutlayer.cli.files import rows_file

with rows_file(pathlib.Path(sys.argv[1])) as write:
    write(("text",), itertools.chain([("private",)] * 10_000, iter(lambda: os.kill(os.getpid(), 9), 0)))
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("the old rows")
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -9
    assert path.read_text() == "the old rows"
    assert len(list(tmp_path.iterdir())) == 2
    write_rows(path, ("x",), [(1,)])
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("out.csv", "x\n1\n")]


def test_of_two_that_write_one_file_the_later_one_does(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with rows_file(path) as first, rows_file(path) as second:
        with pytest.raises(ConfigError, match=r"began to write .*out\.csv, too"):
            first(("x",), [(1,)])
        second(("x",), [(2,)])
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("out.csv", "x\n2\n")]


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "out.csv"


def a_folder(folder: Path) -> Path:
    (folder / "out.csv").mkdir()
    return folder / "out.csv"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "out.csv")
    return folder / "out.csv"


def too_long(folder: Path) -> Path:
    return folder / ("x" * 300 + ".csv")


@pytest.mark.parametrize("place", [below_a_file, a_folder, a_pipe, too_long])
def test_a_place_that_takes_no_file_is_named_before_the_work(place: Callable[[Path], Path], tmp_path: Path) -> None:
    path = place(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StorageError, match=r"\.csv could not be written") as caught, rows_file(path):
        pytest.fail("the work began")
    assert str(path) in caught.value.message
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pipe_with_a_reader_is_no_file_either(tmp_path: Path) -> None:
    reader = os.open(a_pipe(tmp_path), os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(StorageError, match="it is a pipe"), rows_file(tmp_path / "out.csv"):
            pytest.fail("the work began")
    finally:
        os.close(reader)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("closed", ["out.csv", "."])
def test_what_is_read_only_is_named_before_the_work(closed: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "out.csv").write_text("the old rows")
    rights = mode(folder / closed)
    (folder / closed).chmod(rights & 0o555)
    try:
        with pytest.raises(StorageError, match="Permission denied"), rows_file(folder / "out.csv"):
            pytest.fail("the work began")
    finally:
        (folder / closed).chmod(rights)
    assert [each.read_text() for each in folder.iterdir()] == ["the old rows"]


@pytest.mark.parametrize("mask", [0, 0o022])
def test_a_new_file_is_its_owners_alone(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        with rows_file(tmp_path / "out.csv") as write:
            assert [mode(draft) for draft in tmp_path.iterdir()] == [0o600]
            write(("text",), ROWS[:1])
    finally:
        os.umask(before)
    assert mode(tmp_path / "out.csv") == 0o600


@pytest.mark.parametrize("given", [0o640, 0o664, 0o600])
def test_a_file_that_is_replaced_hands_on_its_mode(given: int, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("the old rows")
    path.chmod(given)
    write_rows(path, ("x",), [(1,)])
    assert (mode(path), path.read_text()) == (given, "x\n1\n")


def test_behind_a_link_the_file_is_replaced_and_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "rows.csv", tmp_path / "out.csv"
    file.write_text("the old rows")
    link.symlink_to(file)
    write_rows(link, ("x",), [(1,)])
    assert link.is_symlink()
    assert file.read_text() == "x\n1\n"
    assert [each.name for each in (tmp_path / "far").iterdir()] == ["rows.csv"]


def test_json_has_no_bare_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).result({"eta": math.inf, "nested": [{"eta": math.inf}]})
    assert capsys.readouterr().out == '{"eta": "inf", "nested": [{"eta": "inf"}]}\n'


def test_records_become_plain_values() -> None:
    assert fields(Proportion.of(1, 2)) == {
        "value": 0.5, "n": 2, "standard_error": pytest.approx(0.353553, rel=1e-4), "independent": None,
    }  # fmt: skip
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
