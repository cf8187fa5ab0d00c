"""A space that public text makes: what is counted, what it tells, and what stands close in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cutlayer.customer import Silent
from cutlayer.recipes.cooccurrence import Cooccurrence, counted, leading_directions, make_space, positive_information
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.replacement import Replacement, Source, made_here
from cutlayer.recipes.tasks import TextFile
from tests.recipes.test_rapt import write_split


def test_neighbours_count_by_distance_both_ways_and_within_a_text():
    counts = counted([[[0, 1, 2], [3]], [[2, 0]]], size=4, window=2).toarray()
    assert counts.tolist() == [[0, 1, 1.5, 0], [1, 0, 1, 0], [1.5, 1, 0, 0], [0, 0, 0, 0]]


def test_information_is_positive_and_of_smoothed_neighbours():
    counts = np.array([[0.0, 3.0, 1.0], [3.0, 0.0, 0.0], [1.0, 0.0, 8.0]])
    found = positive_information(csr_matrix(counts), smoothing=0.75).toarray()
    own = counts.sum(1)
    neighbours = own**0.75 / (own**0.75).sum()
    for row in range(3):
        for column in range(3):
            value = counts[row, column]
            direct = math.log(value / own[row] / neighbours[column]) if value else 0.0
            assert found[row, column] == pytest.approx(max(0.0, direct))
    assert (found == 0).any()
    assert (found > 0).any()


def test_directions_make_the_matrix_again_and_are_the_same_every_time():
    values = np.random.default_rng(3).normal(size=(9, 9))
    symmetric = values + values.T
    first = leading_directions(csr_matrix(symmetric), width=4, exponent=1.0)
    left, sizes, _ = np.linalg.svd(symmetric)
    assert np.allclose(np.abs(first), np.abs(left[:, :4] * sizes[:4]))
    assert np.array_equal(first, leading_directions(csr_matrix(symmetric), width=4, exponent=1.0))


def test_words_of_the_same_contexts_lie_close_and_can_be_named_as_a_space(tmp_path):
    pytest.importorskip("spacy", reason="the tagger needs spaCy: pip install 'cutlayer[words]'")
    rng = np.random.default_rng(5)
    animals, cities = ("cat", "dog", "horse"), ("london", "paris", "rome")
    lines: list[str] = []
    for _ in range(400):
        lines += [f"the {rng.choice(animals)} ate bread", f"we went to {rng.choice(cities)} by train"]
    write_split(tmp_path / "data", "classic_books", "train_part1", [(line, 0) for line in lines], ("text", "label"))
    asked = Cooccurrence(texts=(TextFile(name="classic_books", part="train_part1"),), tokenizer="starter", width=4)
    tables = []
    for out in ("a", "b"):
        options = RecipeOptions(
            size=Size.TINY, seeds=1, model="starter", data=tmp_path / "data", out=tmp_path / out, only=()
        )
        with Lab(options, Silent()) as lab:
            named = make_space("ppmi-svd", asked, lab)
            folder = made_here(named, lab)
            written = (folder / "config.json").stat().st_mtime_ns
            assert make_space("ppmi-svd", asked, lab) == named
            assert (folder / "config.json").stat().st_mtime_ns == written, "made once"
            narrower = make_space("ppmi-svd", asked.model_copy(update={"width": 3}), lab)
            assert narrower != named, "other settings make another space"
            source = Source.of(named, lab)
            model = lab.model(source.placed(lab), head=None)
            tables.append(model.whole.get_input_embeddings().weight.detach().numpy())
            space = Replacement(words=("noun",), candidates="category", space=source, components=2).privacy(5.0, lab)
            assert space.source == (str(folder), 2)
            # what cells are known by holds no folder of this machine
            assert str(tmp_path) not in source.model_dump_json()
    assert np.array_equal(*tables)
    ids = {word: model.tokenizer.convert_tokens_to_ids(word) for word in (*animals, *cities)}
    rows = {word: tables[0][number] for word, number in ids.items()}
    apart = np.linalg.norm(rows["cat"] - rows["london"])
    assert max(np.linalg.norm(rows["cat"] - rows["dog"]), np.linalg.norm(rows["london"] - rows["rome"])) < apart / 3
