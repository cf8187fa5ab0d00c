"""`privatize`: what its file holds, what the terminal shows; and what it and `predict` refuse."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cutlayer.core import BudgetError, VendorError
from cutlayer.customer import Client, PrivatizedText, shards
from tests.service.fixtures import tiny_model  # noqa: F401 - a fixture by name
from tests.unit.cli.conftest import Ran, Run, Streamed

LONG = "Straße  Nº 7\n" * 300
COMMANDS = {"privatize_stream": ("privatize", "--eta", "80"), "predict": ("predict", "--adapter", "0f")}
"""Command lines by the client's method that they call."""
LONG_LINES = "\x1b[31m" + "word\n" * 1000


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "more", "id"), ("Ünï  \U0001f600!", "Zwei", 7), (LONG, "Three", 8)])
    return path


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter that the customer's folder knows of, at a vendor that nobody asks."""
    profile = SimpleNamespace(
        spec=SimpleNamespace(privacy=SimpleNamespace(eta=80.0, noise="d-chi"), unsafe_noise_seed=None)
    )
    monkeypatch.setattr("cutlayer.customer.profile.Profile.load", lambda *_: profile)


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


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("called", [by_name, by_a_longer_path, by_a_symbolic_link, by_a_hard_link])
def test_the_input_is_not_written_over(
    called: Callable[[Path, Path], Path],
    command: str,
    notes: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Client, command, lambda *_, **__: pytest.fail("it was asked"))
    (tmp_path / "new").mkdir()
    output = called(tmp_path, notes)
    before = notes.read_bytes()
    refused = run(*COMMANDS[command], "--input", notes, "--output", output, "--json")
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


@pytest.fixture
def many_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts of some shards."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 500)
    path = tmp_path / "many.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text",), *((f"w{n % 7} a b w{n} c",) for n in range(90))])
    return path


@pytest.mark.slow
def test_any_number_of_jobs_writes_the_same_bytes(
    many_notes: Path,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    run: Run,
) -> None:
    def privatize(name: str, eta: int, *flags: object) -> Ran:
        files = ("--input", many_notes, "--output", tmp_path / name)
        return run("privatize", *files, "--eta", eta, "--model", tiny_model, *flags, "--json")

    alone = privatize("1.csv", 6).result
    shared = privatize("2.csv", 6, "--jobs", 2, "--charge", "--privacy-budget", 6).result
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()
    assert (alone.pop("output"), shared.pop("output")) == (str(tmp_path / "1.csv"), str(tmp_path / "2.csv"))
    assert (alone.pop("charged"), shared.pop("charged")) == (False, True)
    assert alone == shared
    assert alone["texts"] == 90
    assert alone["replaced"] > 0
    ledger = run("ledger", "show", "--json").result["summary"]
    assert sum(line["releases"] for line in ledger["mechanisms"]) == 90
    assert privatize("3.csv", 7, "--charge", "--privacy-budget", 10).code == BudgetError.exit_code
    assert not (tmp_path / "3.csv").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--jobs", 0), "--jobs = 0: must be at least 1"),
        (("--jobs", 2, "--ray", "auto"), "--jobs = 2: must be left out with --ray"),
        (("--privacy-budget", 60), "--privacy-budget = 60.0: bounds what is charged"),
    ],
)
def test_what_has_no_meaning_is_refused(
    flags: tuple[object, ...], said: str, notes: Path, tmp_path: Path, run: Run
) -> None:
    refused = run("privatize", "--input", notes, "--output", tmp_path / "out.csv", "--eta", 80, *flags, "--json")
    assert refused.code == 3
    assert said in refused.result["error"]
    assert not (tmp_path / "out.csv").exists()


@pytest.fixture
def long_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Seven texts with as many line ends as words, and what would colour a terminal; and what would leave of them."""
    path = tmp_path / "notes.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text",), *[(LONG_LINES,)] * 7])
    shown = (PrivatizedText(original=("unread",), released=("sent " * 1000,), replaced=1, tokens=2),) * 7
    monkeypatch.setattr(Client, "privatize_stream", lambda *_, **__: Streamed(shown, None, cut_texts=3, clear={}))
    return path


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes standard output a terminal without colours. No fixture, for the capture changes before a test's call."""
    for name, value in {"TERM": "dumb", "COLUMNS": "160", "LINES": "50"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def test_the_terminal_shows_the_beginning_of_long_texts(
    long_notes: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    output = tmp_path / "seen.csv"
    ran = run("privatize", "--input", long_notes, "--output", output, "--eta", 80)
    assert ran.code == 0
    assert len(ran.out.splitlines()) < 40
    assert ran.out.count("…") == 10, "five texts and their releases"
    assert 5 * 30 < ran.out.count("word") <= 5 * 40
    assert "\x1b" not in ran.out
    assert "takes no more: 3 of 7" in ran.out
    with output.open(newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == [LONG_LINES] * 7


@pytest.mark.parametrize("forced", [{}, {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}], ids=["as it is", "in colours"])
def test_a_log_holds_no_texts(
    forced: dict[str, str], long_notes: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in forced.items():
        monkeypatch.setenv(name, value)
    ran = run("privatize", "--input", long_notes, "--output", tmp_path / "seen.csv", "--eta", 80)
    assert ran.code == 0
    assert "word" not in ran.out + ran.err
    assert "sent " not in ran.out + ran.err
    assert len([line for line in ran.out.splitlines() if "on a terminal only" in line]) == 1


def test_the_result_for_machines_holds_no_texts(
    long_notes: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ran = run("privatize", "--input", long_notes, "--output", tmp_path / "seen.csv", "--eta", 80, "--json")
    assert ran.result["texts"] == 7
    assert "word" not in ran.out + ran.err


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", ["folder.csv", "notes.csv/out.csv"])
def test_an_output_that_cannot_be_written_is_told_before_anything_is_sent(
    place: str, command: str, notes: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, command, lambda *_, **__: pytest.fail("it was asked"))
    (tmp_path / "folder.csv").mkdir()
    before = sorted(tmp_path.rglob("*"))
    refused = run(*COMMANDS[command], "--input", notes, "--output", tmp_path / place, "--json")
    assert refused.code == refused.result["exit_code"] == 9
    assert f"{place} could not be written" in refused.result["error"]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (VendorError("gone"), 7)], ids=["interrupted", "failed"]
)
def test_a_command_that_does_not_end_leaves_the_old_output(
    error: BaseException,
    code: int,
    command: str,
    notes: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ends(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Client, command, ends)
    output = tmp_path / "out.csv"
    output.write_text("the old rows")
    assert run(*COMMANDS[command], "--input", notes, "--output", output).code == code
    assert output.read_text() == "the old rows"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.csv", "out.csv"]
