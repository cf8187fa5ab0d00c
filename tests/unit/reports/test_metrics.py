from __future__ import annotations

import dataclasses

import pytest
import torch

from cutlayer.attacks.evaluation.scoring import UNREAD
from cutlayer.core import Ragged, Tokens
from cutlayer.data import Dataset, tokenise
from cutlayer.models import load_tokenizer
from cutlayer.reports.audit.outliers import stand_out
from cutlayer.reports.markup import CLASSES, NO_KIND, NO_NAME, Markup, mark_up
from cutlayer.reports.metrics import WHOLE_NAMES, by_class, exact_sentences, exact_texts, holm, likeness
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name
from tests.unit.reports.readings import reading


def texts(*lengths, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return Tokens((Ragged(torch.randint(10, 200, (sum(lengths),), generator=rng), torch.tensor(lengths)),))


def garbled(tokens, share, *, seed=1, clear=()):
    """Guesses of which about `share` are right, and in some texts all."""
    (side,) = tokens.segments
    rng = torch.Generator().manual_seed(seed)
    wrong = torch.rand(tokens.total, generator=rng) >= share
    owners = torch.arange(len(tokens)).repeat_interleave(side.lengths)
    wrong &= ~torch.isin(owners, torch.tensor(clear, dtype=torch.int64))
    return Tokens((side.with_values(torch.where(wrong, 5, side.values)),))


def test_whole_texts_are_those_without_a_mistake():
    tokens = texts(3, 1, 4, 0, 2)
    found = exact_texts(reading(tokens, garbled(tokens, 0, clear=(1, 4))))
    assert (found.value, found.n) == (pytest.approx(2 / 4), 4)
    assert found.ci is not None
    assert found.ci[0] <= found.value <= found.ci[1]


def markup(kinds, **changes):
    """Kinds of tokens, each text a sentence without names, and guesses of the kinds of their places."""
    values = {"kinds": kinds, "sentences": torch.zeros_like(kinds), "names": torch.full_like(kinds, NO_NAME)}
    return Markup(**{**values, "guessed": kinds, **changes})


def classes(read, marks):
    return {each.name: each for each in by_class(read, marks)}


def test_what_is_read_of_each_kind():
    tokens = texts(20, 20)
    kinds = torch.arange(40) % 5
    found = by_class(reading(tokens, garbled(tokens, 0, clear=(1,))), markup(kinds.where(kinds != 3, 4)))
    assert [each.name for each in found] == ["names", WHOLE_NAMES, *CLASSES[1:]]
    assert [each.n for each in found] == [8, 0, 8, 8, 0, 16]
    assert (found[1].recovered, found[4].recovered) == (None, None)
    assert all(each.recovered == each.precision == 0.5 for each in found if each.n)
    assert all((each.ci, each.precision_ci) == ((0, 1), (0, 1)) for each in found if each.n)


def test_precision_is_of_guesses_wherever_they_stand():
    """Of four names one is read; names were guessed in four places, and are right in this one."""
    tokens = texts(4, 4)
    right = torch.tensor([1, 0, 0, 0, 0, 1, 1, 1], dtype=torch.bool)
    (side,) = tokens.segments
    read = reading(tokens, Tokens((side.with_values(torch.where(right, side.values, 5)),)))
    kinds = torch.tensor([0, 0, 0, 3, 0, 3, 3, 3])
    guessed = torch.tensor([0, 0, 3, 0, 0, 3, 3, NO_KIND])
    found = classes(read, markup(kinds, guessed=guessed))
    names, words, numbers = found["names"], found["other words"], found["numbers"]
    assert (names.recovered, names.n, names.precision, names.guessed) == (1 / 4, 4, 1 / 4, 4)
    assert (words.recovered, words.n, words.precision, words.guessed) == (3 / 4, 4, 2 / 3, 3)
    assert (numbers.precision, numbers.precision_ci, numbers.guessed) == (None, None, 0)
    assert names.precision_ci == (0, 1 / 3), "of texts: one of three in the one, none of one in the other"


def test_what_does_not_count_is_neither_read_nor_guessed():
    tokens = texts(3, 3)
    read = dataclasses.replace(reading(tokens, tokens), seen=torch.tensor([0, 1, 1, 0, 1, 1], dtype=torch.bool))
    found = classes(read, markup(torch.zeros(6, dtype=torch.int64), names=torch.tensor([0, 0, 0, 1, 2, 2])))
    assert (found["names"].n, found["names"].guessed) == (4, 4)
    assert found[WHOLE_NAMES].n == 2, "of one no token counts"


def test_of_a_name_every_token_must_be_read():
    tokens = texts(5, 4)
    right = torch.tensor([1, 1, 1, 0, 1, 0, 1, 1, 1], dtype=torch.bool)
    (side,) = tokens.segments
    read = reading(tokens, Tokens((side.with_values(torch.where(right, side.values, 5)),)))
    names = torch.tensor([0, 0, 1, 1, -1, 2, -1, 3, 3])
    kinds = torch.where(names < 0, 3, 0)
    found = classes(read, markup(kinds, names=names))
    assert (found["names"].recovered, found["names"].n) == (5 / 7, 7)
    assert (found[WHOLE_NAMES].recovered, found[WHOLE_NAMES].n) == (2 / 4, 4)
    assert (found[WHOLE_NAMES].precision, found[WHOLE_NAMES].guessed) == (None, 0)


def test_whole_sentences_beside_whole_texts():
    tokens = texts(5, 4, 0)
    right = torch.tensor([1, 1, 1, 0, 1, 1, 1, 1, 1], dtype=torch.bool)
    (side,) = tokens.segments
    read = reading(tokens, Tokens((side.with_values(torch.where(right, side.values, 5)),)))
    sentences = torch.tensor([0, 0, 1, 1, 2, 3, 3, 3, 3])
    kinds = torch.full_like(sentences, 3)
    found = exact_sentences(read, markup(kinds, sentences=sentences))
    assert (found.name, found.value, found.n) == ("exact_sentence", 3 / 4, 4)
    assert found.ci == (2 / 3, 1), "over texts: two of three sentences of the one, all of the other"
    whole = exact_texts(read)
    assert (whole.name, whole.value, whole.n) == ("exact_text", 1 / 2, 2)


def test_of_two_looks_the_one_counts_that_read_a_token():
    tokens = texts(4)
    (side,) = tokens.segments
    hits = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 1]], dtype=torch.bool)
    read = reading(tokens, *(Tokens((side.with_values(torch.where(hit, side.values, 5)),)) for hit in hits))
    marks = markup(torch.zeros(4, dtype=torch.int64), sentences=torch.tensor([0, 0, 1, 1]))
    assert (classes(read, marks)["names"].recovered, classes(read, marks)["names"].precision) == (3 / 4, 3 / 4)
    assert exact_sentences(read, marks).value == 1 / 2


