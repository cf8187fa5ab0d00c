"""Topics as labels: found in texts, kept, and the same for whoever runs a recipe again."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cutlayer.core import DataError
from cutlayer.data import Dataset
from cutlayer.recipes import training
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.sap import RECIPE
from cutlayer.recipes.tasks import Limits, Splits, Task, Topics, find_topics
from tests.recipes import worlds

SUBJECTS = {
    "experiment": ["oven", "butter", "flour", "sugar", "recipe", "bake", "dough", "spoon", "pan", "salt"],
    "football": ["goal", "striker", "keeper", "match", "league", "referee", "penalty", "stadium", "coach", "pitch"],
    "garden": ["soil", "seed", "rose", "shovel", "weed", "hedge", "lawn", "compost", "flower", "bulb"],
}
TOPICS = Topics(count=3, share=0.7, least_texts=2, most_texts=0.6)


def posts(n, *, seed):
    """Posts about one subject each, and every tenth about all of them."""
    rng = random.Random(seed)
    made = []
    for number in range(n):
        subject = rng.choice(sorted(SUBJECTS))
        mixed = number % 10 == 0
        words = [word for each in SUBJECTS.values() for word in each] if mixed else SUBJECTS[subject]
        made.append((" ".join(rng.choices(words, k=30)), "mixed" if mixed else subject))
    return made


def as_dataset(rows):
    return Dataset(tuple((text,) for text, _ in rows), attributes={"subject": tuple(subject for _, subject in rows)})


def test_topics_are_what_texts_are_about():
    train, test = as_dataset(posts(300, seed=1)), as_dataset(posts(100, seed=2))
    labelled = find_topics([train, test], TOPICS, seed=0).apply([train, test])
    for dataset, before in zip(labelled, (train, test), strict=True):
        kept = Counter(zip(dataset.attributes["subject"], dataset.labels, strict=True))
        pure = {pair: n for pair, n in kept.items() if pair[0] != "mixed"}
        assert len(pure) == len({label for _, label in pure}) == len(SUBJECTS)  # one topic for each subject
        assert sum(pure.values()) >= 0.98 * sum(1 for each in before.attributes["subject"] if each != "mixed")
        assert kept.total() - sum(pure.values()) <= 0.02 * len(before)  # texts about everything have no label


def test_later_files_have_no_part_in_what_the_topics_are():
    train, test = as_dataset(posts(200, seed=1)), as_dataset(posts(50, seed=2))
    alone, together = (find_topics(files, TOPICS, seed=0) for files in ([train], [train, test]))
    assert alone.of[0] == together.of[0]


def test_topics_of_other_files_are_refused():
    train = as_dataset(posts(200, seed=1))
    found = find_topics([train], TOPICS, seed=0)
    for other in (train.select(range(10)), as_dataset(posts(200, seed=3))):
        with pytest.raises(DataError, match="other files"):
            found.apply([other])


def test_texts_without_common_words_have_no_topics():
    few = as_dataset(posts(5, seed=1))
    with pytest.raises(DataError, match="5 training texts") as error:
        find_topics([few], Topics(), seed=0)
    assert "least_texts" in error.value.remedy


@pytest.fixture
def task(tmp_path):
    for split, n in (("train", 300), ("test", 80)):
        worlds.write_split(tmp_path / "data", "posts", split, posts(n, seed=n), ("text", "subject"))
    return Task(name="posts", title="Posts", label_column="subject", dev_share=0.1, topics=TOPICS)


def test_a_task_takes_topics_in_place_of_its_labels(task, tmp_path):
    splits = Splits.read(task, tmp_path / "data", Limits(train=100))
    assert len(splits.train) == 100
    assert set(splits.train.labels) == set(splits.test.labels) == {f"topic {k}" for k in range(3)}


def test_an_experiment_keeps_the_topics_it_began_with(task, tmp_path, monkeypatch):
    options = RecipeOptions(size=Size.TINY, model="", data=tmp_path / "data", out=tmp_path / "out")

    def splits():
        with Lab(options) as lab:
            return training.splits(lab, task, Limits())

    first = splits()
    monkeypatch.setattr(training, "find_topics", None)
    assert splits().train.labels == first.train.labels
    # another way to find them is another experiment
    task = task.model_copy(update={"topics": TOPICS.model_copy(update={"share": 0.9})})
    with pytest.raises(TypeError):
        splits()


@pytest.mark.slow
def test_topics_of_the_public_posts(public_data):
    task = RECIPE.config.task("blog_authorship")
    splits = Splits.read(task, public_data, Limits())
    for part in (splits.train, splits.dev, splits.test):
        shares = [n / len(part) for n in Counter(part.labels).values()]
        assert len(shares) == task.topics.count
        assert max(shares) < 0.4
    sides = [set(side.attributes[task.group]) for side in (splits.train, splits.dev, splits.test)]
    assert not sides[0] & sides[1]
    assert not (sides[0] | sides[1]) & sides[2]
    rows = [len(part) for part in (splits.train, splits.dev, splits.test)]
    assert sum(rows[:2]) == pytest.approx(7098 + 887, rel=0.1)  # Table 1's are about as many
    assert rows[1] == pytest.approx(rows[0] / 9, rel=0.05)
    assert rows[2] == pytest.approx(887, rel=0.2)
