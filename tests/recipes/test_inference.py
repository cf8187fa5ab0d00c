"""Recipe `inference`: a small run with all its cells, going on after a stop, and what it refuses."""

from __future__ import annotations

import gzip
import json
import math
import random
from unittest.mock import Mock

import pytest
import torch

from cutlayer.attacks import Measured, TokenTruth, measure
from cutlayer.attacks.evaluation import attributes
from cutlayer.core import ConfigError, DataError, Ragged, Stopped, Tokens
from cutlayer.customer import Home, Silent
from cutlayer.customer.releases import identifier, release
from cutlayer.privacy import TextToText
from cutlayer.recipes import RECIPES, lab
from cutlayer.recipes.attribute_readings import InferenceCell
from cutlayer.recipes.inference import RECIPE
from cutlayer.recipes.options import RecipeOptions, Size
from tests.service.tiny import write_tiny_bert

SHIPPED = RECIPE.config
SCALE = SHIPPED.sizes[Size.TINY].model_copy(
    update={
        "labelled": (40, 160), "attacked": 80, "tuned": (), "public": 150, "inverted": 40, "pairs": 4000,
        "queries": 100, "tokens": 24, "named": 150, "annotated": 600,
    }
)  # fmt: skip
POSTS = SHIPPED.posts.model_copy(update={"bins": {}})
CONFIG = SHIPPED.model_copy(update={"posts": POSTS, "replaced": (0.6,), "sizes": {Size.TINY: SCALE}})
OF_TOKENS = ("figure-3-sap", "figure-3-rapt")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Its table tells words apart better than a random one of this width does."""
    from transformers import AutoModelForSequenceClassification

    folder = write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.normal_(generator=torch.Generator().manual_seed(1))
    model.save_pretrained(folder)
    return str(folder)


def write(folder, name, part, rows):
    path = folder / name / f"{part}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def posts(count, seed, first_author):
    """Posts whose words tell the author's gender, by authors of two posts each; lengths tell nothing."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        author = first_author + number // 2
        gender = ("female", "male")[author % 2]
        low = 0 if gender == "female" else 100
        words = [f"w{low + rng.randrange(100) if rng.random() < 0.6 else rng.randrange(200)}" for _ in range(20)]
        age = ("20s", "30s+")[(author // 2) % 2]
        rows.append({"text": " ".join(words), "gender": gender, "age_group": age, "author_id": author})
    return rows


def named(count, seed):
    """Sentences of which some words are names."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(8):
            words.append(f"w{rng.randrange(200)}")
            tags.append("O")
            if rng.random() < 0.2:
                words += [f"w{200 + rng.randrange(20)}", f"w{220 + rng.randrange(20)}"]
                tags += ["B-person", "I-person"]
        rows.append({"tokens": words, "tags": tags})
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for place, (part, count) in enumerate((("train", 200), ("dev", 160), ("test", 90))):
        write(folder, "blog_authorship", part, posts(count, place, 1000 * place))
    write(folder, "wnut17", "train", named(600, 1))
    write(folder, "wnut17", "test", named(150, 2))
    return folder


def options(model, data, out, **changes):
    return RecipeOptions(**{"size": Size.TINY, "seeds": 1, "model": model, "data": data, "out": out, **changes})


@pytest.fixture
def short_controls(monkeypatch):
    """Controls of attacks on attributes, on fewer texts than they need to tell a cheat."""
    monkeypatch.setattr(attributes, "CONTROL_KNOWN", 160)
    monkeypatch.setattr(attributes, "CONTROL_ATTACKED", 160)


def test_it_is_registered_and_shows_its_settings():
    recipe = RECIPES["inference"]
    assert recipe.default_model == "starter"
    assert recipe.parts == ("figure-3-sap", "figure-3-rapt", "figure-3-rapt-words")
    assert set(SHIPPED.sizes) == set(Size)
    json.dumps(recipe.show())


@pytest.mark.slow
@pytest.mark.usefixtures("short_controls")
def test_both_figures_without_noise_and_with_it(tiny, data, tmp_path):
    report = RECIPE.using(CONFIG).run(options(tiny, data, tmp_path, only=OF_TOKENS), Silent())
    written = json.loads((tmp_path / "report.json").read_text())
    found = {}
    for each in written["cells"]:
        cell = each["cell"]
        found[cell["attack"], cell["column"], cell["labelled"], str(cell["eta"])] = each["result"]
    noisy, clear = sorted({key[3] for key in found}, key=float)
    assert all(result["outcome"]["status"] == "measured" for result in found.values())
    share = {key: result["outcome"]["success"]["value"] for key, result in found.items()}
    assert share["nearest-neighbour", "", 0, clear] == 1
    assert share["mlp-inversion", "", 0, clear] > 0.9
    for attack in ("nearest-neighbour", "mlp-inversion", "autoencoder-inversion", "ner"):
        assert share[attack, "", 0, clear] > share[attack, "", 0, noisy] + 0.2
    assert share["attribute-mlp", "gender", 160, clear] > 0.85
    assert share["attribute-mlp", "gender", 160, clear] > share["attribute-mlp", "gender", 160, noisy]
    assert share["attribute-lengths", "gender", 160, clear] < 0.75
    # as many are replaced as were asked for: of 800 tokens, by an eta chosen with other 800 draws, to 0.024 (one error)
    assert found["nearest-neighbour", "", 0, noisy]["outcome"]["success"]["n"] == 800
    assert found["nearest-neighbour", "", 0, noisy]["replaced"] == pytest.approx(0.6, abs=0.1)
    assert found["nearest-neighbour", "", 0, clear]["replaced"] == 0
    far = [found["autoencoder-inversion", "", 0, eta]["outcome"]["further"] for eta in (clear, noisy)]
    near, further = ({each["name"]: each["value"] for each in numbers} for numbers in far)
    assert near["mse"] < further["mse"] < 1.5 * further["mse_blind"]
    told = [each for part in written["parts"].values() for each in part["claims"]]
    assert any("nearest row" in each["claim"] and each["held"] for each in told)
    assert len(report.tables) == 7
    text = (tmp_path / "report.md").read_text()
    assert "SAP, Figure 3: gender (female or male)" in text
    assert "a picture, no numbers" in text
    for part in OF_TOKENS:
        assert (tmp_path / f"{part}.png").stat().st_size > 5000
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("short_controls")
def test_finished_cells_are_not_run_again(tiny, data, tmp_path, monkeypatch):
    scale = SCALE.model_copy(update={"tuned": ("gender",)})
    recipe = RECIPE.using(CONFIG.model_copy(update={"sizes": {Size.TINY: scale}}))
    some = options(tiny, data, tmp_path, only=("figure-3-sap",))
    honest = InferenceCell.run

    def interrupted(cell, lab):
        if math.isinf(cell.eta):
            raise KeyboardInterrupt
        return honest(cell, lab)

    monkeypatch.setattr(InferenceCell, "run", interrupted)
    with pytest.raises(Stopped, match="Run the same command again"):
        recipe.run(some, Silent())
    kept = len(list((tmp_path / "cells").iterdir()))
    assert kept == 1 + 8  # the calibration; at one eta five of gender and three of age
    monkeypatch.setattr(InferenceCell, "run", honest)
    monkeypatch.setattr(lab, "etas_for_shares", Mock(side_effect=AssertionError))
    report = recipe.run(some, Silent())
    assert len(list((tmp_path / "cells").iterdir())) == 1 + 2 * 8
    drawn = [f"figure-3-sap{column}.{ending}" for column in ("", "-age_group") for ending in ("png", "csv")]
    assert [path.name for path in report.files] == ["report.json", "report.md", "results.parquet", *drawn]
    monkeypatch.setattr(InferenceCell, "run", Mock(side_effect=AssertionError))
    assert not recipe.run(some, Silent()).failures


def test_releases_are_what_the_road_sends(tiny, tmp_path):
    """Through gate and ledger; the same texts in two sets are one look, and are released alike."""
    texts = Tokens((Ragged.from_lists([[40, 41, 42, 43], [50, 51]]),))
    home = Home(tmp_path / "home")
    released = release(
        {"one": texts, "again": texts.select([0])},
        TextToText(eta=4.0),
        model=tiny,
        home=home,
        folder=tmp_path / "t",
        progress=Silent(),
    )
    first, second = (next(released.only([name]).releases()).payload.segments[0] for name in ("one", "again"))
    assert torch.equal(first[0], second[0])
    assert home.ledger.summary().mechanisms[0].draws == 2
    assert released.knowledge.cut.is_text
    assert released.knowledge.noise.privacy.eta == 4.0
    truth = TokenTruth(texts, records={identifier("one"): released.records["one"]})
    outcome = measure("nearest-neighbour", released.only(["one"]), knowledge=released.knowledge, truth=truth)
    assert isinstance(outcome, Measured)
    assert outcome.privacy.value == pytest.approx(released.replaced["one"])


def test_what_is_missing_is_told(tiny, data, tmp_path):
    with pytest.raises(DataError, match=r"blog_authorship/train\.jsonl\.gz, which is not there"):
        RECIPE.using(CONFIG).run(options(tiny, tmp_path, tmp_path / "out"), Silent())
    with pytest.raises(ConfigError, match="size"):
        RECIPE.using(CONFIG).run(options(tiny, data, tmp_path / "out", size=Size.FULL), Silent())
    with pytest.raises(ConfigError, match="figure-3"):
        RECIPE.using(CONFIG).run(options(tiny, data, tmp_path / "out", only=("figure-2",)), Silent())
    many = CONFIG.model_copy(update={"sizes": {Size.TINY: SCALE.model_copy(update={"attacked": 5000})}})
    with pytest.raises(DataError, match="has 90 posts, not 5000"):
        RECIPE.using(many).run(options(tiny, data, tmp_path / "out"), Silent())
