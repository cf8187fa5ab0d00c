"""Recipe `rapt`, parts that read trained models: figure-8 as a run, words' states by hand, and planted faults."""

from __future__ import annotations

import pandas
import pytest
import torch

from cutlayer.core import Cut, Ragged, StorageError
from cutlayer.customer import Silent
from cutlayer.models import load_adapter, split
from cutlayer.recipes.lab import Lab, Model
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.rapt import RECIPE
from cutlayer.recipes.representations import CLOSER, OWN, PLANE, UNPROTECTED, WHOLE, GeometryCell, Spelled, word_states
from cutlayer.recipes.word_training import WordTrainingCell
from tests.recipes.test_rapt import sentences
from tests.recipes.worlds import write_split

SHIPPED = RECIPE.config


def options(data, out, **changes):
    return RecipeOptions(**{"size": Size.TINY, "seeds": 1, "model": "starter", "data": data, "out": out, **changes})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    labelled = [(text, str(number % 2)) for number, (text, _) in enumerate(sentences(60, 3))]
    for part in ("train_sentences", "dev"):
        write_split(folder, "sst2", part, labelled, ("text", "label"))
    write_split(folder, "classic_books", "train_part1", sentences(40, 4), ("text", "label"))
    return folder


@pytest.fixture(scope="module")
def geometry(data, tmp_path_factory):
    """Unprotected text and one arm, by prefixes."""
    out = tmp_path_factory.mktemp("out")
    asked = SHIPPED.geometry.model_copy(update={"arms": ("clear", "pct2t"), "replaced": 0.4, "closer": "pct2t"})
    config = SHIPPED.model_copy(update={"geometry": asked})
    return RECIPE.using(config).run(options(data, out, only=("figure-8",)), Silent()), out


@pytest.mark.slow
def test_distances_are_of_each_arm_layer_and_space_and_small_where_nothing_was_done(geometry):
    report, out = geometry
    assert not report.failures
    frame = pandas.DataFrame(report.content["table"])
    found = frame[frame["metric"] == "distance"]
    assert set(found["arm"]) == {"pct2t"}
    assert set(found["layer"]) == set(range(7))
    assert set(found["space"]) == {PLANE, WHOLE}
    assert set(found["weights"]) == {OWN, UNPROTECTED}
    assert (found["lower"] < found["value"]).all()
    assert (found["value"] < found["upper"]).all()
    # prefixes leave what enters the blocks as it is: there both weights see the texts' own difference
    first = found[(found["layer"] == 0) & (found["space"] == WHOLE)].set_index("weights")["value"]
    assert first[OWN] == pytest.approx(first[UNPROTECTED])
    # of 40 % replaced words the unreplaced ones lie at 0 there
    assert 0.2 < first[OWN] < 1
    (fell,) = frame[(frame["metric"] == CLOSER) & (frame["space"] == WHOLE)]["value"]
    own = found[(found["space"] == WHOLE) & (found["weights"] == OWN)].set_index("layer")["value"]
    assert fell == pytest.approx(own[1] - own[6])
    assert (out / "figure-8.png").stat().st_size > 5000
    assert (out / "figure-8.csv").stat().st_size > 500
    assert {each["held"] for each in report.content["parts"]["figure-8"]["claims"]} <= {True, False}


@pytest.mark.slow
def test_what_the_cells_of_the_table_trained_is_read_again_and_nothing_is_trained(geometry, data, monkeypatch):
    """The weights are those that the vendor published; without them there is no number."""
    report, out = geometry
    (cell,) = [each["cell"] for each in report.content["cells"] if "arms" in each["cell"]]
    made = GeometryCell.model_validate({**cell, "texts": 7})
    monkeypatch.setattr(WordTrainingCell, "run", None)
    with Lab(options(data, out)) as lab:
        assert made.run(lab).rows
        one = lab.adapter(made.arms["pct2t"])
        top = split(lab.model().whole, Cut(bottom=None)).top
        trained = load_adapter(top, one)
        assert trained.virtual.length == SHIPPED.utility.methods["prefix"].prefix_length
        for file in one.iterdir():
            file.unlink()
        one.rmdir()
        with pytest.raises(StorageError, match="its cell kept"):
            made.run(lab)


# ---------------------------------------------------------------- by hand


def spelled(*texts):
    """Words between blanks."""
    starts, ends, of_text = [], [], []
    for number, text in enumerate(texts):
        at = 0
        for word in text.split(" "):
            starts.append(at)
            ends.append(at + len(word))
            of_text.append(number)
            at += len(word) + 1
    return Spelled(list(texts), *map(torch.tensor, (starts, ends, of_text)))


def test_states_are_those_of_the_whole_model_averaged_over_a_words_pieces():
    model = Model("starter", None)
    texts = spelled("The unbelievably tall man", "Cats")
    top = split(model.whole, Cut(bottom=None)).top
    states, pieces = word_states(top.eval(), texts, model, max_length=None)
    assert states.shape == (7, 5, 384)
    assert pieces.tolist() == [1, 5, 1, 1, 1]
    for text, words in ((texts.texts[0], [[1], [2, 3, 4, 5, 6], [7], [8]]), (texts.texts[1], [[1]])):
        encoded = model.tokenizer(text, return_tensors="pt")
        hidden = model.whole.eval()(**encoded, output_hidden_states=True).hidden_states
        offset = 0 if len(words) == 4 else 4
        for number, places in enumerate(words):
            for layer, whole in enumerate(hidden):
                expected = whole[0, places].mean(0)
                torch.testing.assert_close(states[layer, offset + number], expected, rtol=1e-4, atol=1e-4)


def test_a_word_that_was_cut_off_has_no_piece():
    model = Model("starter", None)
    top = split(model.whole, Cut(bottom=None)).top
    _, pieces = word_states(top.eval(), spelled("The unbelievably tall man", "Cats"), model, max_length=5)
    assert pieces.tolist() == [1, 2, 0, 0, 1]


def test_pieces_between_words_are_of_none():
    texts = spelled("ab cd", "", "x")
    ends = Ragged.from_lists([[1, 2, 3, 5], [], [1]])
    assert texts.words_at(ends).tolist() == [0, 0, -1, 1, 3]  # of the empty text a word without letters
