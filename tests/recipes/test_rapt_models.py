"""Recipe `rapt`, parts figure-8 and table-5, and table-3 on a T5: small runs, words' states and BLEU by hand."""

from __future__ import annotations

import pandas
import pytest
import torch
from sacrebleu.metrics import BLEU

from cutlayer.core import ConfigError, Cut, ModelError, Ragged, StorageError
from cutlayer.customer import Client, Silent
from cutlayer.models import load_adapter, split
from cutlayer.recipes import RECIPES, fact_writing
from cutlayer.recipes.fact_writing import FactCell
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.measures.bleu import bleu_counts, bleu_gain, corpus_bleu
from cutlayer.recipes.model import Model
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.rapt import PAPER, RECIPE, _utility
from cutlayer.recipes.rapt_utility import exceptions, table_4
from cutlayer.recipes.representations import CLOSER, OWN, PLANE, UNPROTECTED, WHOLE, GeometryCell, Spelled, word_states
from cutlayer.recipes.word_training import WordTrainingCell
from tests.recipes.test_rapt import write_texts
from tests.recipes.worlds import write_split, write_tiny_t5

SHIPPED = RECIPE.config


def options(data, out, **changes):
    return RecipeOptions(**{"size": Size.TINY, "seeds": 1, "model": "starter", "data": data, "out": out, **changes})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder)
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


# ---------------------------------------------------------------- Table V


FACTS = [
    ([["Aarhus_Airport", "cityServed", "Aarhus"]], ["Aarhus Airport serves Aarhus.", "The airport of Aarhus."]),
    ([["Ada_Lovelace", "birthPlace", "London"]], ["Ada Lovelace was born in London."]),
    ([["Bakso", "country", "Indonesia"], ["Bakso", "ingredient", "Noodle"]], ["Bakso is of Indonesia, with noodles."]),
    ([["Ajoblanco", "ingredient", "Almond"]], ["Almonds are in Ajoblanco."]),
]


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("facts")
    for part in ("train", "dev", "test_seen", "test_unseen"):
        write_split(folder, "webnlg", part, [(*row, "Any") for row in FACTS], ("triples", "references", "category"))
    return folder


@pytest.fixture(scope="module")
def written(facts, tmp_path_factory):
    """All arms by one method."""
    out = tmp_path_factory.mktemp("out")
    writing = SHIPPED.writing.model_copy(update={"methods": {"prefix": SHIPPED.writing.methods["prefix"]}})
    config = SHIPPED.model_copy(update={"writing": writing})
    return RECIPE.using(config).run(options(facts, out, only=("table-5",)), Silent())


@pytest.mark.slow
def test_each_arm_writes_about_both_files_and_the_paper_stands_beside_it(written):
    assert not written.failures
    frame = pandas.DataFrame(written.content["table"])
    here = frame[(frame["metric"] == "BLEU") & (frame["source"] == "here")]
    assert {(row.arm, row.of) for row in here.itertuples()} == {
        (arm, of) for arm in ("clear", "t2t", "pct2t", "rapt") for of in ("seen", "unseen", "all")
    }
    assert set(here[here["of"] == "all"]["n"]) == {6}
    assert here["value"].between(0, 1).all()
    paper = frame[(frame["metric"] == "BLEU") & (frame["source"] == "paper")]
    assert len(paper) == 24
    (one,) = paper[(paper["method"] == "prompt") & (paper["arm"] == "rapt") & (paper["of"] == "all")]["value"]
    assert one == pytest.approx(0.3864)
    replaced = frame[frame["metric"] == "replaced"].set_index("arm")["value"]
    assert set(replaced.index) == {"t2t", "pct2t", "rapt"}
    assert (replaced > 0.6).all()  # of a dozen words
    assert replaced["rapt"] == replaced["pct2t"], "plain words are no entities'"
    perplexity = frame[frame["metric"] == "perplexity"].set_index("arm")["value"]
    assert perplexity["rapt"] != perplexity["pct2t"], "something was learnt of plain words"
    gained = frame[frame["metric"] == "BLEU gained"]
    assert set(gained["arm"]) == {"pct2t", "rapt"}
    assert len(gained) == 6


