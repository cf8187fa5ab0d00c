from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections import Counter

import pytest

from cutlayer.data import read_dataset, sample_path
from training.sample_corpus import COLUMNS, SPLITS, compress, main, make_splits


def rows(split):
    return list(csv.DictReader(gzip.decompress(sample_path(split).read_bytes()).decode().splitlines()))


def test_the_generator_makes_the_shipped_corpus():
    assert {split: gzip.decompress(sample_path(split).read_bytes()) for split in SPLITS} == make_splits()


@pytest.mark.skipif("ng" in zlib.ZLIB_RUNTIME_VERSION, reason="zlib-ng packs the same text into other bytes than zlib")
def test_the_generator_makes_the_shipped_files_byte_for_byte(tmp_path):
    main(tmp_path)
    for split in SPLITS:
        assert (tmp_path / f"{split}.csv.gz").read_bytes() == sample_path(split).read_bytes()


def test_packing_keeps_neither_time_nor_name():
    assert compress(b"x")[4:8] == bytes(4)
    assert compress(b"x") == compress(b"x")


def test_it_is_small_and_says_that_it_is_synthetic():
    assert sum(sample_path(split).stat().st_size for split in SPLITS) < 200_000
    for split in SPLITS:
        assert {row["origin"] for row in rows(split)} == {"synthetic"}


def test_shape():
    assert tuple(rows("train")[0]) == COLUMNS
    assert {split: len(rows(split)) for split in SPLITS} == SPLITS
    for column, classes in (("label", 4), ("age_group", 3)):
        counts = Counter(row[column] for row in rows("train"))
        assert len(counts) == classes
        assert min(counts.values()) > 0.8 * SPLITS["train"] / classes


def test_texts_differ_and_do_not_cross_the_splits():
    texts = [row["text"] for split in SPLITS for row in rows(split)]
    assert len(set(texts)) == len(texts)


def test_entities_stand_where_they_are_said_to():
    seen = Counter()
    for row in rows("train") + rows("test"):
        for start, end, kind in json.loads(row["entities"]):
            name = row["text"][start:end]
            assert name == name.strip() != ""
            assert name[0].isupper() or row["text"].islower()
            seen[kind] += 1
    assert set(seen) == {"person", "city", "product"}
    assert min(seen.values()) > 300


def test_the_readers_read_it():
    dataset = read_dataset(
        sample_path("test"), text_column="text", label_column="label", attribute_columns=["age_group", "entities"]
    )
    assert len(dataset) == 400
    assert set(dataset.labels) == {"account", "billing", "delivery", "technical"}
