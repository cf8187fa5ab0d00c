from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cutlayer.core import DataError
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.settings import Objective
from cutlayer.customer.sources import read_source
from cutlayer.data import Facts, read_webnlg

FOLDER = Path(os.environ.get("CUTLAYER_DATA", "")) / "webnlg"
ROW = {
    "triples": [["Aarhus", "country", "Denmark"], ["Aarhus", "leader", "Jacob_B"]],
    "references": ["Aarhus is in Denmark; J. B. leads it.", "J. B. leads Aarhus, Denmark."],
    "category": "Airport",
}
SECRET = "wombat"


def test_facts_become_one_text_beside_all_references(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "seen_category": True}) + "\n")
    found = read_webnlg(path)
    assert found[0].source == " | Aarhus : country : Denmark | Aarhus : leader : Jacob_B"
    assert found[0].references == tuple(ROW["references"])
    assert found[0] == found[1] == read_webnlg([ROW])[0]


def test_each_reference_is_a_pair_with_all_facts():
    pairs = read_source([ROW], DataSpec(facts=True), Objective.LM)
    assert pairs.labels is None
    assert pairs.texts == tuple((read_webnlg([ROW])[0].source, reference) for reference in ROW["references"])


def test_facts_that_are_a_text_already_are_read_as_they_are():
    """As `protect --webnlg` writes them."""
    row = {"source": " | sea : lies in : stone", "references": ["The sea is stone.", "Stone it is."], "category": "A"}
    pairs = read_source([row], DataSpec(facts=True), Objective.SEQ2SEQ)
    assert pairs.texts == tuple((row["source"], reference) for reference in row["references"])
    for change in ({"source": 3}, {"references": []}, {"source": "\ud800"}):
        with pytest.raises(DataError, match="row 2"):
            read_source([row, row | change], DataSpec(facts=True), Objective.LM)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"triples": SECRET}, "no list of facts"),
        ({"triples": []}, "no list of facts"),
        ({"triples": [[SECRET, "b"]]}, "no list of facts"),
        ({"triples": [[SECRET, "b", 3]]}, "no list of facts"),
        ({"triples": [SECRET]}, "no list of facts"),
        ({"references": []}, "no list of texts"),
        ({"references": SECRET}, "no list of texts"),
        ({"references": [None]}, "no list of texts"),
        ({"category": None}, "no text in column 'category'"),
        ({"references": [SECRET + "\ud800"]}, "surrogate"),
    ],
)
def test_a_row_that_is_off_is_named_and_not_shown(change, message):
    with pytest.raises(DataError, match=f"row 2 .*{message}") as refused:
        read_webnlg([ROW, ROW | change])
    assert SECRET not in str(refused.value)


def test_a_missing_column_is_named():
    with pytest.raises(DataError, match="no column 'references'"):
        read_webnlg([{"triples": ROW["triples"], "category": "Airport"}])


@pytest.mark.skipif(not FOLDER.is_dir(), reason="CUTLAYER_DATA names no folder with webnlg")
def test_the_challenge_has_its_references():
    found = [facts for part in ("seen", "unseen") for facts in read_webnlg(FOLDER / f"test_{part}.jsonl.gz")]
    assert (len(found), sum(len(facts.references) for facts in found)) == (1862, 4928)
    assert isinstance(found[0], Facts)
    assert found[0].source.startswith(" | Abilene_Regional_Airport : cityServed : ")
