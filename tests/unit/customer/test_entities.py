"""Entities leave as drawn words, are charged once, and come back."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutlayer.core import BudgetError, ConfigError, Cut, DataError
from cutlayer.customer import Client, entities
from cutlayer.customer.stand_ins import Spellings, put_back, stand_ins, words_behind
from cutlayer.data import read_webnlg
from cutlayer.data.mentions import codes_pattern
from cutlayer.privacy import Words

TABLE = " | Aarhus_Airport : cityServed : Aarhus"
ROW = (TABLE, "Aarhus's airports serve Århus-Ø in 1999.")
TEXT = "Jacob Bundgaard leads Aarhus."
FACTS = Path(os.environ.get("CUTLAYER_DATA", "")) / "webnlg"
WORD = st.sampled_from(["cat", "cats", "river", "rivers", "Øst", "東京", "x", "2", "o'clock", ""])


@pytest.fixture
def client(words_read_once: None) -> Client:
    return Client()


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.simplefilter("ignore")


@given(st.lists(WORD, min_size=1, max_size=8), st.lists(WORD, max_size=6), st.randoms())
@settings(max_examples=300, deadline=None)
def test_all_copied_words_are_put_back(drawn: list[str], clear: list[str], random) -> None:
    """Equal draws, draws that are others' plurals, and draws that the text has anyway."""
    families = {
        f"k{n}": {f"k{n}": f"Word{n}q", **({f"k{n}s": f"Words{n}q"} if n % 2 else {})} for n in range(len(drawn))
    }
    around = [run.casefold() for word in clear for run in codes_pattern().findall(word)]
    codes = stand_ins({key: list(own) for key, own in families.items()}, drawn, set(around), b"key")
    assert len(set(codes.values())) == len(codes)
    pieces = [(code, families[key][reading]) for (key, reading), code in codes.items()] + [(run, run) for run in around]
    random.shuffle(pieces)
    words = Spellings(words_behind(families, codes))
    for joint in (" ", "-", "'s ", "/", ", "):
        assert put_back(joint.join(code for code, _ in pieces), words) == joint.join(word for _, word in pieces)


def test_numbers_do_not_tell_the_order_of_words() -> None:
    readings = {f"k{n}": [f"k{n}"] for n in range(8)}
    orders = {
        tuple(codes[key, key] for key in readings)
        for number in range(4)
        for codes in [stand_ins(readings, ["cat"] * 8, set(), bytes([number]))]
    }
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert len(orders) > 1


def test_a_table_and_its_texts_come_back_and_are_charged_once(client: Client) -> None:
    texts, made = client.protect([ROW], [["Aarhus_Airport", "Aarhus", "1999"]], eta=20)
    assert "arhus" not in str(texts).casefold()
    assert "1999" not in str(texts)
    assert made.restore(texts[0][0]) == " | Aarhus Airport : cityServed : Aarhus"
    assert made.restore(texts[0][1]).startswith("Aarhus's airports serve")
    told = client.ledger.summary()
    (mechanism,) = told.mechanisms
    assert (mechanism.mechanism, mechanism.draws, mechanism.largest_spent) == ("words, entities", made.drawn, 20)
    assert told.clear == made.clear
    assert client.protect([ROW], [["Aarhus_Airport", "Aarhus", "1999"]], eta=20) == (texts, made)
    assert client.ledger.summary().mechanisms[0].draws == made.drawn
    assert client.entity_map(made.job) == made
    path = client.home.entities(made.job)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"Aarhus" not in path.read_bytes()
    assert "Aarhus" not in repr(made)


SPELLINGS = (
    "Karl_Müller", "Karl Muller", "Müller", "Bob Muller", "18L/36R", "18 L", "1988-01-02", "Apollo 1", "007", "7",
    "three", "3", "1,500.50", "1500.5", "FC Århus", "F.C. Aarhus", "Aarhus-Ø", "AARHUS AIRPORT", "J. R. R. Tolkien",
    "JRR Tolkien", "Tolkien's sons", "the Two Towers", "Two Towers", "東京都", "naïve café", "O'Brien",
)  # fmt: skip
"""Nested, overlapping, possessive, hyphenated and non-ASCII names, which share words and write them differently."""


