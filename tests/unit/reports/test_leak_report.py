"""`cutlayer.audit`: one call from texts to a leak report, of classifiers and of encoder-decoders."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import cutlayer
from cutlayer.core import ConfigError, Cut, CutlayerWarning
from cutlayer.customer import Training
from cutlayer.data import Dataset
from cutlayer.models import Head
from cutlayer.reports.audit import LeakReport
from tests.promises.runs import corpus
from tests.promises.test_encoder_decoders import pairs
from tests.promises.test_families import write_model
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name

pytestmark = pytest.mark.usefixtures("known_secret")

QUICK = ("lengths", "nearest-neighbour", "output-gradient")


def public(folder: Path) -> str:
    """An attacker's own text: what the embedded model would write takes minutes."""
    path = folder / "public.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for (text,) in corpus(60, seed=9).texts))
    return str(path)


@pytest.fixture(scope="module")
def classifier(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> LeakReport:  # noqa: F811
    folder = tmp_path_factory.mktemp("classifier")
    data = corpus(80, seed=5)
    rows = [{"note": text, "ward": ward} for (text,), ward in zip(data.texts, data.labels or (), strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", CutlayerWarning)  # of the run in this process nobody wants to hear
        return cutlayer.audit(
            rows,
            text_column="note",
            label_column="ward",
            eta=60,
            model=str(tiny_model),
            only=QUICK,
            public=public(folder),
            home=folder / "home",
            progress=None,
        )


def test_a_table_in_memory_becomes_a_report(classifier: LeakReport) -> None:
    found = {each.name: each for each in classifier.report.attacks}
    assert set(found) == set(QUICK)
    assert found["output-gradient"].value == 1, "labels are read from gradients"
    words = found["nearest-neighbour"].value
    assert words is not None
    assert 0 < words < 1
    assert (classifier.report.settings.eta, classifier.report.settings.unlabelled) == (60, False)


def test_it_is_a_page_numbers_and_plots(classifier: LeakReport, tmp_path: Path) -> None:
    assert classifier.html.startswith("<!DOCTYPE html>")
    assert "nearest-neighbour" in classifier.html
    assert json.loads(classifier.json)["settings"]["eta"] == 60
    assert classifier.figures
    assert all(figure.data for figure in classifier.figures.values())
    shown = classifier._repr_html_()
    assert shown.startswith("<iframe ")
    assert "<script" not in shown, "the page is quoted, so that it stays in its frame"
    files = classifier.save(tmp_path / "report")
    assert {file.name for file in files} >= {"report.html", "report.json"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_an_encoder_decoders_texts_are_asked_for_on_both_sides(tmp_path: Path) -> None:
    model = str(write_model("t5", tmp_path / "t5", head=Head.LANGUAGE))
    texts = Dataset(pairs(40, 1).texts)
    found = cutlayer.audit(
        texts,
        objective="seq2seq",
        eta=float("inf"),
        cut=Cut(bottom=0, target=0, tail=0),
        training=Training(epochs=1, learning_rate=1e-3, dev_share=0.2),
        model=model,
        only=("forward-leak", "nearest-neighbour", "tail-gradient"),
        public=public(tmp_path),
        home=tmp_path / "home",
        progress=None,
    )
    attacks = {each.name: each for each in found.report.attacks}
    assert attacks["nearest-neighbour"].value == 1, "no noise, and no block below the cut"
    assert attacks["tail-gradient"].status == "measured"
    assert {each.question for each in found.report.strongest} == {"words", "answers"}
    assert "nearest-neighbour" in found.html


def test_how_much_leaves_must_be_said() -> None:
    with pytest.raises(ConfigError, match="has no default"):
        cutlayer.audit(corpus(8, seed=1))
