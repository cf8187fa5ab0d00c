"""Texts for a language model: closed, joined and cut into blocks, none lost on the way."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core import ConfigError, Cut, DataError, ModelError, Tokens
from cutlayer.customer import Objective, RunSpec, TrainBottom
from cutlayer.customer.corpora import Corpora, Plain, split_rows
from cutlayer.customer.prepare import LanguageTexts
from cutlayer.customer.reading import TokenReading
from cutlayer.customer.session import Session, Texts
from cutlayer.data import Dataset
from cutlayer.models import Template
from cutlayer.privacy import CustomerSecret, NoPrivacy
from cutlayer.wire import WireType
from tests.settings import run_spec
from tests.unit.models.vocabularies import WORDS, make_tokenizer

HABITS = ("gpt2", "llama", "roberta", "bert")
"""Of decoders: no special token, one before, one on each side (OPT's is of that kind but for the last)."""
WORD = st.sampled_from(WORDS)
TEXTS = st.lists(st.lists(WORD, max_size=12).map(" ".join), min_size=1, max_size=8)


SECRET = CustomerSecret.unsafe(1)


def spec(**training: Any) -> RunSpec:
    return run_spec(
        privacy=NoPrivacy(),
        objective=Objective.LM,
        model="tiny",
        wire_type=WireType.FP32,
        seed=1,
        cut=Cut(bottom=1, tail=0),
        train_bottom=TrainBottom.FROZEN,
        **training,
    )


def archive(habit: str, *, limit: int | None = 32, **given: Any) -> Any:
    tokenizer = make_tokenizer(habit, model_max_length=2**40, **given)
    return SimpleNamespace(tokenizer=tokenizer, template=Template.from_tokenizer(tokenizer, max_length=limit))


def language_texts(given: Plain, settings: RunSpec, held: Any) -> LanguageTexts:
    return LanguageTexts(given, settings, held, TokenReading(held))


def rows(texts: list[str], *, public: list[str] | None = None) -> Plain:
    some = Dataset((("word1 word2 word3",),))
    return Plain(
        train=Dataset(tuple((text,) for text in texts)),
        dev=some,
        test=None,
        public=None if public is None else Dataset(tuple((text,) for text in public)),
    )


def made(texts: list[str], habit: str = "gpt2", *, limit: int | None = 32, **training: Any) -> LanguageTexts:
    return language_texts(rows(texts), spec(**training), archive(habit, limit=limit))


def ids(texts: list[str], habit: str = "gpt2") -> list[list[int]]:
    """What each text becomes, with its end mark; texts without a token are none."""
    tokenizer = make_tokenizer(habit)
    found = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [[*each, tokenizer.eos_token_id] for each in found if each]


def flat(tokens: Tokens) -> list[int]:
    found: list[int] = tokens.segments[0].values.tolist()
    return found


@settings(deadline=None, max_examples=60)
@given(TEXTS.filter(any), st.sampled_from(HABITS), st.integers(4, 32))
def test_every_token_stands_once_in_the_blocks_and_in_order(texts: list[str], habit: str, length: int) -> None:
    found = made(texts, habit, max_length=length)
    stream = [token for text in ids(texts, habit) for token in text]
    specials = found._archive.template.special_count(1)
    size = length - specials
    assert found.max_content == size
    lengths = found.tokens.segments[0].lengths.tolist()
    kept = flat(found.tokens)
    left_out = len(stream) - len(kept)
    # only a last block that predicts nothing may be left out: one token, where no special token precedes it
    assert left_out == (len(stream) % size == 1 and specials == 0)
    assert kept == stream[: len(kept)]
    assert all(each == size for each in lengths[:-1])
    assert 0 < lengths[-1] <= size
    assert found.train.lengths.tolist() == [each + specials for each in lengths]
    assert int(found.train.lengths.max()) <= length, "a block of the length that was asked for, special tokens included"


@settings(deadline=None, max_examples=60)
@given(TEXTS.filter(any), st.sampled_from(HABITS), st.integers(4, 32))
def test_without_packing_each_text_stays_by_itself(texts: list[str], habit: str, length: int) -> None:
    found = made(texts, habit, max_length=length, packing=False)
    size = found.max_content
    wanted = [text[:size] for text in ids(texts, habit)]
    (segment,) = found.tokens.segments
    assert [segment[at].tolist() for at in range(len(segment))] == wanted


def test_texts_are_closed_and_joined_across_blocks() -> None:
    found = made(["a b c", "", "d", "e f g h"], max_length=5)
    end = make_tokenizer("gpt2").eos_token_id
    a, b, c, d, e, f, g, h = (make_tokenizer("gpt2").convert_tokens_to_ids(letter) for letter in "abcdefgh")
    (segment,) = found.tokens.segments
    assert [segment[at].tolist() for at in range(len(segment))] == [[a, b, c, end, d], [end, e, f, g, h]]
    # the eleventh token, the last end mark, would be a block of its own that predicts nothing
    assert found.tokens.total == 10


def test_examples_are_their_own_labels() -> None:
    found = made(["a b c", "d e f g"])
    assert found.train.labels is found.tokens
    assert isinstance(found.train.texts, Texts)
    assert found.train.texts.tokens is found.tokens
    assert found.train.texts.cti_classes is None
    assert not found.train.texts.public
    assert found.label_names == ()
    assert found.test is None
    assert found.public is None


def test_public_text_is_marked_as_such_and_nothing_else_is() -> None:
    given = rows(["a b c d"], public=["h i j", "k"])
    found = language_texts(given, spec(), archive("gpt2"))
    assert found.public is not None
    assert isinstance(found.public.texts, Texts)
    assert found.public.texts.public
    assert flat(found.public.texts.tokens) == [token for text in ids(["h i j", "k"]) for token in text]
    for private in (found.train, found.dev):
        assert isinstance(private.texts, Texts)
        assert not private.texts.public


# ---------------------------------------------------------------- lengths


@pytest.mark.parametrize(
    ("limit", "given", "size"),
    [(32, None, 32), (32, 8, 8), (4096, None, 1024), (None, None, 1024), (None, 3000, 3000), (4096, 3000, 3000)],
)
def test_how_long_a_block_is(limit: int | None, given: int | None, size: int) -> None:
    for habit in HABITS:
        found = made(["a b c d e"], habit, limit=limit, max_length=given)
        assert found.max_content == size - found._archive.template.special_count(1)


@pytest.mark.parametrize("packing", [True, False])
def test_a_block_beyond_the_model_s_limit_is_refused_by_name(packing: bool) -> None:
    with pytest.raises(ConfigError, match="max_length = 33: must be at most 32, the model's limit"):
        made(["a b c d e"], max_length=33, packing=packing)


@pytest.mark.parametrize("habit", ["llama", "bert"])
def test_a_block_that_holds_special_tokens_alone_is_refused(habit: str) -> None:
    with pytest.raises(ConfigError, match="max_length"):
        made(["a b c d e"], habit, max_length=1)


# ---------------------------------------------------------------- data


def test_texts_of_nothing() -> None:
    for packing in (True, False):
        with pytest.raises(DataError, match="train has no text of two tokens or more") as error:
            made(["", "   "], packing=packing)
        assert "longer texts" in error.value.remedy
    found = made(["a"])
    assert found.tokens.total == 2, "a word and its end mark: one prediction"


def test_which_file_has_none_is_said() -> None:
    empty = Dataset((("",),))
    full = Dataset((("a b c",),))
    for name, some in (
        ("dev", Plain(full, empty, None, None)),
        ("test", Plain(full, full, empty, None)),
        ("the public text", Plain(full, full, None, empty)),
    ):
        with pytest.raises(DataError, match=f"{name} has no text of two"):
            language_texts(some, spec(), archive("gpt2"))


def test_a_tokenizer_without_an_end_mark() -> None:
    without = archive("gpt2")
    without.tokenizer.eos_token = None
    with pytest.raises(ModelError, match="no end mark"):
        language_texts(rows(["a b"]), spec(), without)


@pytest.mark.parametrize("habit", HABITS)
def test_a_target_stands_closed_behind_its_closed_source(habit: str) -> None:
    held = archive(habit)
    end = held.tokenizer.eos_token_id
    pairs = Dataset((("a b", "c d e"), ("f", "")))
    found = language_texts(Plain(pairs, pairs, None, None), spec(packing=False), held)
    assert found.segments == 2
    (texts,) = found.train.texts.tokens.segments
    source, target = found.train.labels.segments
    for row, (one, two) in enumerate(pairs.texts):
        (before, behind) = (held.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (one, two))
        assert source[row].tolist() == [*before, end]
        assert target[row].tolist() == [*behind, end]
        assert texts[row].tolist() == [*before, end, *behind, end]


def test_a_pair_that_is_too_long_loses_the_end_of_its_longer_text_and_never_its_middle_mark() -> None:
    held = archive("gpt2", limit=8)
    long = " ".join("abcdefghij")
    pairs = Dataset(((long, "k l"), ("k l", long), (long, long)))
    found = language_texts(Plain(pairs, pairs, None, None), spec(packing=False), held)
    source, target = found.train.labels.segments
    assert (source.lengths + target.lengths).tolist() == [8, 8, 8]
    end = held.tokenizer.eos_token_id
    assert all(ids[-1] == end for ids in source.split())
    assert not any(end in ids.tolist() for ids in target.split())


def test_pairs_in_blocks_are_refused_and_so_are_single_texts_beside_pairs() -> None:
    pairs, single = Dataset((("a b", "c d"),)), Dataset((("a b",),))
    with pytest.raises(ConfigError, match="packing"):
        language_texts(Plain(pairs, pairs, None, None), spec(), archive("gpt2"))
    with pytest.raises(ConfigError, match="dev has single texts"):
        language_texts(Plain(pairs, single, None, None), spec(packing=False), archive("gpt2"))


def test_labels_of_a_file_are_not_looked_at() -> None:
    """And what was held out does not depend on them."""
    texts = [(f"word{number}",) for number in range(20)]
    random.Random(1).shuffle(texts)
    given = Dataset(tuple(texts), tuple("ab"[number % 2] for number in range(20)))
    found = split_rows(Corpora(given, None, None), spec(dev_share=0.2), SECRET)
    bare = split_rows(Corpora(Dataset(tuple(texts)), None, None), spec(dev_share=0.2), SECRET)
    assert isinstance(found, Plain)
    assert (found.train.texts, found.dev.texts) == (bare.train.texts, bare.dev.texts)
    assert len(found.dev) == 4


def test_public_text_is_part_of_what_a_run_is_known_by() -> None:
    some, other = Dataset((("a",),)), Dataset((("b",),))
    digests = {Corpora(some, None, None, public).digests(b"key") for public in (None, some, other)}
    assert len(digests) == 3
    assert Corpora(some, None, None, other).digests(b"key") != Corpora(some, None, other, None).digests(b"key")


def test_texts_without_labels_are_part_of_what_a_run_is_known_by() -> None:
    """And so is each text's end: texts that are cut elsewhere are other texts."""
    corpora = [
        Corpora(Dataset(rows, labels), dev, None)
        for rows, labels, dev in (
            ((("a",), ("b",)), None, None),
            ((("a",), ("c",)), None, None),
            ((("ab",),), None, None),
            ((("a",), ("b",)), ("x", "y"), None),
            ((("a", "b"),), None, None),
            ((("a",),), None, Dataset((("b",),))),
            ((("a\x1fb",),), None, None),
        )
    ]
    assert len({each.digests(b"key") for each in corpora}) == len(corpora)
    assert corpora[0].digests(b"key") != corpora[0].digests(b"other key")


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize("habit", HABITS)
def test_every_token_but_the_first_is_predicted(habit: str) -> None:
    """Against a loop over positions: no padding, and of special tokens only those that come after another."""
    found = made(["a b c", "d", "e f g h i"], habit, packing=False)
    inputs = found._archive.template.assemble(found.tokens)
    assert inputs.input_ids is not None
    vocabulary = 60
    logits = torch.randn(*inputs.input_ids.shape, vocabulary, generator=torch.Generator().manual_seed(1))
    losses = Session.next_token_losses(SimpleNamespace(archive=found._archive), logits, found.tokens)  # type: ignore[arg-type]
    assert losses.lengths.tolist() == (found.train.lengths - 1).tolist()
    for text in range(3):
        real = inputs.input_ids[text][inputs.attention_mask[text].bool()]
        expected = [float(-logits[text, at].log_softmax(0)[int(real[at + 1])]) for at in range(len(real) - 1)]
        assert losses[text].tolist() == pytest.approx(expected, rel=1e-5)
