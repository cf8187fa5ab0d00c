"""`privatize`: what its file holds, what the terminal shows; and what it and `predict` refuse."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cutlayer.customer import Client, Preview, PrivatizedText
from tests.unit.cli.conftest import Run

LONG = "Straße  Nº 7\n" * 300


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "more", "id"), ("Ünï  \U0001f600!", "Zwei", 7), (LONG, "Three", 8)])
    return path


def by_name(folder: Path, notes: Path) -> Path:
    return notes


def by_a_longer_path(folder: Path, notes: Path) -> Path:
    return folder / "." / "new" / ".." / notes.name


def by_a_symbolic_link(folder: Path, notes: Path) -> Path:
    link = folder / "link.csv"
    link.symlink_to(notes)
    return link


def by_a_hard_link(folder: Path, notes: Path) -> Path:
    link = folder / "link.csv"
    link.hardlink_to(notes)
    return link


@pytest.mark.parametrize(
    "command", [("privatize", "--eta", "80"), ("predict", "--adapter", "0f")], ids=lambda words: words[0]
)
@pytest.mark.parametrize("called", [by_name, by_a_longer_path, by_a_symbolic_link, by_a_hard_link])
def test_the_input_is_not_written_over(
    called: Callable[[Path, Path], Path],
    command: tuple[str, ...],
    notes: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = SimpleNamespace(spec=SimpleNamespace(privacy=SimpleNamespace(eta=80.0), unsafe_noise_seed=None))
    monkeypatch.setattr("cutlayer.customer.profile.Profile.load", lambda *_: profile)
    monkeypatch.setattr(Client, "predict", lambda *_, **__: pytest.fail("it was asked"))
    monkeypatch.setattr(Client, "privatize", lambda *_, **__: pytest.fail("it was asked"))
    (tmp_path / "new").mkdir()
    output = called(tmp_path, notes)
    before = notes.read_bytes()
    refused = run(*command, "--input", notes, "--output", output, "--json")
    assert refused.code == refused.result["exit_code"] == 3
    assert f"--output {output} is the file that --input names" in refused.result["error"]
    assert refused.result["remedy"]
    assert notes.read_bytes() == before


def test_the_file_joins_to_its_source(notes: Path, tmp_path: Path, run: Run, starter_installed: None) -> None:
    output = tmp_path / "seen.csv"
    output.write_text("another file is written over")
    flags = ("privatize", "--input", notes, "--output", output, "--eta", 80, "--text-pair-column", "more")
    assert run(*flags, "--max-length", 4, "--json").result["cut_texts"] == 2
    assert run(*flags, "--json").result["cut_texts"] == 1
    with notes.open(newline="") as source, output.open(newline="") as seen:
        rows = list(csv.DictReader(seen))
        assert [(row["text"], row["more"]) for row in rows] == [
            (row["text"], row["more"]) for row in csv.DictReader(source)
        ]
    assert all(row["more_released"] for row in rows)


def test_the_terminal_shows_the_beginning_of_long_texts(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, output = tmp_path / "notes.csv", tmp_path / "seen.csv"
    # as many line ends as words, and what would colour a terminal
    long = "\x1b[31m" + "word\n" * 1000
    with notes.open("w", newline="") as file:
        csv.writer(file).writerows([("text",), *[(long,)] * 7])
    shown = (PrivatizedText(original=("unread",), released=("sent " * 1000,), replaced=1, tokens=2),) * 7
    monkeypatch.setattr(Client, "privatize", lambda *_, **__: Preview(shown, largest_distance=None, cut_texts=3))
    ran = run("privatize", "--input", notes, "--output", output, "--eta", 80)
    assert ran.code == 0
    assert len(ran.out.splitlines()) < 40
    assert ran.out.count("…") == 10, "five texts and their releases"
    assert 5 * 30 < ran.out.count("word") <= 5 * 40
    assert "\x1b" not in ran.out
    assert "takes no more: 3 of 7" in ran.out
    with output.open(newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == [long] * 7