def read_as(data, guess, *, most=99):
    """Texts of which some words are read as others, and their markup."""
    tokenizer = load_tokenizer("starter")
    tokens = tokenise(data, tokenizer, max_content=most)
    taken = {tokenizer.convert_tokens_to_ids(old): tokenizer.convert_tokens_to_ids(new) for old, new in guess.items()}
    sides = (
        side.with_values(torch.tensor([taken.get(token, token) for token in side.values.tolist()], dtype=torch.int64))
        for side in tokens.segments
    )
    read = reading(tokens, Tokens(tuple(sides)))
    return read, mark_up(data, read, tokenizer, public=None)


def shares(found):
    """Numbers of each class: recall, its n, precision, its n."""
    return {each.name: (each.recovered, each.n, each.precision, each.guessed) for each in found if each.n}


def test_from_texts_to_numbers():
    """Tom is taken for Bob, and so is a word, in a sentence of its own."""
    data = Dataset((("We met Bob Smith. It rained.",), ("Yes, Tom ran with Bob and Eve.",), ("",)))
    read, marks = read_as(data, {"tom": "bob", "rained": "bob"})
    assert shares(by_class(read, marks)) == {
        "names": (4 / 5, 5, 4 / 6, 6),
        "whole names": (3 / 4, 4, None, 0),
        "other words": (7 / 8, 8, 1, 7),
        "punctuation": (1, 4, 1, 4),
    }
    assert (exact_sentences(read, marks).value, exact_sentences(read, marks).n) == (1 / 3, 3)
    assert (exact_texts(read).value, exact_texts(read).n) == (0, 2)


def test_pairs_have_sentences_of_both_texts_and_are_one_text():
    data = Dataset((("Ann ran. We saw Ann.", "So did Bob."), ("Stop!", "We met Bob. He ran.")))
    read, marks = read_as(data, {"did": "he"})
    assert (exact_sentences(read, marks).value, exact_sentences(read, marks).n) == (5 / 6, 6)
    assert exact_sentences(read, marks).ci == (2 / 3, 1)
    assert (exact_texts(read).value, exact_texts(read).n) == (1 / 2, 2)
    assert shares(by_class(read, marks))["whole names"][:2] == (1, 3)


