from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from pathlib import Path

import pytest
import spacy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutlayer.data.tagger
from cutlayer.core import DataError, MissingExtraError, ModelError, extras
from cutlayer.data import UNIVERSAL_TAGS, TaggedTexts, Tagger, load_tagger
from cutlayer.data.tagger import BUNDLED

# everything but halves of surrogate pairs, with blanks of many kinds and what tokenizers stumble over made likely
PIECES = st.sampled_from(
    [
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\xa0",
        "\u2003",
        "\u2028",
        "\x00",
        "👩‍👩‍👧",
        "don't",
        "e-mail",
        "3.5",
        "(:",
        "U.S.",
        "É",
    ]
)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.lists(st.one_of(PIECES, st.text(st.characters(exclude_categories=["Cs"]), max_size=5)), max_size=12).map(
        "".join
    ),
)
SENTENCES = (
    "The doctor gave her 20 mg of aspirin in Leeds .",
    "it 's a charming and often affecting journey .",
    "We can't come; Anna (my sister) won't either!",
    "",
    " \n",
    "unflinchingly bleak and desperate",
    "Run the run, then book the book\tand light the light.",
    "Dr. Müller paid $ 5 on 3/4/2021 – too much?",
)
TREEBANK = Path(os.environ.get("CUTLAYER_DATA", "")) / "ud_english_ewt"


@pytest.fixture(scope="module")
def tagger():
    return load_tagger()


def of_text(tagged, number):
    """A text's part of the whole, as plain values."""
    end = int(tagged.lengths[: number + 1].sum())
    start = end - int(tagged.lengths[number])
    return tagged.before[number], tagged.words[start:end], tagged.tags[start:end], tagged.after[start:end]


def test_words_have_their_part_of_speech_and_the_blanks_between_them(tagger):
    found = tagger.tag(["  The cat  sees two dogs.\n", "", "\t "])
    assert found.words == ("The", "cat", "sees", "two", "dogs", ".")
    assert found.tags == ("DET", "NOUN", "VERB", "NUM", "NOUN", "PUNCT")
    assert found.after == (" ", "  ", " ", " ", "", "\n")
    assert found.before == ("  ", "", "\t ")
    assert found.lengths.tolist() == [6, 0, 0]
    assert found.lengths.dtype == torch.int64
    assert len(found) == 3


def test_nothing_is_nothing(tagger):
    assert tagger.tag([]).texts() == []


@settings(deadline=None, max_examples=150)
@given(st.lists(TEXT, max_size=5))
def test_words_and_blanks_join_to_the_texts_again(tagger, texts):
    found = tagger.tag(texts)
    assert found.texts() == texts
    assert all(set(blanks) <= set(filter(str.isspace, blanks)) for blanks in (*found.after, *found.before))
    assert not any(word == "" or word.isspace() for word in found.words)
    assert set(found.tags) <= set(UNIVERSAL_TAGS)


