"""`--mechanism words` on the command line: what it prints, and what it refuses before anything is sent."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cutlayer.customer.shards import SHARD_CHARACTERS
from tests.service.fixtures import tiny_model  # noqa: F401 - a fixture by name
from tests.unit.cli.conftest import Ran, Run

SECRET_WORD = "zanzibar"
WORDS = ("--mechanism", "words", "--eta", 60)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.csv"
    with path.open("w", newline="") as file:
        rows = [(f"Mr {SECRET_WORD} doesn't like the {n} dogs of Paris.", "ab"[n % 2]) for n in range(12)]
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


@pytest.fixture
def nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No transport is opened: what is refused is refused before."""
    monkeypatch.setattr("cutlayer.wire.transports.HttpTransport.send", lambda *_, **__: pytest.fail("it was sent"))


def command(run: Run, name: str, notes: Path, *flags: object) -> Ran:
    files: dict[str, tuple[object, ...]] = {
        "privatize": ("--input", notes, "--output", notes.with_name("seen.csv")),
        "finetune": ("--train", notes),
        "audit": ("--data", notes, "--public", notes, "--model", "starter", "--out", notes.with_name("out")),
        "calibrate": ("--data", notes, "--model", "starter", "--out", notes.with_name("out")),
    }
    if name == "calibrate":  # it looks for eta
        at = flags.index("--eta")
        flags = flags[:at] + flags[at + 2 :]
    return run(name, *files[name], *flags, "--json")


COMMANDS = pytest.mark.parametrize("name", ["privatize", "finetune", "audit", "calibrate"])


@COMMANDS
@pytest.mark.usefixtures("nothing_is_sent")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--eta", 60, "--words", "noun"), "--words = 'noun': means nothing with"),
        (("--eta", 60, "--words", "noun,verb", "--candidates", "all"), "--candidates = 'all': means nothing with"),
        ((*WORDS, "--words", "nuon"), "there is no category 'nuon': did you mean noun?"),
        ((*WORDS, "--words", "nothing-like-it"), "choose from noun, verb"),
        ((*WORDS, "--words", "all,noun"), "--words = 'all,noun': must be all, or categories, not both"),
        ((*WORDS, "--words", "noun,propn"), "name PROPN twice"),
        ((*WORDS, "--words", ","), "must name one category at least"),
    ],
)
def test_settings_without_meaning_are_refused(
    name: str, flags: tuple[object, ...], said: str, notes: Path, run: Run
) -> None:
    refused = command(run, name, notes, *flags)
    assert refused.code == 3, refused.err
    assert said in refused.result["error"]
    assert SECRET_WORD not in refused.out + refused.err


@pytest.mark.usefixtures("nothing_is_sent")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--cti",), "--cti"),
        (("--train-bottom", "resample"), "means other words in each epoch"),
        (("--objective", "seq2seq"), "needs bottom text and labels_at vendor"),
        (("--objective", "lm", "--bottom", "1"), "must be text or 0"),
        (("--objective", "lm", "--packing"), "must be off where words are drawn"),
        (("--facts",), "a classifier has labels"),
    ],
)
def test_runs_that_words_do_not_serve_are_refused(flags: tuple[object, ...], said: str, notes: Path, run: Run) -> None:
    refused = command(run, "finetune", notes, *WORDS, *flags)
    assert refused.code == 3, refused.err
    assert said in refused.result["error"]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--tagger", "no_such"), 5, "no spaCy pipeline 'no_such'"),
        (("--space", "no_such"), 5, "no_such"),
        (("--vocabulary", "no_such.tsv"), 4, "There is no file 'no_such.tsv'"),
    ],
)
def test_what_is_not_there_is_named(
    flags: tuple[object, ...], code: int, said: str, notes: Path, run: Run, starter_installed: None
) -> None:
    refused = command(run, "privatize", notes, *WORDS, "--model", "starter", *flags)
    assert refused.code == code, refused.err
    assert said in refused.result["error"]
    assert not notes.with_name("seen.csv").exists()
    assert SECRET_WORD not in refused.out + refused.err


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        ("dog\tNOUN\t3\ngo\tVERB\t2\nnot a line of it quixotic\n", 4, "line 3"),
        ("dog\tNOUN\t3\ngo\tQUIXOTIC\t2\n", 4, "line 2"),
        ("dog\tNOUN\t3\ngo\tVERB\tquixotic\n", 4, "line 2"),
        ("dog\tNOUN\t3\ngo\tVERB\t2\nhe\tPRON\t1\n", 3, "no word of category 'preposition'"),
        ("", 3, "holds no words"),
    ],
)
def test_a_vocabulary_that_does_not_serve_is_refused_by_its_line(
    lines: str, code: int, said: str, notes: Path, tmp_path: Path, run: Run, starter_installed: None
) -> None:
    file = tmp_path / "public.tsv"
    file.write_text(lines)
    refused = command(run, "privatize", notes, *WORDS, "--model", "starter", "--vocabulary", file)
    assert refused.code == code, refused.err
    assert said in refused.result["error"]
    assert "quixotic" not in (refused.out + refused.err).lower()


