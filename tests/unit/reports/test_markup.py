from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

from cutlayer.attacks.evaluation.scoring import UNREAD
from cutlayer.core import Tokens
from cutlayer.data import Dataset, tokenise
from cutlayer.models import load_tokenizer
from cutlayer.reports.markup import CLASSES, NO_KIND, NO_NAME, mark_up, sentence_starts
from tests.unit.reports.readings import reading

UNCASED, CASED = "starter", "starter-decoder"


@cache
def tokenizer_of(source):
    return load_tokenizer(source)


def tokens_of(data, source, *, most=99):
    return tokenise(data, tokenizer_of(source), max_content=most)


def words_of(tokens, source):
    """Each token as it reads."""
    return [
        tokenizer_of(source).decode([token]).strip().removeprefix("##")
        for side in tokens.segments
        for token in side.values.tolist()
    ]


def marked(*rows, source=UNCASED, most=99, public=None):
    """Tokens of rows as they read, and their marks where all are read."""
    data = Dataset(tuple((row,) if isinstance(row, str) else row for row in rows))
    tokens = tokens_of(data, source, most=most)
    return words_of(tokens, source), mark_up(data, reading(tokens, tokens), tokenizer_of(source), public=public)


def told(words, marks):
    """By number, what the tokens of one number say together; of those that have one."""
    found = {}
    for word, mark in zip(words, marks.tolist(), strict=True):
        if mark >= 0:
            found.setdefault(mark, []).append(word)
    return ["".join(found[number]).lower() for number in sorted(found)]


def sentences(text):
    starts = sentence_starts(text)
    return [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


# ---------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("", [""]),
        (" \n ", [""]),
        ("no mark at all", ["no mark at all"]),
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "stop." She went.', ['He said "stop."', "She went."]),
        ('"Really?" he asked. (See below.) So... what', ['"Really?" he asked.', "(See below.)", "So... what"]),
        ("Dr. Ann Lee met J. K. Bose at 9.30. Fine.", ["Dr. Ann Lee met J. K. Bose at 9.30.", "Fine."]),
        ("So do I. You too.", ["So do I.", "You too."]),
        ("It costs approx. ten euros. Paid.", ["It costs approx. ten euros.", "Paid."]),
        ("a charming film . it 's good ! see it", ["a charming film .", "it 's good !", "see it"]),
        ("we met mr. lee. he left", ["we met mr. lee.", "he left"]),
        ("Dear Ann,\n\nthe bill is paid.\nBye", ["Dear Ann,", "the bill is paid.", "Bye"]),
        ("It is paid.\n\nBye.\n \n", ["It is paid.", "Bye."]),
        ("他来了。她走了！", ["他来了。", "她走了！"]),
        ("at home.Then", ["at home.Then"]),
    ],
)
def test_sentences(text, split):
    assert sentences(text) == split


@pytest.mark.parametrize("source", [UNCASED, CASED])
def test_each_token_is_of_its_sentence(source):
    words, markup = marked("It rained. We stayed\n\nat home!", "", "One", source=source)
    assert told(words, markup.sentences) == ["itrained.", "westayed", "athome!", "one"]
    assert markup.sentences.tolist() == sorted(markup.sentences.tolist())


def test_both_texts_of_a_pair_have_sentences_of_their_own():
    words, markup = marked(("One. Two.", "Three."), ("Four.", "Five. Six."))
    assert sorted(told(words, markup.sentences)) == sorted(["one.", "two.", "three.", "four.", "five.", "six."])


def test_a_cut_text_has_the_sentences_that_are_left():
    words, markup = marked("It rained. We stayed at home. Then", most=5)
    assert told(words, markup.sentences) == ["itrained.", "westayed"]