def test_of_a_text_that_was_cut_counts_what_is_left():
    data = Dataset((("We met Bob Smith. It rained on Bob Smith.",),))
    read, marks = read_as(data, {"smith": "lee"}, most=9)
    assert shares(by_class(read, marks))["whole names"][:2] == (1 / 2, 2), "of the second one the first word is left"
    assert (exact_sentences(read, marks).value, exact_sentences(read, marks).n) == (1 / 2, 2)


def test_where_texts_have_no_capitals_no_name_is_told():
    data = Dataset((("we met bob smith . it rained .",), ("HELP! BOB SMITH RAN.",)))
    read, marks = read_as(data, {"smith": "lee"})
    found = shares(by_class(read, marks))
    assert not {"names", "whole names"} & set(found)
    assert found["other words"] == (8 / 10, 10, 8 / 10, 10)
    assert (exact_sentences(read, marks).value, exact_sentences(read, marks).n) == (2 / 4, 4)


def test_holm_is_between_one_test_and_all_of_them():
    assert holm({"a": 0.009}, alpha=0.01) == {"a": True}
    assert holm({"a": 0.004, "b": 0.009, "c": 0.5}, alpha=0.01) == {"a": False, "b": False, "c": False}
    assert holm({"a": 0.003, "b": 0.004, "c": 0.011}, alpha=0.01) == {"a": True, "b": True, "c": False}
    assert holm({}, alpha=0.01) == {}


def test_nothing_raises_an_alarm_as_rarely_as_it_says():
    rng = torch.Generator().manual_seed(3)
    alarms = sum(
        any(holm({str(n): float(p) for n, p in enumerate(torch.rand(20, generator=rng))}, alpha=0.05).values())
        for _ in range(400)
    )
    assert 5 <= alarms <= 40


def test_texts_that_left_in_clear_stand_out():
    tokens = texts(*[15] * 200)
    assert stand_out(reading(tokens, garbled(tokens, 0.4, clear=(17, 117))), alpha=0.01).tolist() == [17, 117]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 0.9, 1.0])
def test_where_all_are_protected_alike_none_stands_out(share):
    named = 0
    for seed in range(20):
        tokens = texts(*torch.randint(1, 30, (150,), generator=torch.Generator().manual_seed(seed)).tolist(), seed=seed)
        named += len(stand_out(reading(tokens, garbled(tokens, share, seed=seed)), alpha=0.01))
    assert named <= 1


def test_tokens_that_noise_hides_badly_do_not_make_a_text_stand_out():
    """A text of nothing but such tokens is read well, and left like all others."""
    (side,) = texts(*[12] * 300).segments
    easy = side.values < 40
    rng = torch.Generator().manual_seed(4)
    values = side.values.clone()
    values[: 12 * 5] = 10 + torch.randint(0, 30, (60,), generator=rng)
    tokens = Tokens((side.with_values(values),))
    easy = values < 40
    right = torch.rand(len(values), generator=rng) < torch.where(easy, 0.95, 0.1)
    guess = Tokens((side.with_values(torch.where(right, values, 5)),))
    assert stand_out(reading(tokens, guess), alpha=0.01).tolist() == []


def test_likeness_is_of_words_wherever_they_stand(tiny_model):  # noqa: F811
    tokenizer = load_tokenizer(str(tiny_model))
    data = Dataset((("w1 w2 w3 w4 w5 w6",), ("w7 w8 w9",), ("",)))
    tokens = tokenise(data, tokenizer, max_content=20)
    (side,) = tokens.segments

    def of(values):
        found = likeness(reading(tokens, Tokens((side.with_values(values),))), tokenizer)
        return {each.name: (each.value, each.n) for each in found}

    assert of(side.values) == {"rouge_l": (1.0, 2), "bleu": (1.0, 2)}
    other = int(tokenizer.convert_tokens_to_ids("w99"))
    mixed = side.values.clone()
    mixed[:2] = other  # the first two of six words
    # ROUGE-L: four of six words in order, in both directions
    assert of(mixed)["rouge_l"][0] == pytest.approx((4 / 6 + 1) / 2)
    # BLEU-4 of the first: precisions 4/6, 3/5, 2/4, 1/3
    assert of(mixed)["bleu"][0] == pytest.approx(((4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25 + 1) / 2)
    assert of(torch.full_like(side.values, other))["rouge_l"][0] == 0
    nothing = Tokens((side.with_values(torch.full_like(side.values, UNREAD)),))
    unread = dataclasses.replace(reading(tokens, tokens), read=nothing)
    assert {each.value for each in likeness(unread, tokenizer)} == {0.0}
