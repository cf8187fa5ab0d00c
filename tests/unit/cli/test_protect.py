"""`cutlayer protect` and `cutlayer restore`: what they write, print and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cutlayer.customer import Client, DataSpec
from cutlayer.customer.settings import Objective
from cutlayer.customer.sources import read_source
from tests.unit.cli.conftest import Run

TEXTS = ("Jacob Bundgaard leads Aarhus.", "Aarhus lies on the bay.")
NAMES = (["Jacob Bundgaard", "Aarhus"], ["Aarhus"])
FACTS = {
    "triples": [["Aarhus_Airport", "cityServed", "Aarhus"]],
    "references": ["Aarhus Airport serves Aarhus.", "Aarhus is served by it."],
    "category": "Airport",
}
PRIVATE = ("Bundgaard", "Aarhus")


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [{"text": text, "names": names} for text, names in zip(TEXTS, NAMES, strict=True)]
    return write(tmp_path / "prompts.jsonl", *rows)


@pytest.mark.usefixtures("words_read_once")
def test_entities_are_drawn_and_put_back(prompts: Path, tmp_path: Path, run: Run) -> None:
    safe, back = tmp_path / "safe.jsonl", tmp_path / "back.jsonl"
    protect = ("protect", "--input", prompts, "--output", safe, "--entities-column", "names", "--eta", 20)
    ran = run(*protect, "--json")
    assert ran.code == 0, ran.err
    told, rows = ran.result, read(safe)
    assert {row["job"] for row in rows} == {told["job"]}
    assert set(told) == {"output", "eta", "job", "drawn", "replaced", "numbered", "mentions", "clear"}
    assert (told["drawn"], told["mentions"], told["eta"]) == (3, 4, 20)
    shown = run(*protect)
    assert f"Job {told['job']}" in shown.out
    assert "stand outside entities, and are as they were" in shown.out
    restored = run("restore", "--input", safe, "--output", back, "--json")
    assert restored.code == 0, restored.err
    assert restored.result == {"output": str(back), "answers": 2, "job": told["job"]}
    assert [row["text"] for row in read(back)] == list(TEXTS)
    for each in (ran, shown, restored):
        assert not any(name in each.out + each.err for name in PRIVATE)
    assert not any(name in safe.read_text() for name in PRIVATE)


@pytest.mark.usefixtures("words_read_once")
def test_facts_are_protected_with_all_that_states_them(tmp_path: Path, run: Run) -> None:
    facts, safe = write(tmp_path / "facts.jsonl", FACTS), tmp_path / "safe.jsonl"
    ran = run("protect", "--input", facts, "--output", safe, "--webnlg", "--eta", 20, "--json")
    assert ran.code == 0, ran.err
    (row,) = read(safe)
    assert set(row) == {"source", "references", "category", "job", "row"}
    assert "Aarhus" not in safe.read_text()
    found = Client().entity_map(row["job"])
    assert [found.restore(each) for each in row["references"]] == FACTS["references"]


@pytest.mark.usefixtures("words_read_once")
def test_pairs_and_labels_are_kept_to_train_on_and_nothing_else_is(tmp_path: Path, run: Run) -> None:
    safe, back = tmp_path / "safe.jsonl", tmp_path / "back.jsonl"
    rows = [
        {"text": text, "names": names, "target": f"{names[-1]}!", "label": 3, "note": names[0]}
        for text, names in zip(TEXTS, NAMES, strict=True)
    ]
    rows.append({**rows[1], "text": "AARHUS, again.", "names": ["AARHUS"], "target": "AARHUS"})
    asked = ("protect", "--input", write(tmp_path / "in.jsonl", *rows), "--output", safe, "--entities-column", "names")
    named = ("--target-column", "target", "--label-column", "label")
    assert run(*asked, *named, "--eta", 20).code == 0
    written = read(safe)
    assert [set(row) for row in written] == [{"text", "target", "label", "job", "row"}] * 3
    assert [(row["label"], row["row"]) for row in written] == [(3, 0), (3, 1), (3, 2)]
    assert not any(name in safe.read_text() for name in PRIVATE)
    pairs = read_source(safe, DataSpec(target_column="target"), Objective.SEQ2SEQ)
    assert pairs.texts == tuple((row["text"], row["target"]) for row in written)
    restored = run("restore", "--input", safe, "--text-column", "target", "--output", back)
    assert restored.code == 0, restored.err
    assert [row["target"] for row in read(back)] == ["Aarhus!", "Aarhus!", "AARHUS"]
    write(safe, *({**row, "row": "x"} for row in written))
    refused = run("restore", "--input", safe, "--output", tmp_path / "no.jsonl")
    assert (refused.code, (tmp_path / "no.jsonl").exists()) == (4, False)
    for twice in (("--text-column", "job"), ("--text-column", "text", "--label-column", "text")):
        assert run(*asked, *twice, "--eta", 20).code == 2


@pytest.mark.usefixtures("words_read_once")
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_an_empty_cell_is_no_entity(ending: str, tmp_path: Path, run: Run) -> None:
    """Not as without the column, where the tagger finds names."""
    given, safe = tmp_path / f"in.{ending}", tmp_path / "safe.jsonl"
    plain = "Jacob Bundgaard and 42 others came."
    if ending == "csv":
        given.write_text(f"text,names\nAarhus.,Aarhus\n{plain},\n")
    else:
        empty = [{"text": plain, "names": none} for none in ("", None, [])]
        write(given, {"text": "Aarhus.", "names": "Aarhus"}, *empty)
    ran = run("protect", "--input", given, "--output", safe, "--entities-column", "names", "--eta", 20, "--json")
    assert ran.code == 0, ran.err
    first, *others = [row["text"] for row in read(safe)]
    assert "Aarhus" not in first
    assert others == [plain] * (1 if ending == "csv" else 3)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--entities-column", "names"), 2, "--eta"),
        (("--entities-column", "people", "--eta", 20), 4, "people"),
        (("--entities-column", "names", "--eta", 20, "--text-column", "note"), 4, "note"),
        (("--entities-column", "names", "--eta", -1), 2, "--eta"),
        (("--entities-column", "empty", "--eta", 20), 4, "is empty: it has no letter and no digit"),
        (("--entities-column", "elsewhere", "--eta", 20), 4, "Entity 1 of text 1 is not in it"),
        (("--entities-column", "number", "--eta", 20), 4, "row 1 has something else than texts"),
        (("--entities-column", "false", "--eta", 20), 4, "row 1 has something else than texts"),
        (("--entities-column", "names", "--eta", 20, "--text-column", "nothing"), 4, "row 1 has nothing in column"),
        (("--entities-column", "names", "--eta", 20, "--text-column", "names"), 4, "a value of type list"),
        (("--entities-column", "names", "--eta", 20, "--space", "no_such"), 5, "no_such"),
    ],
)
def test_what_cannot_be_protected_is_refused_and_nothing_is_written(
    flags: tuple[object, ...], code: int, said: str, tmp_path: Path, run: Run, starter_installed: None
) -> None:
    row = {"text": TEXTS[0], "names": list(NAMES[0]), "empty": ["…"], "elsewhere": ["Copenhagen"]}
    row |= {"number": 5, "false": False, "nothing": None}  # type: ignore[dict-item]
    prompts, safe = write(tmp_path / "prompts.jsonl", row), tmp_path / "safe.jsonl"
    refused = run("protect", "--input", prompts, "--output", safe, *flags, "--json")
    assert refused.code == code, refused.err
    assert said in refused.result["error"]
    assert not safe.exists()
    assert not any(name in refused.out + refused.err for name in (*PRIVATE, "Copenhagen"))


@pytest.mark.parametrize(
    ("jobs", "flags", "code", "said"),
    [
        (("0" * 32,), (), 4, f"no map of job {'0' * 32}"),
        (("0" * 32, "1" * 32), (), 4, "are of 2 jobs"),
        (("0" * 32,), ("--job", "1" * 32), 4, "are of 2 jobs"),
        (("../x",), (), 3, "must be 32 characters"),
    ],
)
def test_a_map_of_another_job_is_refused(
    jobs: tuple[str, ...], flags: tuple[str, ...], code: int, said: str, tmp_path: Path, run: Run
) -> None:
    answers, back = write(tmp_path / "in.jsonl", *({"text": "a", "job": job} for job in jobs)), tmp_path / "out.jsonl"
    refused = run("restore", "--input", answers, "--output", back, *flags, "--json")
    assert refused.code == code, refused.err
    assert said in refused.result["error"]
    assert not back.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("words_read_once")
def test_a_budget_is_kept(prompts: Path, tmp_path: Path, run: Run) -> None:
    flags = ("--entities-column", "names", "--eta", 20, "--privacy-budget", 10)
    refused = run("protect", "--input", prompts, "--output", tmp_path / "safe.jsonl", *flags, "--json")
    assert refused.code == 6, refused.err
    assert not (tmp_path / "safe.jsonl").exists()