def test_words_are_privatized_and_charged(notes: Path, run: Run, starter_installed: None) -> None:
    done = command(run, "privatize", notes, *WORDS, "--model", "starter", "--charge", "--privacy-budget", 60)
    assert done.code == 0, done.err
    assert done.result["texts"] == 12
    assert 0 < done.result["replaced"] < 1
    assert SECRET_WORD not in done.out + done.err
    with notes.with_name("seen.csv").open(newline="") as file:
        released = [row["text_released"] for row in csv.DictReader(file)]
    assert done.result["clear"]["number"] == 12
    assert all(f"the {n} " in text.lower() for n, text in enumerate(released)), "numbers are not chosen"
    assert not any(SECRET_WORD in text for text in released)
    summary = run("ledger", "show", "--json").result["summary"]
    assert summary["clear"]["number"] == 12
    assert summary["mechanisms"][0]["largest_spent"] == 60
    again = command(run, "privatize", notes, *WORDS, "--model", "starter", "--charge", "--privacy-budget", 60)
    assert again.code == 0
    other = command(
        run, "privatize", notes, *WORDS, "--words", "noun", "--model", "starter", "--charge", "--privacy-budget", 60
    )
    assert other.code == 6, "other categories are another look, of the same unit"


def test_an_eta_is_charged_as_it_is_given(notes: Path, run: Run, starter_installed: None) -> None:
    """Not as single precision has it: 49.2 would be 49.20000076, above a budget of 49.2."""
    asked = ("--mechanism", "words", "--eta", 49.2, "--model", "starter", "--charge", "--privacy-budget", 49.2)
    done = command(run, "privatize", notes, *asked)
    assert done.code == 0, done.err
    summary = run("ledger", "show", "--json").result["summary"]
    assert [each["largest_spent"] for each in summary["mechanisms"]] == [49.2]


def test_words_are_drawn_by_the_exponential_mechanism(notes: Path, run: Run, starter_installed: None) -> None:
    """Texts without a word that is drawn, too."""
    notes.write_text(notes.read_text() + "42,a\n")
    done = command(run, "privatize", notes, *WORDS, "--draw", "exponential", "--model", "starter")
    assert done.code == 0, done.err
    assert 0 < done.result["replaced"] < 1
    with notes.with_name("seen.csv").open(newline="") as file:
        released = [row["text_released"] for row in csv.DictReader(file)]
    assert released[-1] == "42"
    assert not any(SECRET_WORD in text for text in released)
    notes.write_text("text,label\n42,a\n43,b\n")
    assert command(run, "privatize", notes, *WORDS, "--draw", "exponential", "--model", "starter").code == 0


def lettered(number: int) -> str:
    """A word that no list has."""
    return "qz" + "".join(chr(ord("a") + int(digit)) for digit in f"{number:03}") + "x"


def own_words(notes: Path, tmp_path: Path, before: list[str]) -> Path:
    """A vocabulary of the last 40 notes' own words."""
    texts = [*before, *(f"The {lettered(n)} saw the {lettered(n + 100)}." for n in range(40))]
    notes.write_text("text,label\n" + "".join(f"{text},{'ab'[n % 2]}\n" for n, text in enumerate(texts)))
    file, tags = tmp_path / "own.tsv", ("NOUN", "VERB", "PRON", "ADP")
    rare = [lettered(n + more) for n in range(40) for more in (0, 100)]
    file.write_text("".join(f"{word}\t{tag}\t1\n" for word in rare for tag in tags))
    return file