@pytest.mark.slow
def test_what_leaves_of_facts_and_texts_has_no_entity(written, facts, tmp_path):
    """Their words are in neither, the same word stands for the same one in both, and answers get them back."""
    cell = next(
        FactCell.model_validate(each["cell"]) for each in written.content["cells"] if each["cell"]["share"] is not None
    )
    with Lab(options(facts, tmp_path)) as lab:
        train, *_ = cell._facts(lab)
        client = Client("http://127.0.0.1:1", "key", home=tmp_path / "home")
        rows = [(each.source, *each.references) for each in train]
        left, made = fact_writing._protected(client, rows, train, cell._replacement().privacy(10.0, lab))
        plain, nothing = fact_writing._protected(client, rows, train, None)
    told = str(left).casefold()
    assert not any(word in told for word in ("aarhus", "lovelace", "london", "bakso", "indonesia", "noodle", "almond"))
    for source, *references in left:
        assert made.restore(source).replace("_", " ") in [row[0].replace("_", " ") for row in rows]
        assert references
    assert nothing is None
    assert plain[0][0] == " | Aarhus Airport : cityServed : Aarhus"


# ---------------------------------------------------------------- BLEU


REFERENCES = [
    ["the cat sat on the mat .", "a cat was on the mat"], ["it rained all day long", "it was a day of rain"],
    ["he went home late at night", "late at night he went home"], ["she likes red apples", "red apples she likes"],
]  # fmt: skip
TEXTS = ["The cat sat on a mat.", "it rained all day", "he went late home at night", "she likes red apples"]


def test_bleu_is_sacrebleus_own():
    counts = bleu_counts(TEXTS, REFERENCES)
    columns = [list(column) for column in zip(*REFERENCES, strict=True)]
    value, low, high = corpus_bleu(counts)
    assert 100 * value == pytest.approx(BLEU(lowercase=True).corpus_score(TEXTS, columns).score)
    assert low < value < high


def test_a_gain_is_of_the_same_rows_and_none_of_the_same_texts():
    before = ["a cat", "rain", "he went home", "apples"]
    one, other = bleu_counts(before, REFERENCES), bleu_counts(TEXTS, REFERENCES)
    assert bleu_gain(other, other) == (0, 0, 0)
    value, low, high = bleu_gain(one, other)
    assert value == pytest.approx(corpus_bleu(other)[0] - corpus_bleu(one)[0])
    assert 0 < low < value < high
    back, _, _ = bleu_gain(other, one)
    assert back == pytest.approx(-value)


# ---------------------------------------------------------------- Table IV


