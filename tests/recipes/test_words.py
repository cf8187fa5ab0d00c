"""Recipe `words`: a run with all its cells, going on after a stop, planted faults, and what it refuses."""

from __future__ import annotations

import json
import math
import random
from unittest.mock import Mock

import pandas
import pytest
import torch

from cutlayer.core import ConfigError, DataError, Stopped
from cutlayer.customer import Silent
from cutlayer.recipes import RECIPES, read_releases
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.read_releases import ReadCell
from cutlayer.recipes.words import RECIPE, Scale
from tests.recipes.worlds import write_split
from tests.service.tiny import write_tiny_bert

SHIPPED = RECIPE.config
CONFIG = SHIPPED.model_copy(
    update={
        "depths": (0, 1, 3), "map_tokens": 3000, "clipped": 6.0, "replaced": (0.57,), "single_precision": (4.0,),
        "sizes": {Size.TINY: Scale(mail=60, reviews=60, floats=4, public=300)},
    }
)  # fmt: skip


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


def texts(count, seed):
    """Texts in which every word tells much of the next, as a language model's prior needs."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        word = rng.randrange(200)
        words = []
        for _ in range(12):
            words.append(f"w{word}")
            word = (word + rng.choice((1, 1, 1, 7))) % 200
        rows.append((" ".join(words), "0"))
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for place, (name, part, count) in enumerate(
        (("aeslc", "dev", 80), ("aeslc", "train", 300), ("classic_books", "train_part1", 300),
         ("sst2", "dev", 80), ("sst2", "train", 300))
    ):  # fmt: skip
        write_split(folder, name, part, texts(count, place), ("text", "label"))
    return folder


def options(model, data, out, **changes):
    return RecipeOptions(**{"size": Size.TINY, "seeds": 1, "model": model, "data": data, "out": out, **changes})


def read(written):
    """By cell, what each attack read."""
    return {
        (cell["cell"]["form"], cell["cell"]["bottom"], (cell["cell"]["public"] or {}).get("name")): {
            name: found["outcome"] | {"unseen": found["unseen"], "beyond": found["beyond"], "choice": found["choice"]}
            for name, found in cell["result"]["reads"].items()
        }
        for cell in written["cells"]
    }


@pytest.fixture(scope="module")
def whole(tiny, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    report = RECIPE.using(CONFIG).run(options(tiny, data, out), Silent())
    return report, json.loads((out / "report.json").read_text()), out


def test_it_is_registered_and_shows_its_settings():
    recipe = RECIPES["words"]
    assert recipe.default_model == "starter"
    assert recipe.parts == ("unprotected", "clipped", "token-ids", "floats")
    assert set(SHIPPED.sizes) == set(Size)
    assert json.loads(json.dumps(recipe.show()))["clipped"] == 50


def test_rows_without_noise_are_read(whole):
    found = read(whole[1])
    assert found["table rows", 0, None]["nearest-neighbour"]["success"]["value"] == 1
    for bottom in (1, 3):
        for public in ("aeslc", "classic_books"):
            linear = found["road", bottom, public]["linear-inversion"]
            assert linear["success"]["value"] > 0.9
            assert linear["success"]["n"] == 60 * 12


def test_clipped_rows_are_read_by_their_likelihood(whole):
    clipped = read(whole[1])["clipped rows", 0, "aeslc"]
    nearest, adaptive = clipped["nearest-neighbour"], clipped["maximum-posterior"]
    assert adaptive["beyond"]["interval"][0] > 0
    gained = adaptive["success"]["value"] - nearest["success"]["value"]
    assert adaptive["beyond"]["value"] == pytest.approx(gained)


def test_token_ids_are_compared_pair_by_pair(whole):
    ids = read(whole[1])["road", 0, "sst2"]
    nearest, adaptive = ids["nearest-neighbour"], ids["maximum-posterior"]
    assert adaptive["beyond"]["interval"][0] > 0
    assert adaptive["beyond"]["n"] == nearest["success"]["n"] == 60 * 12
    # resampled together: narrower than two intervals that know nothing of each other
    wide = sum(each["interval"][1] - each["interval"][0] for each in (nearest, adaptive))
    assert adaptive["beyond"]["interval"][1] - adaptive["beyond"]["interval"][0] < wide
    assert adaptive["choice"]["weight"] in (0.6, 0.75, 0.9)
    assert adaptive["choice"]["pairs"] == 12_000
    cell = next(each for each in whole[1]["cells"] if each["cell"]["private"]["name"] == "sst2")
    assert cell["result"]["replaced"] == pytest.approx(0.57, abs=0.1)
    assert nearest["success"]["value"] == pytest.approx(1 - cell["result"]["replaced"])
    infilled = ids["masked-infill"]
    assert infilled["status"] == "measured"
    # it chooses between the two on its own text
    assert infilled["beyond"]["value"] == pytest.approx(infilled["success"]["value"] - nearest["success"]["value"])


def test_bits_tell_of_single_precision_and_not_of_the_lattice(whole):
    found = read(whole[1])
    assert found["single precision", 0, None]["float-support"]["beyond"]["value"] >= 0
    lattice = found["road", 0, None]["float-support"]
    assert lattice["status"] == "not applicable"
    assert "lattice" in lattice["reason"] or "multiples" in lattice["reason"]


def test_the_report_names_what_must_hold(whole):
    report, written, out = whole
    told = {each["claim"]: each for part in written["parts"].values() for each in part["claims"]}
    assert told["Nearest row reads at least 100 % of the table's rows without noise."]["held"] is True
    assert any("more than the nearest row" in claim and each["held"] for claim, each in told.items())
    text = (out / "report.md").read_text()
    assert "Rows without noise, by blocks at the customer" in text
    assert "paired difference" in text
    assert len(report.tables) == 6
    assert (out / "behind-blocks.png").stat().st_size > 5000
    assert not list((out / "runs").glob("*/*"))
    table = pandas.read_parquet(out / "results.parquet")
    (row,) = table[(table["attack"] == "linear-inversion") & (table["public"] == "aeslc") & (table["bottom"] == 3)
                   & (table["metric"] == "success")].to_dict("records")  # fmt: skip
    linear = read(written)["road", 3, "aeslc"]["linear-inversion"]["success"]
    assert (row["value"], row["se"], row["n"]) == (linear["value"], linear["standard_error"], linear["n"])
    drawn = pandas.read_csv(out / "behind-blocks.csv")
    assert set(drawn["public"]) == {"aeslc", "classic_books"}
    assert row["value"] * 100 == pytest.approx(drawn[(drawn["public"] == "aeslc") & (drawn["bottom"] == 3)]["y"].item())


def test_tokens_that_the_map_never_saw_are_counted_apart(tiny, data, tmp_path):
    few = Scale(mail=40, reviews=40, floats=1, public=12)
    some = CONFIG.model_copy(update={"depths": (1,), "sizes": {Size.TINY: few}})
    written = RECIPE.using(some).run(options(tiny, data, tmp_path, only=("unprotected",)), Silent()).content
    for outcome in read(written).values():
        unseen = outcome["linear-inversion"]["unseen"]
        assert 0 < unseen["n"] < 40 * 12
        assert 0 <= unseen["value"] <= 1


def test_rows_of_another_table_are_found_not_to_be_read(tiny, data, tmp_path, monkeypatch):
    """Planted: what left is not what the attacker takes it for."""
    whole = read_releases.simulate

    def turned(tokens, knowledge, **settings):
        rows = whole(tokens, knowledge, **settings)
        return type(rows)(rows.packed.with_values(rows.packed.values.flip(1)), rows.segment_lengths)

    monkeypatch.setattr(read_releases, "simulate", turned)
    some = CONFIG.model_copy(update={"depths": (0,)})
    report = RECIPE.using(some).run(options(tiny, data, tmp_path, only=("unprotected",)), Silent())
    (claim,) = report.content["parts"]["unprotected"]["claims"]
    assert claim["held"] is False


def test_finished_cells_are_not_run_again_and_a_stop_loses_none(tiny, data, tmp_path, monkeypatch):
    recipe = RECIPE.using(CONFIG.model_copy(update={"depths": (0, 1)}))
    some = options(tiny, data, tmp_path, only=("unprotected",))
    original = ReadCell.run
    done = []

    def stopped(cell, lab):
        if done:
            raise KeyboardInterrupt
        done.append(cell)
        return original(cell, lab)

    monkeypatch.setattr(ReadCell, "run", stopped)
    with pytest.raises(Stopped, match="Finished cells"):
        recipe.run(some, Silent())
    monkeypatch.setattr(ReadCell, "run", original)
    first = recipe.run(some, Silent())
    monkeypatch.setattr(ReadCell, "run", Mock(side_effect=AssertionError))
    assert recipe.run(some, Silent()).content == first.content
    assert sum(math.isinf(float(each["cell"]["eta"])) for each in first.content["cells"]) == 3


@pytest.mark.parametrize("changes", [{"only": ("depth",)}, {"settings": {"depths": "[0,9]"}}, {"size": Size.FULL}])
def test_what_it_cannot_run_is_refused_before_anything_is(tiny, data, tmp_path, changes):
    with pytest.raises(ConfigError):
        RECIPE.using(CONFIG).run(options(tiny, data, tmp_path, **changes), Silent())


def test_a_missing_data_set_is_named_first(tiny, tmp_path):
    with pytest.raises(DataError, match="sst2"):  # whose etas are calibrated before any cell is made
        RECIPE.using(CONFIG).run(options(tiny, tmp_path, tmp_path / "out"), Silent())
