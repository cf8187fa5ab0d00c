from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import ConfigError, DataError
from cutlayer.data import Dataset


def numbered(labels, **attributes):
    return Dataset(tuple((str(i),) for i in range(len(labels))), tuple(labels), attributes)


@given(
    labels=st.lists(st.sampled_from("abc"), min_size=2, max_size=200),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
)
def test_a_split_keeps_every_row_once_its_order_and_the_labels_shares(labels, share, seed):
    dataset = numbered(labels)
    wanted = math.ceil(round(share * len(labels), 6))
    if wanted == len(labels):
        with pytest.raises(ConfigError):
            dataset.split_off(share, seed=seed)
        return
    rest, part = dataset.split_off(share, seed=seed)
    assert len(part) == wanted
    assert sorted(rest.texts + part.texts, key=lambda row: int(row[0])) == list(dataset.texts)
    for side in (rest, part):
        numbers = [int(row[0]) for row in side.texts]
        assert numbers == sorted(numbers)
        assert side.labels == tuple(labels[i] for i in numbers)
    for label, count in Counter(labels).items():
        assert abs(Counter(part.labels)[label] - wanted * count / len(labels)) <= 1


def test_the_paper_holds_out_674_of_67349_phrases():
    rest, part = numbered("01" * 33674 + "0").split_off(0.01, seed=0)
    assert (len(rest), len(part)) == (66675, 674)


def test_a_split_repeats_with_its_seed_and_changes_with_it():
    dataset = numbered("ab" * 50)
    assert dataset.split_off(0.2, seed=1)[1].texts == dataset.split_off(0.2, seed=1)[1].texts
    assert dataset.split_off(0.2, seed=1)[1].texts != dataset.split_off(0.2, seed=2)[1].texts


def test_a_split_without_labels():
    dataset = Dataset(tuple((str(i),) for i in range(10)))
    rest, part = dataset.split_off(0.3, seed=0)
    assert (len(rest), len(part), part.labels) == (7, 3, None)


@given(authors=st.lists(st.sampled_from("stuvwx"), min_size=4, max_size=60), seed=st.integers(0, 9))
def test_a_split_by_group_leaves_no_group_on_both_sides(authors, seed):
    dataset = numbered(["l"] * len(authors), author=tuple(authors))
    if len(set(authors)) == 1:
        with pytest.raises(ConfigError, match="one value in all rows"):
            dataset.split_off(0.2, seed=seed, group="author")
        return
    try:
        rest, part = dataset.split_off(0.2, seed=seed, group="author")
    except ConfigError:
        assert max(Counter(authors).values()) > 0.5 * len(authors)
        return
    assert not set(rest.attributes["author"]) & set(part.attributes["author"])
    assert len(part) >= math.ceil(round(0.2 * len(authors), 6))


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_shares_out_of_range(share):
    with pytest.raises(ConfigError, match="share"):
        numbered("ab" * 10).split_off(share, seed=0)


def test_columns_of_unequal_length_and_rows_of_unequal_width():
    with pytest.raises(DataError):
        Dataset((("a",), ("b",)), ("x",))
    with pytest.raises(DataError):
        Dataset((("a",), ("b", "c")))
    with pytest.raises(DataError):
        Dataset((("a", "b", "c"),))


@pytest.mark.parametrize("column", ["text", "label", "attribute"])
def test_half_of_a_surrogate_pair_is_named_by_its_row_and_not_quoted(column):
    bad = {name: "secret \ud83d" if name == column else "fine" for name in ("text", "label", "attribute")}
    with pytest.raises(DataError, match=r"Row 2 holds half of a surrogate pair") as caught:
        Dataset((("fine",), (bad["text"],)), ("a", bad["label"]), {"who": ("me", bad["attribute"])})
    assert "secret" not in f"{caught.value}{caught.value.__cause__}"
    Dataset((("whole \U0001f600",),))


def test_what_is_no_text_is_named_by_its_row():
    with pytest.raises(DataError, match=r"Row 2 holds a value of type NoneType"):
        Dataset((("fine", "fine"), ("fine", None)))