@pytest.mark.usefixtures("nothing_is_sent")
def test_a_vocabulary_of_the_texts_own_words_is_refused_before_one_leaves(
    notes: Path, tmp_path: Path, run: Run, starter_installed: None
) -> None:
    file = own_words(notes, tmp_path, [])
    refused = command(run, "privatize", notes, *WORDS, "--model", "starter", "--vocabulary", file, "--charge")
    assert refused.code == 6, refused.err
    assert "has 80 of the 80 words" in refused.result["error"]
    assert not notes.with_name("seen.csv").exists()
    assert run("ledger", "show", "--json").result["summary"]["mechanisms"] == []
    assert "qz" not in refused.out + refused.err


@pytest.mark.usefixtures("nothing_is_sent")
def test_a_vocabulary_of_words_that_stand_far_behind_in_the_file_is_refused(
    notes: Path, tmp_path: Path, run: Run, starter_installed: None
) -> None:
    """In another shard than the first."""
    file = own_words(notes, tmp_path, ["The cat saw the dog."] * (SHARD_CHARACTERS // 20))
    refused = command(run, "privatize", notes, *WORDS, "--model", "starter", "--vocabulary", file)
    assert refused.code == 6, refused.err
    assert "has 80 of the 80 words" in refused.result["error"]
    assert not notes.with_name("seen.csv").exists()


def test_a_vocabulary_that_was_written_anew_is_read_anew(
    notes: Path, tmp_path: Path, run: Run, starter_installed: None
) -> None:
    file, seen = tmp_path / "public.tsv", []
    for words in (("alpha", "beta"), ("gamma", "delta")):
        file.write_text("".join(f"{word}\t{tag}\t1\n" for word in words for tag in ("NOUN", "VERB", "PRON", "ADP")))
        assert command(run, "privatize", notes, *WORDS, "--model", "starter", "--vocabulary", file).code == 0
        with notes.with_name("seen.csv").open(newline="") as written:
            seen.append(" ".join(row["text_released"] for row in csv.DictReader(written)))
    assert [name in seen[1] for name in ("alpha", "beta")] == [False, False]
    assert any(name in seen[1] for name in ("gamma", "delta"))


@pytest.mark.slow
def test_an_audit_with_a_vocabulary_of_ones_own(
    run: Run,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """From the settings to the report, with another eta beside it."""
    texts, public, file = tmp_path / "texts.csv", tmp_path / "public.csv", tmp_path / "words.tsv"
    for path, start in ((texts, 0), (public, 7)):
        rows = [f"the w{n % 50} sees w{(n * 3 + start) % 50} and w{(n * 7) % 50} 42,{'ab'[n % 2]}" for n in range(60)]
        path.write_text("text,label\n" + "\n".join(rows))
    tags = ("NOUN", "VERB", "PRON", "ADP")
    file.write_text("".join(f"w{number}\t{tag}\t1\n" for number in range(60) for tag in tags))
    folder = tmp_path / "out"
    files = ("--data", texts, "--public", public, "--vocabulary", file, "--out", folder)
    attacks = ("--attack", "nearest-neighbour", "--attack", "maximum-posterior")
    beside = ("--frontier", 6, "--epochs", 1)
    done = run("audit", *files, "--model", tiny_model, "--space", tiny_model, *WORDS, *attacks, *beside, "--json")
    assert done.code == 0, done.err
    told = str(done.result["attacks"])
    assert "nearest-neighbour" in told
    assert "maximum-posterior" in told
    points = {point["eta"]: point for point in done.result["frontier"]["points"]}
    assert set(points) == {6, 60}
    assert points[6]["label"] == "words, eta 6"
    assert points[6]["replaced"] > points[60]["replaced"]
    assert {file.name for file in folder.iterdir()} == {"report.html", "report.json", "frontier.png"}
