"""Models that were warmed up: a customer is told what for, and of a run whose releases are others."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import CutlayerWarning
from cutlayer.core.embedding import EmbeddingSpec
from cutlayer.customer.plan import warn_of_another_warm_up
from cutlayer.privacy import PrivacySpec, TextToText, Words
from cutlayer.vendor.catalogue import WARMED
from cutlayer.wire.messages import ModelInfo, WarmedFor
from tests.promises.runs import customer, finetune
from tests.service.fixtures import tiny_model  # noqa: F401 - a fixture by name

OWN = Words(eta=30.0, words=("noun", "verb"), space="starter")
INFO = ModelInfo(
    name="warm", family="bert", fingerprint="0" * 64, blocks=4, width=32, vocab_size=100, max_length=64, max_bottom=2,
    embedding=EmbeddingSpec(width=32, pooling="mean"), max_tail=None, parameters=1000,
    warmed_for=WarmedFor(
        mechanism="words", eta=30.0, words=("noun", "verb"), candidates="category", space="starter"
    ),
)  # fmt: skip


def test_a_run_over_the_road_is_warned_before_a_text_leaves(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    source = Path(shutil.copytree(tiny_model, tmp_path / "warm"))
    (source / WARMED).write_text(json.dumps({"warmed_for": {"privacy": OWN.model_dump(mode="json"), "texts": 9}}))
    data = tmp_path / "data"
    vendor.init(data, models=[str(source)], threads=1, max_bottom=2)
    with customer(data, vendor.keys.create(data, "clinic"), tmp_path / "home") as client:
        said = r"warm was warmed up .* other settings than yours: mechanism = words \(yours: text-to-text\), eta = 30"
        with pytest.warns(CutlayerWarning, match=said) as told:
            finetune(client)
        assert sum("warmed up" in str(each.message) for each in told) == 1


@pytest.mark.parametrize(
    ("privacy", "differ"),
    [
        (OWN, ""),
        (OWN.model_copy(update={"space": "models/starter", "noise_window": 9}), ""),
        (OWN.model_copy(update={"space": "starter:16"}), "space = starter (yours: starter:16)."),
        (OWN.model_copy(update={"space": "models/my words"}), "space = starter (yours: my-words)."),
        (OWN.model_copy(update={"eta": 31.0}), "eta = 30.0 (yours: 31.0)."),
        (OWN.model_copy(update={"words": ("all",)}), "words = ['noun', 'verb'] (yours: ['all'])."),
        (OWN.model_copy(update={"candidates": "all"}), "candidates = category (yours: all)."),
        (TextToText(eta=30.0), "mechanism = words (yours: text-to-text), words = ['noun', 'verb'] (yours: None)"),
    ],
)
def test_it_is_said_which_settings_are_others(privacy: PrivacySpec, differ: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_another_warm_up(privacy, INFO)
        warn_of_another_warm_up(privacy, INFO.model_copy(update={"warmed_for": None}))
    assert [differ in str(each.message) for each in told] == [True] * bool(differ)


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ("starter", "starter"),
        ("org/model:16", "model:16"),
        ("/srv/my:words of 2026", "my:words-of-2026"),
        ("слова", None),
        ("слова:16", "16"),
        ("/", None),
        ("-" + 300 * "x", 128 * "x"),
    ],
)
def test_a_space_of_any_name_can_be_told_or_left_out(space: str, told: str | None) -> None:
    privacy = OWN.model_copy(update={"space": space}).model_dump(mode="json")
    assert WarmedFor(**WarmedFor.told(privacy)).space == told


def test_a_folder_that_does_not_say_what_for_is_refused(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    source = Path(shutil.copytree(tiny_model, tmp_path / "warm"))
    for told in ("{}", '{"warmed_for": {"privacy": {"mechanism": "words"}}}', "no JSON"):
        (source / WARMED).write_text(told)
        with pytest.raises(Exception, match=r"warm-up\.json does not say what the model was warmed up for"):
            vendor.init(tmp_path / "data", models=[str(source)])