@settings(deadline=None, max_examples=30)
@given(st.lists(TEXT, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_a_text_has_the_same_tags_in_any_company(tagger, texts, rng):
    alone = [of_text(tagger.tag([text]), 0) for text in texts]
    order = rng.sample(range(len(texts)), len(texts))
    together = tagger.tag([texts[number] for number in order])
    assert [of_text(together, place) for place in range(len(texts))] == [alone[number] for number in order]


def test_scores_are_equal_to_the_last_bit_in_batches_of_any_size(tagger):
    """Tags could be equal by luck; where scores are, no tie can break another way."""
    pipeline = tagger._pipeline
    assert tagger._same_in_any_batch
    texts = [" ".join(random.Random(n).sample(" ".join(SENTENCES).split(), 1 + n % 30)) for n in range(300)]
    score = pipeline.get_pipe("morphologizer").model.predict
    documents = [pipeline.make_doc(text) for text in texts]
    alone = [score([document])[0] for document in documents]
    for size in (2, 17, 300):
        batches = [documents[start : start + size] for start in range(0, len(texts), size)]
        together = [scores for batch in batches for scores in score(batch)]
        assert all((one == other).all() for one, other in zip(alone, together, strict=True))


def test_a_pipeline_whose_networks_may_round_otherwise_tags_texts_one_by_one(tmp_path):
    pipeline = spacy.load(BUNDLED)
    pipeline.add_pipe("sentencizer")
    pipeline.to_disk(tmp_path)
    other = load_tagger(str(tmp_path))
    assert [len(batch) for batch in other._batches(SENTENCES)] == [1] * len(SENTENCES)
    assert other.tag(SENTENCES).tags == load_tagger().tag(SENTENCES).tags


def test_batches_hold_so_many_characters_at_most(tagger, monkeypatch):
    texts = [*SENTENCES, "word " * 100, "x" * 130, "a b " * 20] * 3
    whole = tagger.tag(texts)
    monkeypatch.setattr(cutlayer.data.tagger, "_BATCH", 64)
    batches = list(tagger._batches(texts))
    assert max(sum(len(piece) for _, piece in batch) for batch in batches) <= 64
    assert tagger.tag(texts).texts() == texts
    # a piece ends at a blank: only the word without one is cut
    assert set(tagger.tag(texts).words) - set(whole.words) == {"x" * 64, "x" * 2}


def test_a_text_longer_than_the_pipeline_takes_is_tagged_in_pieces(tmp_path):
    pipeline = spacy.load(BUNDLED)
    pipeline.max_length = 100
    found = Tagger(pipeline).tag(["The cat sees two dogs.\n" * 40])
    assert found.texts() == ["The cat sees two dogs.\n" * 40]
    assert found.words == ("The", "cat", "sees", "two", "dogs", ".") * 40


def test_the_vocabulary_does_not_grow_with_what_was_tagged(tagger):
    before = len(tagger._pipeline.vocab.strings)
    tagger.tag([f"zyx{n}q wvu{n}p" for n in range(500)])
    assert len(tagger._pipeline.vocab.strings) == before


def test_other_words_stand_in_the_same_places(tagger):
    found = tagger.tag(["Anna  runs.", " "])
    assert found.texts(["Ben", "sleeps", "!"]) == ["Ben  sleeps!", " "]
    with pytest.raises(DataError, match="2 words were given for 3 places"):
        found.texts(["Ben", "sleeps"])


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="one tag"):
        TaggedTexts(("a", "b"), ("DET",), ("", ""), ("",), torch.tensor([2]))
    with pytest.raises(DataError, match="each text"):
        TaggedTexts(("a",), ("DET",), ("",), ("", ""), torch.tensor([1]))


def test_half_a_surrogate_pair_is_refused_by_row(tagger):
    with pytest.raises(DataError, match="Text 2 holds half of a surrogate pair") as refused:
        tagger.tag(["fine", "wombat \ud800"])
    assert "wombat" not in str(refused.value)


# ---------------------------------------------------------------- which pipeline


def test_its_name_is_of_the_pipeline_its_version_and_its_weights(tagger, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(BUNDLED, copy)
    (copy / "README.md").write_text("another card")
    assert tagger.name.startswith("en_cutlayer_tagger-1.0.0-")
    assert load_tagger(str(copy)).name == tagger.name
    pipeline = spacy.load(copy)
    pipeline.get_pipe("morphologizer").model.get_ref("softmax").get_param("b")[0] += 1e-6
    pipeline.to_disk(copy)
    assert load_tagger(str(copy)).name != tagger.name


@pytest.mark.parametrize("name", ["en_core_web_none", "no/such/folder", "", "a" * 5000, "hub:someone/tagger"])
def test_a_pipeline_that_is_not_there_is_a_model_error(name):
    with pytest.raises(ModelError, match="There is no spaCy pipeline"):
        load_tagger(name)


def test_a_damaged_pipeline_is_a_model_error(tmp_path):
    shutil.copytree(BUNDLED, tmp_path / "broken")
    weights = tmp_path / "broken/morphologizer/model"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tagger(str(tmp_path / "broken"))
    (tmp_path / "broken/morphologizer/cfg").unlink()
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tagger(str(tmp_path / "broken"))
    (tmp_path / "broken/config.cfg").write_text("nonsense")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tagger(str(tmp_path / "broken"))


def test_a_pipeline_without_parts_of_speech_is_a_model_error(tmp_path):
    spacy.blank("en").to_disk(tmp_path)
    with pytest.raises(ModelError, match="sets no Universal part of speech"):
        load_tagger(str(tmp_path))


def test_a_pipeline_without_a_folder_has_no_name_and_is_refused():
    with pytest.raises(ModelError, match="loaded from a folder"):
        Tagger(spacy.blank("en"))


def test_without_spacy_the_extra_is_named(monkeypatch):
    def missing(extra):
        raise MissingExtraError(extra, ["spacy"])

    monkeypatch.setattr(cutlayer.data.tagger, "require", missing)
    with pytest.raises(MissingExtraError, match=r"cutlayer\[words\]"):
        load_tagger()
    assert extras.require is not missing


# ---------------------------------------------------------------- the one that comes with the package


def test_the_bundled_pipeline_is_small_and_has_its_own_licence():
    files = [file for file in BUNDLED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 8_000_000
    assert "CC BY-SA 4.0" in (BUNDLED / "LICENSE").read_text(encoding="utf-8")
    assert "license: cc-by-sa-4.0" in (BUNDLED / "README.md").read_text(encoding="utf-8")
    # no list of words that the treebank has
    assert not (BUNDLED / "vocab").exists()


@pytest.mark.skipif(not TREEBANK.is_dir(), reason="CUTLAYER_DATA names no folder with ud_english_ewt")
@pytest.mark.parametrize(("lower", "least"), [(False, 0.94), (True, 0.925)])
def test_the_bundled_pipeline_tags_unseen_sentences_well(tagger, lower, least):
    with gzip.open(TREEBANK / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = random.Random(1).sample([json.loads(line) for line in lines], 700)
    pipeline = tagger._pipeline
    right = []
    for row in rows:
        words = [word.lower() if lower else word for word in row["tokens"]]
        document = spacy.tokens.Doc(pipeline.vocab, words=words, spaces=row["space_after"])
        right += [token.pos_ == tag for token, tag in zip(pipeline(document), row["upos"], strict=True)]
    assert len(right) > 8000
    assert sum(right) / len(right) >= least
