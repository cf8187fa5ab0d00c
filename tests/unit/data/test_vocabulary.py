from __future__ import annotations

import gzip
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import ConfigError, DataError
from cutlayer.data import UNIVERSAL_TAGS, WordCounts, load_word_counts
from training.words import select

WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda word: not any(map(str.isspace, word))
)
SECRET = "wombat"


@given(st.dictionaries(st.tuples(WORD, st.sampled_from(UNIVERSAL_TAGS)), st.integers(1, 2**53), min_size=1, max_size=9))
@pytest.mark.parametrize("ending", ["tsv", "tsv.gz"])
def test_what_was_written_is_read(tmp_path_factory, ending, pairs):
    path = tmp_path_factory.mktemp("words") / f"words.{ending}"
    given_ = WordCounts(
        tuple(word for word, _ in pairs), tuple(tag for _, tag in pairs), torch.tensor(list(pairs.values()))
    )
    given_.write(path)
    found = WordCounts.read(path)
    assert (found.words, found.tags) == (given_.words, given_.tags)
    assert torch.equal(found.counts, given_.counts)
    first = path.read_bytes()
    found.write(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{SECRET}\tNOUN", "2 fields"),
        (f"{SECRET}", "1 field, where"),
        ("", "1 field, where"),
        (f"{SECRET}\tNOUN\t3\t4", "4 fields"),
        ("\tNOUN\t3", "no word"),
        (f"a {SECRET}\tNOUN\t3", "no word"),
        (f"{SECRET}\tnoun\t3", "no Universal part of speech"),
        (f"{SECRET}\tNN\t3", "no Universal part of speech"),
        (f"{SECRET}\tNOUN\t0", "no count"),
        (f"{SECRET}\tNOUN\t-3", "no count"),
        (f"{SECRET}\tNOUN\t3.5", "no count"),
        (f"{SECRET}\tNOUN\t٣", "no count"),
        (f"{SECRET}\tNOUN\t1_0", "no count"),
        (f"{SECRET}\tNOUN\t{10**400}", "no count"),
        ("cat\tNOUN\t9", "repeats"),
    ],
)
def test_a_line_that_is_off_is_named_and_not_shown(tmp_path, line, message):
    path = tmp_path / "words.tsv"
    path.write_text(f"cat\tNOUN\t3\n{line}\ndog\tNOUN\t2\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"line 2 .*{message}|line 2 {message}") as refused:
        load_word_counts(path)
    assert SECRET not in str(refused.value)


def test_files_that_hold_no_words_are_refused(tmp_path):
    path = tmp_path / "words.tsv"
    with pytest.raises(DataError, match="no file"):
        load_word_counts(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="holds no words"):
        load_word_counts(path)
    path.write_bytes(b"caf\xe9\tNOUN\t3\n")
    with pytest.raises(DataError, match="not UTF-8"):
        load_word_counts(path)
    packed = tmp_path / "words.tsv.gz"
    packed.write_bytes(gzip.compress("".join(f"cat{n}\tNOUN\t3\n" for n in range(500)).encode())[:-9])
    with pytest.raises(DataError, match="gzip"):
        load_word_counts(packed)


def test_line_ends_of_windows_are_no_part_of_the_count(tmp_path):
    path = tmp_path / "words.tsv"
    path.write_bytes(b"cat\tNOUN\t3\r\nrun\tVERB\t2\r\n")
    assert load_word_counts(path).words == ("cat", "run")


def test_each_word_needs_a_tag_and_a_count():
    with pytest.raises(DataError, match="one tag and one count"):
        WordCounts(("cat",), ("NOUN",), torch.tensor([3, 4]))


def test_the_bundled_words_cover_every_part_of_speech():
    found = load_word_counts()
    by_tag = Counter(found.tags)
    assert set(by_tag) == set(UNIVERSAL_TAGS)
    assert 20_000 <= len(found) <= 30_000
    assert all(by_tag[tag] >= least for tag, least in [("NOUN", 8000), ("VERB", 5000), ("PRON", 50), ("ADP", 50)])
    assert all(word == word.lower() for word in found.words)
    words = {tag: set() for tag in by_tag}
    for word, tag in zip(found.words, found.tags, strict=True):
        words[tag].add(word)
    assert {"man", "house"} <= words["NOUN"]
    assert {"she", "they"} <= words["PRON"]
    assert {"of", "in"} <= words["ADP"]
    assert {"run", "said"} <= words["VERB"]
    assert words["PUNCT"] >= {",", "."}


def test_errors_of_the_tagger_and_what_is_written_otherwise_are_left_out():
    uses = {
        ("man", "NOUN"): 990,
        ("man", "VERB"): 10,  # 1 %
        ("run", "NOUN"): 300,
        ("run", "VERB"): 700,
        ("rare", "ADJ"): 2,
        ("walter", "SCONJ"): 60,  # 6 %, of a closed class
        ("walter", "PROPN"): 940,
        ("in", "SCONJ"): 300,  # 3 %, but often
        ("in", "ADP"): 9700,
        ("o'clock", "ADV"): 50,
        ("'s", "PART"): 5000,
        ("mr.", "PROPN"): 5000,
        ("1,500", "NUM"): 7,
        ("five", "NUM"): 70,
        ("7", "NOUN"): 70,
        ("--", "PUNCT"): 70,
        ("a", "PUNCT"): 70,
    }
    found = select(uses, least_open=8, least_closed=20, least_other=5)
    assert list(zip(found.words, found.tags, strict=True)) == [
        ("in", "ADP"),
        ("o'clock", "ADV"),
        ("man", "NOUN"),
        ("run", "NOUN"),
        ("five", "NUM"),
        ("1,500", "NUM"),
        ("walter", "PROPN"),
        ("--", "PUNCT"),
        ("in", "SCONJ"),
        ("run", "VERB"),
    ]
    assert found.counts[0] == 9700
