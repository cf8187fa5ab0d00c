"""ROUGE of reconstructed texts: values worked out by hand, and how sure their mean is."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.attacks.evaluation.text_overlap import text_overlap
from cutlayer.core import DataError

KINDS = ("rouge1", "rouge2", "rouge_l", "rouge_lsum")


def values(true, guessed):
    found = text_overlap([true], [guessed])
    return {kind: getattr(found, kind).value for kind in KINDS}


def test_values_worked_out_by_hand():
    found = values("the cat sat on the mat", "the cat on the mat")
    # all 5 guessed words and 3 of 4 guessed pairs are among 6 words and 5 pairs
    assert found == pytest.approx({"rouge1": 10 / 11, "rouge2": 2 / 3, "rouge_l": 10 / 11, "rouge_lsum": 10 / 11})


def test_order_counts_for_pairs_and_sequences():
    found = values("one two three four", "four three two one")
    assert found == pytest.approx({"rouge1": 1, "rouge2": 0, "rouge_l": 0.25, "rouge_lsum": 0.25})


@pytest.mark.parametrize("end", [". ", "! ", "?  ", ".\n", "\n", "\n\n"])
def test_sentences_in_another_order_count_for_the_sum_alone(end):
    found = values(f"one two{end}three four", f"three four{end}one two")
    assert found == pytest.approx({"rouge1": 1, "rouge2": 2 / 3, "rouge_l": 0.5, "rouge_lsum": 1})


@pytest.mark.parametrize("no_end", [" ", ", ", ".", "; "])
def test_no_sentence_ends_there(no_end):
    found = values(f"one two{no_end}three four", f"three four{no_end}one two")
    assert found["rouge_lsum"] == found["rouge_l"] == pytest.approx(0.5)


def test_case_and_punctuation_do_not_count():
    assert set(values("Call Mr. SMITH at 9:30!", "call mr smith, at (9 30)").values()) == {1}


def test_nothing_in_common():
    assert set(values("one two. three", "four five. six").values()) == {0}
    assert set(values("one two. three", "").values()) == {0}


# Table 1 of the paper: a text and what was made of it at four accuracies of tokens.
TABLE_1 = (
    "millimeter (0 @.@ 8 in) Oerlikon light AA guns on single mounts. In addition Caradoc was fitted with a Type 271 "
    "and Type 290",
    [
        "Pillopolis medi wrestling Am Overt Jeff num par sl Med Inf Hey ev Fre Kem M Jehovah Solomon Gleyx "
        "SpaceEngineers minim Ke",
        "device idea h 0 @cm@ 8 onappend Oerlikon light AA guns There single what Lee I addition Caradoc proved "
        "fittedak HiddenType 271",
        "by some 2 0 that that 8 that< endof >< endof > that 33 that light AA guns that single mount< endof ><",
        "byiece / 0 @ It@ 8 that, Oerlikon light AA guns on single mounts. In addition Caradoc was fitted at a Type "
        "271 and Type290 surf",
    ],
)


def test_the_papers_example():
    text, guesses = TABLE_1
    low, middle, _, high = (values(text, guess) for guess in guesses)
    for kind in KINDS:
        assert low[kind] == 0
        assert 0.1 < middle[kind] < high[kind] - 0.2 < 0.75


words = st.lists(st.sampled_from("abcde"), min_size=1, max_size=9)


@settings(deadline=None)
@given(words, words)
def test_against_the_definitions(true, guessed):
    def f1(hits):
        return 2 * hits / (len(true) + len(guessed))

    table = [[0] * (len(guessed) + 1) for _ in range(len(true) + 1)]
    for i, one in enumerate(true):
        for j, other in enumerate(guessed):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    found = values(" ".join(true), " ".join(guessed))
    assert found["rouge1"] == pytest.approx(f1((Counter(true) & Counter(guessed)).total()))
    assert found["rouge_l"] == found["rouge_lsum"] == pytest.approx(f1(table[-1][-1]))
    assert values(" ".join(guessed), " ".join(true)) == pytest.approx(found)


def test_the_standard_error_is_over_texts():
    true = ["one two", "three four", "five six", "seven eight"]
    found = text_overlap(true, ["one two", "three x", "five y", "z z"])
    assert found.n == found.rouge1.n == 4
    assert found.rouge1.value == pytest.approx(0.5)
    # F1 of 1, 1/2, 1/2 and 0: variance 1/6
    assert found.rouge1.standard_error == pytest.approx(math.sqrt(1 / 6 / 4))
    assert found.rouge2.value == pytest.approx(0.25)
    assert found.rouge2.standard_error == pytest.approx(0.25)


def test_one_text_claims_no_more_than_a_value_between_0_and_1_allows():
    found = text_overlap(["one two three four"], ["one two three x"])
    assert found.rouge1.standard_error == pytest.approx(math.sqrt(0.75 * 0.25))


def test_texts_without_a_word_are_left_out():
    found = text_overlap(["one two", "", "...", "Ω"], ["one two", "one", "...", "Ω"])
    assert found.n == 1
    assert found.rouge1.value == 1


def test_pairs_are_compared_in_order():
    assert text_overlap(["one", "two"], ["two", "one"]).rouge1.value == 0


def test_what_cannot_be_compared():
    with pytest.raises(DataError, match="2 true texts and 1 guesses"):
        text_overlap(["one", "two"], ["one"])
    for texts in ([], ["!"]):
        with pytest.raises(DataError, match="nothing to compare"):
            text_overlap(texts, texts)