@pytest.mark.parametrize(("found", "kept"), [(True, "nf4"), (False, None)])
def test_a_larger_model_is_kept_in_nf4_where_there_is_a_gpu(found, kept, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    assert SHIPPED.larger.quantization == kept
    for said in ("nf4", None):
        assert SHIPPED.larger.model_copy(update={"quantize": said}).quantization == said


@pytest.mark.slow
def test_a_larger_model_learns_from_words_of_another_models_vectors(data, tmp_path):
    pytest.importorskip("bitsandbytes", reason="extra `qlora` is not installed")
    arms = SHIPPED.larger.model_copy(update={"arms": ("clear", "pct2t"), "quantize": "nf4"})
    utility = SHIPPED.utility.model_copy(update={"replaced": (0.4,)})
    config = SHIPPED.model_copy(update={"larger": arms, "utility": utility})
    report = RECIPE.using(config).run(options(data, tmp_path, only=("table-4",)), Silent())
    assert not report.failures
    frame = pandas.DataFrame(report.content["table"])
    here = frame[(frame["source"] == "here") & (frame["metric"] == "UA")]
    assert set(here["arm"]) == {"clear", "pct2t"}
    assert len(frame[(frame["source"] == "paper") & (frame["metric"] == "UA")]) == 36
    for each in report.content["cells"]:
        assert each["cell"]["source"] == "starter-decoder"
        assert each["cell"]["space"]["name"] == "starter"
        assert each["cell"]["quantize"] == "nf4"
        assert each["cell"]["model"] != report.content["model"]["fingerprint"]
    (replaced,) = frame[(frame["metric"] == "replaced") & (frame["arm"] == "pct2t")]["value"]
    assert replaced == pytest.approx(0.4, abs=0.1)


# ---------------------------------------------------------------- Table III, of an encoder-decoder


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return write_tiny_t5(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def third(data, t5, tmp_path_factory):
    """The paper's first two arms and unprotected text, by prefixes, an arm that is not run; what customers said."""
    utility = SHIPPED.utility
    changes = {
        "tasks": {"sst2": utility.tasks["sst2"]}, "core": ("clear",), "replaced": (0.45,), "attacked": "prefix",
        "arms": {name: utility.arms[name] for name in ("clear", "t2t", "pct2t", "warm")}, "order": ("t2t", "pct2t"),
        "methods": {"prefix": utility.methods["prefix"]},
    }  # fmt: skip
    tiny = SHIPPED.sizes[Size.TINY].model_copy(update={"attacks": ()})
    update = {"utility": utility.model_copy(update=changes), "sizes": {Size.TINY: tiny}}
    asked = options(data, tmp_path_factory.mktemp("out"), model=t5, only=("table-3",))
    said, finetune = [], Client.finetune

    def told(client, *given, **settings):
        said.append(settings)
        return finetune(client, *given, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "finetune", told)
        return RECIPE.using(SHIPPED.model_copy(update=update)).run(asked, Silent()), said


@pytest.mark.slow
def test_a_t5_writes_labels_and_the_papers_t5_stands_beside_it(third):
    report, said = third
    assert not report.failures
    assert [each["label_words"] for each in said] == [{"0": "negative", "1": "positive"}] * 3
    frame = pandas.DataFrame(report.content["table"])
    own = frame[frame["metric"] == "UA"].set_index(["source", "arm"])
    assert set(own.loc["here"].index) == {"clear", "t2t", "pct2t"}
    assert set(own.loc["here"]["n"]) == {24}
    paper = own.loc["paper"]["value"].to_dict()
    assert paper == pytest.approx({"clear": 0.943, "t2t": 0.637, "pct2t": 0.797}), "of T5 at eta 3, and not of BERT"
    assert (frame[(frame["metric"] == "replaced") & (frame["replaced"] > 0)]["value"] - 0.45).abs().max() < 0.1


@pytest.mark.slow
def test_what_is_not_run_on_a_t5_is_told_and_what_it_has_no_use_for_is_no_deviation(third):
    tables = {table.title: table for table in third[0].tables}
    assert tables["Arms that are not run"].rows == (("PCT2T + warm-up", "an encoder-decoder is not warmed up"),)
    first = tables["Table III: accuracy on privatized words"]
    assert "the paper's T5, %" in first.columns
    assert first.notes[-1].startswith("The paper's own cells with noise: PCT2T is not above T2T in ")
    assert "7 of 15 (T5, prompt)" in first.notes[-1]
    differ = {row[0]: row[3] for row in tables["Where trainings differ from the paper"].rows}
    assert differ["what is written for labels"] == "negative, positive"
    assert not {"prefix tuning", "what the head reads"} & differ.keys()


def test_models_with_a_head_for_labels_are_told_what_they_were(tmp_path, t5):
    """Their cells are known by what they were; so is a decoder's that stands beside an encoder-decoder's."""
    with Lab(options(tmp_path, tmp_path)) as lab:
        cell = _utility(SHIPPED, lab).cell("prefix", "pct2t", 0.45)
    assert cell.tuning == SHIPPED.utility.methods["prefix"]
    assert "label_words" not in cell.model_dump()
    with Lab(options(tmp_path, tmp_path, model=t5)) as lab:
        of = _utility(SHIPPED, lab)
        methods = {name: of.cell(name, "pct2t", 0.45).tuning for name in SHIPPED.utility.methods}
        larger = {scenario.cell for scenario in table_4(of).scenarios}
    assert {name: tuning.pooling for name, tuning in methods.items()} == {
        name: "mean" if name == "prompt" else "sequence" for name in methods
    }, "what each has by default"
    assert {cell.tuning for cell in larger} == {SHIPPED.utility.methods["lora"]}
    assert {cell.label_words for cell in larger} == {None}


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("rapt", "snd")])
def test_other_recipes_refuse_a_t5_before_anything_is_run(data, tmp_path, t5, name):
    size = next(iter(RECIPES[name].config.sizes))
    with pytest.raises(ModelError, match=f"recipe {name} does not run"):
        RECIPES[name].run(options(data, tmp_path, model=t5, size=size), Silent())
    assert not (tmp_path / "cells").exists()


def test_words_are_not_followed_through_two_stacks(data, tmp_path, t5):
    with pytest.raises(ConfigError, match="one stack of blocks"):
        RECIPE.run(options(data, tmp_path, model=t5, only=("figure-8",)), Silent())


def test_the_papers_own_cells_are_counted():
    """By hand from Table III: of T5 its prompt on SST from 3 on, on QQP from 2 on, and its adapter on TP-UK at 3."""
    grammar, reconstruction = exceptions(SHIPPED.utility.ordered)
    assert grammar.endswith("T2T in 1 of 15 (BERT, all weights), 1 of 15 (T5, LoRA), 7 of 15 (T5, prompt).")
    assert reconstruction.endswith("above PCT2T in 1 of 15 (BERT, LoRA), 1 of 15 (BERT, all weights).")
    for table in PAPER["table_3"].values():
        assert len(table["lines"]) == 4 * 3 * 4
        assert {len(line["UA"]) for line in table["lines"] if line["arm"] != "clear"} == {len(table["eta"])}
