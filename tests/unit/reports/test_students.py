"""Copies of a tuned model: what is learnt from its answers, and what from the task."""

from __future__ import annotations

import random

import pytest
import torch

from cutlayer.data import Dataset
from cutlayer.models import load_tokenizer
from cutlayer.reports.audit import train_students
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name


def texts(count, seed=0):
    """Texts of which a word of two tells the label."""
    rng = random.Random(seed)
    labels = [rng.choice(("no", "yes")) for _ in range(count)]
    rows = [(" ".join([*(f"w{rng.randrange(40)}" for _ in range(6)), "w100" if label == "yes" else "w101"]),)
            for label in labels]  # fmt: skip
    return Dataset(tuple(rows), tuple(labels))


@pytest.fixture(scope="module")
def tokenizer(tiny_model):  # noqa: F811
    return load_tokenizer(str(tiny_model))


def students(data, answers, tokenizer, **changes):
    return train_students(data, answers, **{"tokenizer": tokenizer, "table": None, "seed": 1, **changes})


def test_a_model_that_is_right_is_copied_by_labels_as_well(tokenizer):
    data = texts(1500)
    found = students(data, data.labels, tokenizer)
    assert [each.queries for each in found] == [100, 1000]
    assert {each.n for each in found} == {300}
    for each in found:
        assert each.agreement == each.from_labels > 0.95
        assert each.agreement_ci[0] <= each.agreement <= each.agreement_ci[1]


def test_what_only_the_model_says_is_learnt_from_its_answers_alone(tokenizer):
    """It answers by another word than the label's."""
    data = texts(800)
    answers = ["yes" if "w7" in row[0].split() else "no" for row in data.texts]
    (few, all_of_them) = students(data, answers, tokenizer)
    assert (few.queries, all_of_them.queries) == (100, 640)
    most = max(answers.count("yes"), answers.count("no")) / len(answers)
    assert all_of_them.agreement > most + 0.05
    assert all_of_them.from_labels < most - 0.1


def test_rows_of_the_table_help_where_words_are_rare(tokenizer):
    """A model that answers by what its table says of words: a student that holds the table copies it from fewer."""
    rng = random.Random(3)
    table = torch.randn(len(tokenizer), 8, generator=torch.Generator().manual_seed(0))
    words = [f"w{number}" for number in range(240)]
    sides = {word: float(table[tokenizer.convert_tokens_to_ids(word), 0]) for word in words}
    data = Dataset(tuple((" ".join(rng.sample(words, 4)),) for _ in range(300)), ("a", "b") * 150)
    answers = ["yes" if sum(sides[word] for word in text.split()) > 0 else "no" for (text,) in data.texts]
    bare, held = (students(data, answers, tokenizer, table=given)[0] for given in (None, table))
    assert held.agreement > bare.agreement + 0.1


@pytest.mark.parametrize("count", [60, 124])
def test_too_few_texts_teach_nothing(count, tokenizer):
    assert students(texts(count), texts(count).labels, tokenizer) == ()


def test_one_answer_to_everything_is_no_model_to_copy(tokenizer):
    data = texts(200)
    assert students(data, ["yes"] * 200, tokenizer) == ()


def test_texts_without_words_are_no_error(tokenizer):
    data = Dataset(((".",),) * 200, ("a", "b") * 100)
    (first, *_) = students(data, ["a", "b"] * 100, tokenizer)
    assert first.n == 40
