"""`cutlayer vendor denoiser train` on files that cannot be learnt from: nothing is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutlayer import vendor
from tests.unit.cli.conftest import Run

FILES = {
    "empty": ("", "holds no rows"),
    "a header alone": ("text\n", "holds no rows"),
    "another column": ("note\nw1 secret\n", "no column 'text'"),
    "not UTF-8": ("text\n\udcff\n", "is not UTF-8"),
}


@pytest.mark.parametrize("name", FILES)
def test_public_text_that_cannot_be_used_is_refused(name: str, data_dir: Path, tmp_path: Path, run: Run) -> None:
    content, said = FILES[name]
    public, settings = tmp_path / "public.csv", vendor.VendorSettings.load(data_dir)
    public.write_bytes(content.encode(errors="surrogateescape"))
    before = sorted(data_dir.rglob("*"))
    arguments = ("--data-dir", str(data_dir), "--model", "tiny", "--public", str(public))
    ran = run("vendor", "denoiser", "train", *arguments, "--steps", "2", "--json")
    assert ran.code == ran.result["exit_code"] == 4
    assert said in ran.err
    assert "secret" not in ran.err + ran.out
    assert sorted(data_dir.rglob("*")) == before
    assert not settings.denoisers("tiny").exists()


def test_a_file_that_is_not_there_is_refused(data_dir: Path, tmp_path: Path, run: Run) -> None:
    arguments = ("--data-dir", str(data_dir), "--model", "tiny", "--public", str(tmp_path / "none.csv"))
    ran = run("vendor", "denoiser", "train", *arguments, "--json")
    assert ran.code == 4
    assert "There is no file" in ran.err
