"""`cutlayer vendor warm-up`: what it prints, what customers release to its model, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("starter_installed")
LINES = ("The captain opened a letter near the river.", "His doctor sold the old boat.", "They saw it before winter.")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "public.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES * 3))
    return path


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "words.tsv"
    words = {"NOUN": "captain boat doctor letter", "VERB": "open sell see", "PRON": "his it they", "ADP": "before near"}
    path.write_text("".join(f"{word}\t{tag}\t3\n" for tag, own in words.items() for word in own.split()))
    return path


@pytest.mark.slow
def test_it_makes_a_model_to_which_customers_release_what_they_always_do(
    text: Path, vocabulary: Path, tmp_path: Path, run: Run
) -> None:
    drawn = ("--mechanism", "words", "--eta", 30, "--vocabulary", vocabulary)
    made = run(
        "vendor", "warm-up", "--text", text, *drawn, "--steps", 1, "--batch-size", 2, "--out", tmp_path / "w", "--json"
    )
    assert made.code == 0, made.err
    assert made.result["out"] == str(tmp_path / "w")
    note = json.loads((tmp_path / "w" / "warm-up.json").read_text())
    assert note["warmed_for"]["privacy"]["eta"] == 30
    assert note["warmed_for"]["texts"] == 9
    assert not any(line in note.__repr__() for line in LINES)
    seen = []
    for model in ("starter", tmp_path / "w"):
        out = tmp_path / f"{len(seen)}.csv"
        shown = run("privatize", "--input", text, "--output", out, *drawn, "--model", model, "--json")
        assert shown.code == 0, shown.err
        seen.append(list(csv.reader(out.open())))
    assert seen[0] == seen[1]
    assert any(row[0] != row[1] for row in seen[0][1:])


@pytest.mark.parametrize(
    ("flags", "said", "code"),
    [
        (("--mechanism", "none", "--eta", "inf"), "must be words", 3),
        (("--mechanism", "text-to-text", "--eta", 60), "must be words", 3),
        (("--mechanism", "words", "--eta", 60, "--words", "nuon"), "did you mean noun?", 3),
        (("--mechanism", "words", "--eta", 60, "--steps", 0), "--steps", 3),
        (("--mechanism", "words", "--eta", 60, "--text-column", "body"), "body", 4),
        (("--mechanism", "words", "--eta", 60, "--model", "nowhere"), "nowhere", 5),
    ],
)
def test_what_it_cannot_do_is_refused(
    flags: tuple[object, ...], said: str, code: int, text: Path, tmp_path: Path, run: Run
) -> None:
    refused = run("vendor", "warm-up", "--text", text, "--out", tmp_path / "w", *flags, "--json")
    assert refused.code == code, refused.err
    assert said in refused.err + refused.result["error"]
    assert not (tmp_path / "w").exists()