@pytest.fixture
def read_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive and the vocabulary are those of all examples."""
    privacy = Words(eta=20, words=("all",))
    archive = entities.local_archive(client.home, "starter", Cut(bottom=0))
    reading = entities.reading_of(privacy, archive, client.home, max_length=None)
    monkeypatch.setattr(entities, "local_archive", lambda *_: archive)
    monkeypatch.setattr(entities, "reading_of", lambda *_, **__: reading)


@pytest.mark.usefixtures("read_once")
@given(rows=st.lists(st.lists(st.sampled_from(SPELLINGS), min_size=1, max_size=3, unique=True), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_answer_that_copies_an_entity_has_it_as_its_own_row_writes_it(client: Client, rows: list[list[str]]) -> None:
    """All but the one of two names of a row that leave alike, as "Müller" and "Muller" in one text do."""
    texts, made = client.protect([" ; ".join(names) for names in rows], rows, eta=20)
    for number, (text, names) in enumerate(zip(texts, rows, strict=True)):
        copied = text.split(" ; ")
        wanted = [names[copied.index(each)].replace("_", " ") for each in copied]
        assert [made.restore(each, row=number).casefold() for each in copied] == [each.casefold() for each in wanted]
        assert made.restore(text, row=number, job=made.job).casefold() == " ; ".join(wanted).casefold()


def test_a_name_that_two_rows_write_differently(client: Client) -> None:
    texts, made = client.protect(["Karl Müller left.", "Bob Muller came."], [["Karl Müller"], ["Bob Muller"]], eta=20)
    assert [made.restore(text, row=row) for row, text in enumerate(texts)] == ["Karl Müller left.", "Bob Muller came."]
    assert made.restore(texts[1]) == "Bob Muller came."  # a name of several words is known again as a whole
    assert made.restore(texts[1].split()[1]) == "Müller"
    for row in (-1, 2):
        with pytest.raises(DataError, match="has 2 texts"):
            made.restore(texts[0], row=row)
    assert "Muller" not in repr(made)


@pytest.mark.slow
@pytest.mark.skipif(not FACTS.is_dir(), reason="CUTLAYER_DATA names no folder with webnlg")
def test_all_entities_of_all_test_facts_come_back(client: Client) -> None:
    facts = [each for part in ("test_seen", "test_unseen") for each in read_webnlg(FACTS / f"{part}.jsonl.gz")]
    rows, made = client.protect(
        [(each.source, *each.references) for each in facts], [each.entities for each in facts], eta=20
    )
    found = 0
    for number, (row, each) in enumerate(zip(rows, facts, strict=True)):
        for told, triple in zip(row[0].split(" | ")[1:], each.triples, strict=True):
            subject, _, thing = (made.restore(part, row=number) for part in told.split(" : "))
            assert [part.replace("_", " ") for part in (subject, thing)] == [
                part.replace("_", " ").strip() for part in (triple[0], triple[2])
            ]
            found += 2
    assert (len(facts), found) == (1862, 10756)


def test_spans_and_names_that_the_tagger_finds(client: Client) -> None:
    (text,), made = client.protect(["東京都へ行く"], [[(0, 2)]], eta=20)
    assert "東京" not in text
    assert "東京" in made.restore(text)
    (text,), made = client.protect([TEXT], eta=20)
    assert "Bundgaard" not in text
    assert made.restore(text) == TEXT


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (TEXT, ["Aarhus"]), ([TEXT], "Aarhus"), ([TEXT, (TEXT, TEXT)], ["Aarhus"]), ([(TEXT, TEXT), TEXT], ["Aarhus"]),
        ([None], ["Aarhus"]), ([b"Aarhus"], ["Aarhus"]), ([("Aarhus", 3)], ["Aarhus"]), ([()], ["Aarhus"]),
        ([TEXT], [5]), ([TEXT], [None]), ([TEXT], [[None]]), ([TEXT], [[(1, 2, 3)]]), ([TEXT], [[(0.0, 3.0)]]),
        ([TEXT, TEXT], ["Aarhus", ["Aarhus"]]), ([TEXT], [[(True, 4)]]),
    ],
)  # fmt: skip
def test_what_is_no_list_of_texts_or_of_entities_is_refused(client: Client, texts: Any, names: Any) -> None:
    """A string is a sequence of letters, each of which would be an entity, and the name would leave."""
    with pytest.raises(DataError) as refused:
        client.protect(texts, names, eta=20)
    assert "Aarhus" not in str(refused.value)
    assert client.ledger.is_empty()


@pytest.mark.parametrize("entities", [["…"], [" "], ["Copenhagen"], [["Aarhus"], ["x"]], [[(4, 99)]], []])
def test_an_entity_that_is_empty_or_in_no_text_is_refused(client: Client, entities: list[str]) -> None:
    with pytest.raises(DataError) as refused:
        client.protect([TEXT], entities, eta=20)
    assert "Copenhagen" not in str(refused.value)
    assert client.ledger.is_empty()


def test_a_map_of_another_job_is_refused(client: Client) -> None:
    (_,), one = client.protect([TEXT], ["Aarhus"], eta=20)
    (_,), other = client.protect([TEXT], ["Jacob"], eta=20)
    with pytest.raises(DataError, match="map of job"):
        one.restore("a", job=other.job)
    client.home.entities(one.job).write_bytes(client.home.entities(other.job).read_bytes())
    with pytest.raises(DataError, match="another job"):
        client.entity_map(one.job)
    with pytest.raises(DataError, match="no map"):
        client.entity_map("0" * 32)


def test_settings_that_would_leave_words_in_clear_are_refused(client: Client) -> None:
    with pytest.raises(ConfigError, match="must be all"):
        client.protect([TEXT], ["Aarhus"], privacy=Words(eta=3))
    with pytest.raises(ConfigError):
        client.protect([TEXT], ["Aarhus"])
    with pytest.raises(BudgetError):
        client.protect([TEXT], ["Aarhus"], eta=20, privacy_budget=10)
    assert not list(Path(client.home.path).glob("entities/*"))
