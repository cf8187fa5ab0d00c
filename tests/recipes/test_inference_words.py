"""Recipe `inference`, part `figure-3-rapt-words`: a small run, and age in bins."""

from __future__ import annotations

import random

import pandas
import pytest

from cutlayer.attacks.evaluation import attributes
from cutlayer.customer import Silent
from cutlayer.recipes.attribute_readings import INVERTED, corpus_of
from cutlayer.recipes.inference import RECIPE
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.replacement import Source
from cutlayer.recipes.word_readings import WordInferenceCell
from cutlayer.recipes.word_training import READ
from tests.recipes.test_inference import named, write
from tests.recipes.test_rapt import sentences

SHIPPED = RECIPE.config
SCALE = SHIPPED.sizes[Size.TINY].model_copy(
    update={"labelled": (40,), "attacked": 40, "inverted": 40, "public": 60, "tokens": 24, "named": 5, "annotated": 5}
)
WORDS = SHIPPED.words.model_copy(
    update={
        "arms": {name: SHIPPED.words.arms[name] for name in ("pct2t", "rapt")}, "replaced": (0.3,),
        "attacks": ("nearest-neighbour", "mlp-inversion", "autoencoder-inversion", "maximum-posterior"),
    }
)  # fmt: skip
CONFIG = SHIPPED.model_copy(update={"words": WORDS, "sizes": {Size.TINY: SCALE}})


def posts(count, seed):
    rng = random.Random(seed)
    return [
        {
            "text": f"{text} {rng.choice(('he', 'she'))} saw {text}", "gender": ("female", "male")[number % 2],
            "age_group": ("20s", "30s+")[number % 2], "age": 23 + number % 12, "author_id": 1000 * seed + number,
        }
        for number, (text, _) in enumerate(sentences(count, seed))
    ]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for seed, part in enumerate(("train", "dev", "test")):
        write(folder, "blog_authorship", part, posts(70, seed))
    for seed, part in enumerate(("train", "test")):
        write(folder, "wnut17", part, named(10, seed))
    return folder


def options(data, out):
    return RecipeOptions(
        size=Size.TINY, seeds=1, model="starter", data=data, out=out, only=("figure-3-rapt-words",)
    )  # fmt: skip


def test_ages_are_bins_of_all_posts_in_their_order(data, tmp_path):
    with Lab(options(data, tmp_path)) as lab:
        cell = WordInferenceCell(
            model="", posts=CONFIG.posts, entities=CONFIG.entities, attack="attribute-mlp", column="age", labelled=40,
            scale=SCALE, arm=WORDS.arms["pct2t"], share=0.3, space=Source(name="starter", fingerprint=""),
        )  # fmt: skip
        corpus = corpus_of(cell, lab)
    assert corpus.classes["age"] == ("23-24", "25-26", "27-28", "29-30", "31-32", "33-34")
    assert set(corpus.classes) == {"gender", "age_group", "age"}
    assert set(corpus.known.labels["age"].tolist()) == set(range(6))
    assert corpus.posts()[INVERTED].texts == corpus.attacked.texts.texts[:40]


@pytest.mark.slow
def test_each_arm_is_attacked_on_words_and_attributes(data, tmp_path, monkeypatch):
    monkeypatch.setattr(attributes, "CONTROL_KNOWN", 160)
    monkeypatch.setattr(attributes, "CONTROL_ATTACKED", 160)
    report = RECIPE.using(CONFIG).run(options(data, tmp_path), Silent())
    assert not report.failures
    frame = pandas.DataFrame(report.content["table"])
    read = frame[frame["metric"] == READ]
    assert {(row.arm, row.attack) for row in read.itertuples()} >= {
        (arm, attack) for arm in ("pct2t", "rapt") for attack in ("nearest-neighbour", "maximum-posterior")
    }
    for arm in ("pct2t", "rapt"):
        own = frame[(frame["arm"] == arm) & (frame["attack"] == "nearest-neighbour")]
        found = dict(zip(own["metric"], own["value"], strict=True))
        # the nearest word of what was released is what was released
        assert found[READ] == pytest.approx(1 - found["replaced"], abs=0.03)
        assert found["replaced"] == pytest.approx(0.3, abs=0.08)
        assert 0.2 < found["in clear"] < 0.8
    assert "reconstruction-head" in set(frame[frame["arm"] == "rapt"]["attack"])
    most = frame[(frame["attack"] == "strongest") & (frame["metric"] == READ)].set_index("arm")["value"]
    assert most["rapt"] == read[(read["arm"] == "rapt") & (read["attack"] != "strongest")]["value"].max()
    # what texts become is the same with public words before them
    eta = frame[(frame["metric"] == "eta") & (frame["attack"] == "nearest-neighbour")].set_index("arm")["value"]
    assert eta["pct2t"] == eta["rapt"]
    of_authors = frame[frame["attack"] == "attribute-mlp"]
    assert set(of_authors["column"].dropna()) == {"gender", "age_group", "age"}
    clear = of_authors[(of_authors["arm"] == "clear") & (of_authors["metric"] == "success")]
    assert set(clear["column"]) == {"gender", "age_group", "age"}
    assert (tmp_path / "figure-3-rapt-words.png").stat().st_size > 5000
