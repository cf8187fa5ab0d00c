"""Words of entities are found however a text writes them, and what stands for them is put back."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.data import read_webnlg
from cutlayer.data.mentions import _closed_classes, entity_words, find_mentions, pieces_between, written

FOLDER = Path(os.environ.get("CUTLAYER_DATA", "")) / "webnlg"


def masked(text: str, *entities: str) -> str:
    found = find_mentions(text, {word.key for entity in entities for word in entity_words(entity)})
    return written(pieces_between(text, found), ["#"] * len(found))


@pytest.mark.parametrize(
    ("entity", "text", "left"),
    [
        ("Aarhus_Airport", "the airports of AARHUS, Aarhus's airport", "the # of #, #'s #"),
        ("Aarhus", " | Aarhus_Airport : country", " | # Airport : country"),
        ("Jean-Pierre", "Jean Pierre, jean-pierre's", "# #, #-#'s"),
        ("Adolf_Schärf", "Adolf Scharf", "# #"),
        ("Kovač", "Kovac\u030c", "#"),
        ("A.S._Gubbio_1910", "AS Gubbio 1910; A. S. Gubbio", "# # #; # #"),
        ("2776.0", "2,776 and 2776", "# and #"),
        ("1988-01-02", "2nd January 1988", "# nd # #"),
        ("Will_Smith", "Will Smith will", "# # will"),
        ("The_Who", "The Who, who", "The #, who"),
        ("city", "cities", "#"),
        ("churches", "church", "#"),
        ("University of Wyoming", "of the universities", "of the #"),
        ("3", "three", "#"),
    ],
)
def test_a_word_is_found(entity: str, text: str, left: str) -> None:
    assert masked(text, entity) == left


@pytest.mark.parametrize(("entity", "text"), [("art", "party artist"), ("May_Day", "it may"), ("US", "us")])
def test_another_word_is_none(entity: str, text: str) -> None:
    assert masked(text, entity) == text


@pytest.mark.parametrize("entity", ["", " ", "_", "-", '""', "…"])
def test_an_entity_without_words_is_empty(entity: str) -> None:
    assert not entity_words(entity)


@given(st.text(max_size=30), st.text(max_size=10))
@settings(max_examples=150, deadline=None)
def test_an_entity_is_found_in_itself(before: str, entity: str) -> None:
    words = entity_words(entity)
    found = find_mentions(f"{before} {entity} {before}", {word.key for word in words})
    assert {word.key for word in words if word.start >= 0} <= {each.key for each in found} | {
        word.key
        for word in words
        if len(words) > 1  # parts of numbers and initials are found as a whole
    }
    assert all(one.stop <= other.start for one, other in pairwise(found))


@pytest.mark.skipif(not FOLDER.is_dir(), reason="CUTLAYER_DATA names no folder with webnlg")
def test_no_content_word_of_an_entity_stays_in_its_references() -> None:
    rows = [facts for part in ("seen", "unseen") for facts in read_webnlg(FOLDER / f"test_{part}.jsonl.gz")]
    assert len(rows) == 1862
    left = 0
    for facts in rows:
        own = {run for entity in facts.entities for run in re.findall(r"[^\W_]+", entity.casefold())}
        own -= _closed_classes().keys()
        table = " ".join(facts.entities)
        for text in (table, *facts.references):
            kept = re.findall(r"(?<!['’])[^\W_]+", masked(text, *facts.entities).casefold())
            left += len(own.intersection(kept))
    assert left == 0
