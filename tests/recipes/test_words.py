"""Recipe `words`: a run with all its cells, going on after a stop, planted faults, and what it refuses."""

from __future__ import annotations

import json
import math
import random
from unittest.mock import Mock

import pytest
import torch

from cutlayer.core import ConfigError, DataError, Stopped
from cutlayer.customer import Silent
from cutlayer.recipes import RECIPES, Order, ReadWords, Size
from cutlayer.recipes.recipe import read_config
from cutlayer.recipes.words import cells
from cutlayer.recipes.words.cells import PARTS
from cutlayer.recipes.words.config import Scale, WordsConfig
from tests.recipes.worlds import write_split
from tests.service.tiny import write_tiny_bert

SHIPPED = read_config("words", WordsConfig)
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


def order(model, data, out, **changes):
    return Order(**{"size": Size.TINY, "seeds": 1, "model": model, "data": data, "out": out, **changes})


def read(written):
    """By cell, what each attack read."""
    return {
        (cell["cell"]["leaving"], cell["cell"]["bottom"], (cell["cell"]["public"] or {}).get("name")): {
            name: found["outcome"] | {"unseen": found["unseen"], "beyond": found["beyond"], "choice": found["choice"]}
            for name, found in cell["result"]["reads"].items()
        }
        for cell in written["cells"]
    }


@pytest.fixture(scope="module")
def whole(tiny, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    report = ReadWords(CONFIG).run(order(tiny, data, out), Silent())
    return report, json.loads((out / "report.json").read_text()), out


def test_it_is_registered_and_shows_its_settings():
    recipe = RECIPES["words"]
    assert recipe.default_model == "starter"
    assert recipe.parts == PARTS
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


def test_shortened_rows_are_read_by_their_likelihood(whole):
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
    told = {each["what"]: each for each in written["findings"]}
    assert told["nearest row, no noise, the table's rows"]["holds"] is True
    assert any("beyond nearest row" in what and each["holds"] for what, each in told.items())
    text = (out / "report.md").read_text()
    assert "Rows without noise, by blocks at the customer" in text
    assert "paired difference" in text
    assert len(report.tables) == 6
    assert (out / "behind-blocks.png").stat().st_size > 5000
    assert not any((out / "transcripts").iterdir())


def test_tokens_that_the_map_never_saw_are_counted_apart(tiny, data, tmp_path):
    few = Scale(mail=40, reviews=40, floats=1, public=12)
    some = CONFIG.model_copy(update={"depths": (1,), "sizes": {Size.TINY: few}})
    written = ReadWords(some).run(order(tiny, data, tmp_path, only=("unprotected",)), Silent()).content
    for outcome in read(written).values():
        unseen = outcome["linear-inversion"]["unseen"]
        assert 0 < unseen["n"] < 40 * 12
        assert 0 <= unseen["value"] <= 1


def test_rows_of_another_table_are_found_not_to_be_read(tiny, data, tmp_path, monkeypatch):
    """Planted: what left is not what the attacker takes it for."""
    whole = cells.simulate

    def turned(tokens, knowledge, **settings):
        rows = whole(tokens, knowledge, **settings)
        return type(rows)(rows.packed.with_values(rows.packed.values.flip(1)), rows.segment_lengths)

    monkeypatch.setattr(cells, "simulate", turned)
    some = CONFIG.model_copy(update={"depths": (0,)})
    report = ReadWords(some).run(order(tiny, data, tmp_path, only=("unprotected",)), Silent())
    (finding,) = report.content["findings"]
    assert finding["holds"] is False


def test_finished_cells_are_not_run_again_and_a_stop_loses_none(tiny, data, tmp_path, monkeypatch):
    recipe = ReadWords(CONFIG.model_copy(update={"depths": (0, 1)}))
    some = order(tiny, data, tmp_path, only=("unprotected",))
    original = cells.Experiment._run
    done = []

    def stopped(experiment, cell):
        if done:
            raise KeyboardInterrupt
        done.append(cell)
        return original(experiment, cell)

    monkeypatch.setattr(cells.Experiment, "_run", stopped)
    with pytest.raises(Stopped, match="Finished cells"):
        recipe.run(some, Silent())
    monkeypatch.setattr(cells.Experiment, "_run", original)
    first = recipe.run(some, Silent())
    monkeypatch.setattr(cells.Experiment, "_run", Mock(side_effect=AssertionError))
    assert recipe.run(some, Silent()).content == first.content
    assert sum(math.isinf(float(each["cell"]["eta"])) for each in first.content["cells"]) == 3


@pytest.mark.parametrize("changes", [{"only": ("depth",)}, {"settings": {"depths": "[0,9]"}}, {"size": Size.FULL}])
def test_what_it_cannot_run_is_refused_before_anything_is(tiny, data, tmp_path, changes):
    with pytest.raises(ConfigError):
        ReadWords(CONFIG).run(order(tiny, data, tmp_path, **changes), Silent())


def test_a_missing_data_set_is_named_first(tiny, tmp_path):
    with pytest.raises(DataError, match="aeslc"):
        ReadWords(CONFIG).run(order(tiny, tmp_path, tmp_path / "out"), Silent())
