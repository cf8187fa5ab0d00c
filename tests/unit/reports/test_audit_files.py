from __future__ import annotations

import json
import math
import stat

import pytest

from cutlayer.core import StorageError
from cutlayer.reports import read_audit, write_audit
from tests.unit.reports.audits import empty, full


@pytest.mark.parametrize("make", [full, empty])
def test_what_is_written_is_read(tmp_path, make):
    report = make()
    write_audit(tmp_path / "new", report)
    assert read_audit(tmp_path / "new") == report
    assert read_audit(tmp_path / "new" / "report.json") == report


def test_infinity_is_written_as_a_word(tmp_path):
    _, machines = write_audit(tmp_path, empty())
    content = json.loads(machines.read_text(), parse_constant=pytest.fail)
    assert content["settings"]["eta"] == content["guarantee"]["budget"] == "Infinity"
    assert math.isinf(read_audit(machines).guarantee.budget)


def test_only_the_owner_can_read_them(tmp_path):
    for path in write_audit(tmp_path, full()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_same_report_gives_the_same_files(tmp_path):
    first, second = (write_audit(tmp_path / name, full()) for name in ("a", "b"))
    assert [path.name for path in first] == ["report.html", "report.json", "frontier.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[2].read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_report_does_not_stay(tmp_path):
    write_audit(tmp_path, full())
    assert [path.name for path in write_audit(tmp_path, empty())] == ["report.html", "report.json"]
    assert not (tmp_path / "frontier.png").exists()


def test_a_frontier_without_utility_has_no_picture(tmp_path):
    frontier = full().frontier
    points = tuple(point.model_copy(update={"utility": None}) for point in frontier.points)
    written = write_audit(tmp_path, full(frontier=frontier.model_copy(update={"points": points})))
    assert len(written) == 2


def test_a_name_in_the_picture_is_no_mathematics(tmp_path):
    frontier = full().frontier.model_copy(update={"utility_name": r"accuracy of $\nothing$ \u202e"})
    assert len(write_audit(tmp_path, full(frontier=frontier))) == 3


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        write_audit(tmp_path / "file", empty())


def test_no_report(tmp_path):
    with pytest.raises(StorageError, match="cannot be read"):
        read_audit(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"verdict": ["secret words"]}', "[1, 2"])
def test_another_file_is_no_report_and_is_not_quoted(tmp_path, content):
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(StorageError, match="no leak report") as raised:
        read_audit(tmp_path)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_report_of_another_format(tmp_path):
    write_audit(tmp_path, full(schema_version=2))
    with pytest.raises(StorageError, match="format 2"):
        read_audit(tmp_path)
