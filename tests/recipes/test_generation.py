"""Recipe `generation`: a small run with all its cells, going on after a stop, and what it refuses."""

from __future__ import annotations

import json
import math
from unittest.mock import Mock

import pytest

from cutlayer.core import DataError, ModelError, Stopped
from cutlayer.customer import Objective, Silent
from cutlayer.recipes import RECIPES
from cutlayer.recipes.generation import RECIPE, GenerationCell
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.training import settled
from tests.recipes.unsplit.worlds import write_words
from tests.service.tiny import write_tiny_bert, write_tiny_gpt2

CONFIG = RECIPE.config.model_copy(update={"shares": (0.2, 0.6), "prompts": 1, "prompt_tokens": 2, "new_tokens": 4})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_tiny_gpt2(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_words(tmp_path_factory.mktemp("data"), "train", "test", name="aeslc")


def options(model, data, out, **changes):
    return RecipeOptions(**{"size": Size.TINY, "seeds": 1, "model": model, "data": data, "out": out, **changes})


def test_it_is_registered_and_shows_its_settings():
    assert RECIPES["generation"].default_model == "starter-decoder"
    json.dumps(RECIPES["generation"].show())
    for scale in CONFIG.sizes.values():
        assert settled(Objective.LM, CONFIG.tuning, scale.training).packing


@pytest.mark.slow
def test_a_run_tells_more_noise_apart_from_less(tiny, data, tmp_path):
    report = RECIPE.using(CONFIG).run(options(tiny, data, tmp_path), Silent())
    written = json.loads((tmp_path / "report.json").read_text())
    found = {str(each["cell"]["eta"]) if each["cell"]["bottom"] else "whole": each for each in written["cells"]}
    etas = sorted((eta for eta in found if eta not in ("whole", "inf")), key=float)
    assert len(etas) == 2
    noisy, milder = (found[eta]["result"] for eta in etas)
    clear, whole = found["inf"]["result"], found["whole"]["result"]
    assert clear["perplexity"]["value"] == pytest.approx(whole["perplexity"]["value"], rel=0.02)
    assert clear["replaced"] == 0
    assert noisy["replaced"] > milder["replaced"] > 0
    assert clear["rows"]["value"] > milder["rows"]["value"] > noisy["rows"]["value"]
    assert clear["gradients"]["value"] > 0.99
    page = report.tables[1]
    assert [row[1] for row in page.rows] == ["∞", *(f"{float(eta):g}" for eta in reversed(etas))]
    for name in ("perplexity-over-eta", "recovery-over-eta"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    (claim,) = written["parts"]["over-eta"]["claims"]
    assert claim["held"] is (
        noisy["perplexity"]["value"] >= milder["perplexity"]["value"] >= clear["perplexity"]["value"]
    )
    assert "Perplexity and recovery over eta" in (tmp_path / "report.md").read_text()
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.slow
def test_finished_cells_are_not_run_again(tiny, data, tmp_path, monkeypatch):
    recipe = RECIPE.using(CONFIG)
    honest = GenerationCell.run

    def interrupted(cell, lab):
        if math.isfinite(cell.eta):
            raise KeyboardInterrupt
        return honest(cell, lab)

    monkeypatch.setattr(GenerationCell, "run", interrupted)
    with pytest.raises(Stopped, match="Run the same command again"):
        recipe.run(options(tiny, data, tmp_path), Silent())
    kept = sorted(file.name for file in (tmp_path / "cells").glob("*.json"))
    assert len(kept) == 3  # the calibration, the whole model, the run without noise
    monkeypatch.setattr(GenerationCell, "run", honest)
    monkeypatch.setattr(GenerationCell, "_whole", Mock(side_effect=AssertionError))
    recipe.run(options(tiny, data, tmp_path), Silent())
    assert len(list((tmp_path / "cells").glob("*.json"))) == 5


def test_what_is_missing_is_told_first(tiny, data, tmp_path):
    with pytest.raises(DataError, match=r"aeslc/train\.jsonl\.gz, which is not there"):
        RECIPE.using(CONFIG).run(options(tiny, tmp_path, tmp_path / "out"), Silent())
    with pytest.raises(DataError, match="has 400 texts, not 600"):
        RECIPE.using(CONFIG).run(options(tiny, data, tmp_path / "out", size=Size.SMALL), Silent())
    encoder = str(write_tiny_bert(tmp_path / "bert"))
    with pytest.raises(ModelError):
        RECIPE.using(CONFIG).run(options(encoder, data, tmp_path / "out"), Silent())
