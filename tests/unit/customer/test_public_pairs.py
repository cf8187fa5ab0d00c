"""Public texts beside their releases: word for word, as a customer would release them, and nobody charged."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cutlayer.core import ConfigError, DataError
from cutlayer.customer import Client, Draw, Home, PublicDraws
from cutlayer.models import load_tokenizer
from cutlayer.privacy import NoPrivacy, TextToText, Words
from cutlayer.privacy.words import folded

pytestmark = pytest.mark.usefixtures("starter_installed")
TEXTS = [
    "The captain does not unmoor his sailboats before Thursday.",
    "A tired doctor opened the letter, and sold it.",
    " \n ",
    "They walked near the river  with care.",
]
COUNTS = {"NOUN": "captain boat doctor letter river care horse garden", "VERB": "open sell walk unmoor carry saw"}
COUNTS |= {"PRON": "his it they her", "ADP": "before near with of"}


@pytest.fixture(scope="module")
def privacy(tmp_path_factory: pytest.TempPathFactory) -> Words:
    file = tmp_path_factory.mktemp("words") / "words.tsv"
    lines = (f"{word}\t{tag}\t5\n" for tag, words in COUNTS.items() for word in words.split())
    file.write_text("".join(lines))
    return Words(eta=30, vocabulary=file)


def test_each_token_belongs_to_the_word_that_stands_there_on_both_sides(privacy: Words, tmp_path: Path) -> None:
    pairs = PublicDraws(TEXTS, Draw(privacy)).pairs(tmp_path)
    tokenizer = load_tokenizer("starter")
    assert len(pairs) == 3  # blanks have no word
    drawable = {word for words in COUNTS.values() for word in words.split()}
    replaced = 0
    for number, text in enumerate(text for text in TEXTS if text.strip()):
        sides = []
        for own in (pairs.clear, pairs.released):
            ids, words = own.ids[number].tolist(), own.ids.with_values(own.words)[number].tolist()
            assert words == sorted(words)
            spelt: dict[int, str] = {}
            for token, word in zip(ids, words, strict=True):
                spelt[word] = spelt.get(word, "") + tokenizer.convert_ids_to_tokens(token).removeprefix("##")
            sides.append(list(spelt.values()))
            assert list(spelt) == list(range(len(spelt)))
        clear, released = sides
        assert "".join(clear) == folded("".join(text.split()))
        assert len(clear) == len(released)
        changed = [after for before, after in zip(clear, released, strict=True) if before != after]
        replaced += len(changed)
        assert set(changed) <= drawable
    assert replaced > 5


def test_they_are_what_a_customer_releases(privacy: Words, tmp_path: Path) -> None:
    home = tmp_path / "home"
    pairs = PublicDraws(TEXTS, Draw(privacy)).pairs(home)
    with closing(Client(home=home)) as client:
        released = list(client.privatize_stream([(text,) for text in TEXTS], Draw(privacy)))
    tokenizer, of = load_tokenizer("starter"), [text for text in released if text.original[0].strip()]
    for number, text in enumerate(of):
        (left,) = text.released
        assert pairs.released.ids[number].tolist() == tokenizer(left, add_special_tokens=False)["input_ids"]
    assert Home(home).ledger.is_empty()


def test_a_long_text_ends_where_its_release_does(privacy: Words, tmp_path: Path) -> None:
    pairs = PublicDraws([" ".join(TEXTS)], Draw(privacy, max_length=9)).pairs(tmp_path)
    assert [int(own.ids.lengths[0]) for own in (pairs.clear, pairs.released)] == [7, 7]


@pytest.mark.parametrize("other", [NoPrivacy(), TextToText(eta=50)])
def test_other_mechanisms_are_refused(other: object) -> None:
    with pytest.raises(ConfigError, match="must be words"):
        PublicDraws(TEXTS, Draw(other))  # type: ignore[arg-type]


def test_texts_without_words_are_refused(privacy: Words, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No public text has a word"):
        PublicDraws([" ", ""], Draw(privacy)).pairs(tmp_path)


def test_other_texts_or_settings_are_told_apart_without_a_text(privacy: Words) -> None:
    draws = PublicDraws(TEXTS, Draw(privacy))
    assert draws.about == PublicDraws(list(TEXTS), Draw(privacy)).about
    assert draws.about != PublicDraws(TEXTS[:2], Draw(privacy)).about
    assert draws.about != PublicDraws(TEXTS, Draw(privacy, max_length=9)).about
    assert "captain" not in str(draws.about) + repr(draws)
