from __future__ import annotations

from cutlayer.reports import summary
from tests.unit.reports.audits import COMPLAINT, LETTER, by_question, empty, finding, full


def test_what_leaked_comes_first():
    leaked, attacks, *others = summary(full())
    assert leaked.title == "What leaked"
    assert leaked.rows[0][:2] == ("Which words did the texts have?", "46 of 100 words and pieces of words")
    assert leaked.rows[0][2:] == ("44 to 48 of 100", "6 of 100", "yes", "channel-prior")
    assert leaked.rows[-1] == ("How long is each text?", "no number", "–", "–", "–", "–")
    assert leaked.notes[0] == full().verdict[0]
    assert "- Labels: the gradients of training show them." in leaked.notes
    assert ("inverter", "words", "control failed", "–", "–", "–", "–", "–") in attacks.rows
    assert "inverter: noise: 12.00 % of 4096, must be at most 5.70 %" in attacks.notes
    assert [table.title for table in others] == [
        "Settings (shares in %)",
        "What the customer was handed",
        "Copies of the tuned model: agreement on unseen texts (%)",
        "Copies of the vendor's blocks from rows in and out: unseen texts (%)",
    ]


def test_all_rows_are_as_long_as_their_headings():
    for table in (*summary(full()), *summary(empty())):
        assert {len(row) for row in table.rows} <= {len(table.columns)}


def test_no_text_of_a_record_is_in_it():
    told = " ".join(cell for table in summary(full()) for row in (*table.rows, table.notes) for cell in row)
    assert not {word for word in (LETTER + COMPLAINT).split() if len(word) > 6} & set(told.split())


def test_an_empty_report_says_that_nothing_is_promised():
    leaked, attacks = summary(empty())
    assert leaked.notes == ("No guarantee. Texts are released without noise.",)
    assert not attacks.rows


def test_words_are_asked_for_first_whatever_attacks_are_called() -> None:
    mixed = [finding("a", question=question) for question in ("answers", "length", "attribute:age", "label", "words")]
    asked = [each.question for each in by_question(mixed)]
    assert asked == ["words", "answers", "label", "attribute:age", "length"]