def test_an_end_mark_is_of_the_last_sentence():
    """Some tokenizers' texts are closed with a mark of their own, which has no place in the text."""
    data = Dataset((("It rained. We stayed",),))
    tokens = tokens_of(data, UNCASED)
    closed = Tokens((tokens.segments[0].from_lists([[*tokens.segments[0].values.tolist(), 102]]),))
    markup = mark_up(data, reading(closed, closed), tokenizer_of(UNCASED), public=None)
    assert markup.sentences.tolist() == [0, 0, 0, 1, 1, 1]
    assert CLASSES[int(markup.kinds[-1])] == "punctuation"


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("source", [UNCASED, CASED])
def test_words_that_belong_together_are_one_name(source):
    words, markup = marked(
        "Yesterday I met Anna Maria Kowalski-Nowak, then Dr. J. K. O'Neill of Smith & Sons. Bob paid Eve\nMallory.",
        "she saw nobody in paris",
        "I'm told that I'd like Rome: The city. THIS IS LOUD NEWS.",
        source=source,
    )
    names = ["annamariakowalskinowak", "drjko'neill", "smithsons", "eve", "mallory", "rome"]
    assert told(words, markup.names) == names
    of_names = [CLASSES[int(kind)] == "names" for kind in markup.kinds]
    assert of_names == (markup.names != NO_NAME).tolist()


def test_kinds_of_tokens():
    common = tokens_of(Dataset((("yesterday i met her in no said it 's , . !",),) * 50), UNCASED).segments[0].values
    words, markup = marked(
        "Yesterday I met Anna Kowalski, 42, in Paris. Her phlebotomist said no!", "it 's 7pm", public=common
    )
    kinds = [CLASSES[int(kind)] for kind in markup.kinds]
    named = dict(zip(words, kinds, strict=True))
    assert named["anna"] == named["paris"] == "names"
    assert {kind for word, kind in zip(words, kinds, strict=True) if len(word) > 1 and word in "kowalski"} == {"names"}
    assert named["42"] == "numbers"
    assert named["7"] == "numbers" if "7" in named else named["7pm"] == "numbers"
    assert named["yesterday"] == named["her"] == named["i"] == named["said"] == "other words", "capitals of sentences"
    assert named[","] == named["."] == named["!"] == "punctuation"
    assert {kind for word, kind in zip(words, kinds, strict=True) if len(word) > 1 and word in "phlebotomist"} == {
        "rare words"
    }


# ---------------------------------------------------------------- guesses


def guessed_as(*read, texts, public=None):
    """What these tokens are guesses of, read in the places of texts' first ones; `None` where nothing was."""
    data = Dataset(tuple((text,) for text in texts))
    tokens = tokens_of(data, UNCASED)
    (side,) = tokens.segments
    ids = [UNREAD if each is None else tokenizer_of(UNCASED).convert_tokens_to_ids(each) for each in read]
    values = torch.cat([torch.tensor(ids), side.values[len(ids) :]])
    found = dataclasses.replace(reading(tokens, tokens), read=Tokens((side.with_values(values),)))
    markup = mark_up(data, found, tokenizer_of(UNCASED), public=public)
    return ["" if kind == NO_KIND else CLASSES[kind] for kind in markup.guessed.tolist()[: len(ids)]]


def test_a_guess_is_of_the_kind_that_its_token_mostly_has():
    texts = ("We saw Will and Will. He will go to The Hague, for the end of the day in May. May I, may you?",)
    assert guessed_as("will", "hague", "the", "may", texts=texts) == ["names", "names", "other words", "other words"]


def test_as_often_a_name_as_not_is_a_name():
    assert guessed_as("will", texts=("We saw Will. He will go.",)) == ["names"]


def test_a_guess_that_no_text_has_is_told_by_itself():
    common = tokens_of(Dataset((("london , we saw nothing",),) * 50), UNCASED).segments[0].values
    texts = ("we saw nothing of all that there was",)
    read = ("london", "berlin", "17", "?", "[MASK]", None, "saw")
    told = ["other words", "rare words", "numbers", "punctuation", "", "", "other words"]
    assert guessed_as(*read, texts=texts, public=common) == told
    assert guessed_as("berlin", texts=texts) == ["other words"], "no word is rare to who has no text"
