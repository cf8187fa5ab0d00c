"""Recipe `rapt`, part `grammar`: a run with all its cells, the measures by hand, and planted faults."""

from __future__ import annotations

import json
import random
from itertools import product
from unittest.mock import Mock

import pandas
import pytest
import torch

from cutlayer.core import ConfigError, DataError
from cutlayer.customer import Silent
from cutlayer.data import load_tagger
from cutlayer.privacy.drawn_words import DrawnWords
from cutlayer.recipes import RECIPES, grammar_cells
from cutlayer.recipes.grammar_cells import GrammarCell, Kept, category_minus_all, tags_that_stay
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.measures.sentence_similarity import sentence_embeddings, similarities
from cutlayer.recipes.model import Model
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.paired import EQUAL, GAINED
from cutlayer.recipes.rapt import PAPER, RECIPE, Choice, Scale, _utility
from cutlayer.recipes.stated import _settings
from cutlayer.recipes.word_training import Arm
from tests.recipes.worlds import write_split

SHIPPED = RECIPE.config
FOUR = ("noun", "verb", "pronoun", "preposition")


def asking(share):
    """The recipe at one share of one choice of words, on few texts."""
    grammar = SHIPPED.grammar.model_copy(update={"choices": (Choice(words=FOUR, replaced=(share,)),)})
    return SHIPPED.model_copy(update={"grammar": grammar, "sizes": {Size.TINY: Scale(sentences=60, posts=60)}})


CONFIG = asking(0.4)


def sentences(count, seed):
    """English that was made up, of words that old books have."""
    rng = random.Random(seed)
    who = ("the old man", "my sister", "a tired doctor", "the king", "every child", "the young lady", "our neighbour")
    does = ("saw", "opened", "wanted", "followed", "painted", "carried", "remembered", "sold")
    what = ("the house", "a small boat", "his horse", "the letter", "an apple", "the garden", "her black coat")
    where = ("in the village", "near the river", "behind the church", "after dinner", "before the war", "with care")
    return [(" ".join(map(rng.choice, (who, does, what, where))) + " .", "0") for _ in range(count)]


def write_texts(folder):
    """Labelled sentences to train and test on, and what an attacker reads beforehand."""
    labelled = [(text, str(number % 2)) for number, (text, _) in enumerate(sentences(60, 3))]
    pairs = [(text, other, label) for (text, label), (other, _) in zip(labelled, sentences(60, 5), strict=True)]
    for part in ("train_sentences", "dev"):
        write_split(folder, "sst2", part, labelled, ("text", "label"))
    for part in ("train", "test"):
        write_split(folder, "qqp", part, pairs, ("text_a", "text_b", "label"))
    write_split(folder, "classic_books", "train_part1", sentences(40, 4), ("text", "label"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("sst2", "blog_authorship")):
        write_split(folder, name, "dev", sentences(70, seed), ("text", "label"))
    return folder


def options(data, out, **changes):
    return RecipeOptions(
        **{"size": Size.TINY, "seeds": 1, "model": "starter", "data": data, "out": out, "only": ("grammar",), **changes}
    )


def verdicts(report):
    return {each["claim"]: each for each in report.content["parts"]["grammar"]["claims"]}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    report = RECIPE.using(CONFIG).run(options(data, out), Silent())
    return report, json.loads((out / "report.json").read_text()), out


def test_it_is_registered_and_shows_its_settings_and_the_papers_numbers():
    recipe = RECIPES["rapt"]
    assert {"table-3", "figure-3", "grammar"} <= set(recipe.parts)
    assert set(SHIPPED.sizes) == set(Size)
    shown = json.loads(json.dumps(recipe.show()))
    first, second = shown["grammar"]["choices"]
    assert first == {"words": list(FOUR), "replaced": [0.15, 0.3, 0.45]}
    assert second["words"] == ["all"]
    assert shown["paper"]["table_2"][0]["replaced"] == [0.94, 0.85, 0.45, 0.14, 0.05]


def test_both_arms_replace_the_share_that_was_asked_for(whole):
    cells = whole[1]["cells"]
    assert {(each["cell"]["texts"]["name"], each["cell"]["candidates"]) for each in cells} == {
        (corpus, candidates) for corpus in ("sst2", "blog_authorship") for candidates in ("category", "all")
    }
    for each in cells:
        words, replaced = (sum(each["result"][name]) for name in ("words", "replaced"))
        assert len(each["result"]["words"]) == 60
        # of 560 words a draw differs by two points from another
        assert abs(replaced / words - 0.4) < 0.02


def test_tags_stay_within_the_category_and_the_claim_says_so(whole):
    told = verdicts(whole[0])
    assert len(told) == 4  # two measures, two corpora
    for claim, each in told.items():
        assert each["stated"] in (PAPER["grammar"]["tags stay"], PAPER["grammar"]["similarity"])
        if claim.startswith("Tags"):
            assert each["held"] is True


def test_the_report_has_the_axes_the_figures_and_the_sentences(whole):
    report, _, out = whole
    table = pandas.read_parquet(out / "results.parquet")
    arms = table[table["metric"] == "tags stay"]
    assert set(arms["words"]) == {"noun,verb,pronoun,preposition"}
    assert set(arms["candidates"]) == {"category", "all"}
    assert set(arms["replaced"]) == {0.4}
    assert set(arms["corpus"]) == {"sst2", "blog_authorship"}
    assert (arms["lower"] < arms["value"]).all()
    assert (arms["value"] < arms["upper"]).all()
    (more,) = table[(table["metric"] == "tags stay, category - all") & (table["corpus"] == "sst2")].to_dict("records")
    own = arms[arms["corpus"] == "sst2"].set_index("candidates")["value"]
    assert more["value"] == pytest.approx(own["category"] - own["all"])
    for name in ("grammar-tags", "grammar-similarity"):
        assert (out / f"{name}.png").stat().st_size > 5000
    (examples,) = (each for each in report.tables if each.title.startswith("Made-up sentences"))
    assert {row[0] for row in examples.rows} == set(SHIPPED.grammar.examples)
    assert len(examples.rows) == 2 * 2
    assert all(row[0] != row[-1] for row in examples.rows)


def test_finished_cells_are_not_run_again(whole, data, monkeypatch):
    monkeypatch.setattr(GrammarCell, "run", Mock(side_effect=AssertionError))
    assert RECIPE.using(CONFIG).run(options(data, whole[2]), Silent()).content == whole[0].content


# ---------------------------------------------------------------- planted faults


@pytest.mark.slow
def test_with_tags_dealt_out_at_random_the_claim_fails(whole, data, monkeypatch):
    """Planted: the tagger that measures tells nothing of words."""
    honest = grammar_cells.tags_that_stay

    def shuffled(tags, drawn, again):
        dealt = random.Random(0).sample(again.tags, len(again.tags))
        return honest(tags, drawn, type(again)(again.words, tuple(dealt), again.after, again.before, again.lengths))

    monkeypatch.setattr(grammar_cells, "tags_that_stay", shuffled)
    told = verdicts(RECIPE.using(asking(0.41)).run(options(data, whole[2]), Silent()))
    assert all(each["held"] is False for claim, each in told.items() if claim.startswith("Tags"))


def test_with_the_candidates_swapped_the_claim_fails(whole, monkeypatch, data):
    """Planted: words of a category are taken for any words, and the other way round."""
    original = Lab.run

    def swapped(lab, cells):
        found = original(lab, cells)
        other = {"category": "all", "all": "category"}
        results = {
            cell: found.results[cell.model_copy(update={"candidates": other[cell.candidates]})]
            for cell in found.results
        }
        return type(found)(results, found.failures)

    monkeypatch.setattr(Lab, "run", swapped)
    told = verdicts(RECIPE.using(CONFIG).run(options(data, whole[2]), Silent()))
    assert all(each["held"] is False for claim, each in told.items() if claim.startswith("Tags"))


# ---------------------------------------------------------------- the measures by hand


def test_a_tag_stays_where_a_word_of_it_begins_at_its_place():
    again = load_tagger().tag(["The dog sees 2 cats."])
    assert again.tags == ("DET", "NOUN", "VERB", "NUM", "NOUN", "PUNCT")
    assert again.starts.tolist() == [0, 4, 8, 13, 15, 19]
    pieces = torch.zeros(0)
    written = [("", "The"), (" ", "dog"), (" ", "sees"), (" ", "2 cats"), ("", ".")]
    drawn = DrawnWords(
        places=pieces, changed=pieces, pieces=pandas.DataFrame(written).to_numpy(dtype=object),
        lengths=torch.tensor([5]), own=torch.ones(5, dtype=torch.bool),
    )  # fmt: skip
    assert drawn.spans.tolist() == [[0, 3], [4, 7], [8, 12], [13, 19], [19, 20]]
    # the fourth word begins where one of another tag does
    stays = tags_that_stay(["DET", "NOUN", "NOUN", "NOUN", "PUNCT"], drawn, again)
    assert stays.tolist() == [True, True, False, False, True]


def test_starts_are_found_behind_blanks_and_empty_texts():
    texts = ["  two words ", "", "   ", "a  third\n"]
    tagged = load_tagger().tag(texts)
    places = [
        text.index(word) for text, word in zip((texts[0], texts[0], texts[3], texts[3]), tagged.words, strict=True)
    ]
    assert tagged.starts.tolist() == places


def kept(tags, similarity):
    return Kept(eta=1.0, words=(4, 6), replaced=(2, 2), tags=tags, similarity=similarity, examples=())


def test_differences_are_of_the_same_texts_over_all_seeds():
    asked = {
        "texts": {"name": "sst2", "part": "dev"}, "words": FOUR, "share": 0.4, "most_words": 9, "examples": (),
        "space": {"name": "s", "fingerprint": ""}, "encoder": {"name": "s", "fingerprint": ""},
    }  # fmt: skip
    found = {
        GrammarCell(**asked, candidates="category", seed=0): kept((4, 6), (0.9, 0.7)),
        GrammarCell(**asked, candidates="category", seed=1): kept((3, 5), (0.8, 0.6)),
        GrammarCell(**asked, candidates="all", seed=0): kept((2, 3), (0.5, 0.5)),
        GrammarCell(**asked, candidates="all", seed=1): kept((2, 4), (0.6, 0.4)),
    }
    more = {each.metric: each for each in category_minus_all(found)}
    tags, alike = more["tags stay, category - all"], more["similarity, category - all"]
    assert (tags.value, tags.n) == (pytest.approx(7 / 20), 10)
    assert (alike.value, alike.n) == (pytest.approx(1.0 / 4), 2)
    # of two texts, either may be drawn twice
    assert (tags.lower, tags.upper) == (
        pytest.approx(3 / 8),
        pytest.approx(3 / 8),
    ) or tags.lower < tags.value < tags.upper
    assert more["replaced, measured, category - all"].value == 0
    assert not list(category_minus_all({cell: each for cell, each in found.items() if cell.candidates == "all"}))


def test_equal_texts_are_alike_whatever_they_stand_beside():
    encoder = Model("starter", None)
    texts = ["A cat sat on the mat.", "The weather was fine and we went for a long walk to the sea.", "Stocks fell."]
    whole = sentence_embeddings(texts, encoder)
    for row, text in enumerate(texts):
        torch.testing.assert_close(sentence_embeddings([text], encoder)[0], whole[row], rtol=0, atol=1e-5)
    assert similarities(texts, texts, encoder).tolist() == pytest.approx([1, 1, 1])
    near, far = similarities([texts[0]] * 2, ["A kitten lay on the rug.", texts[2]], encoder).tolist()
    assert near > far + 0.2


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("changes", [{"only": ("table-9",)}, {"size": Size.FULL}])
def test_what_it_cannot_run_is_refused_before_anything_is(data, tmp_path, changes):
    with pytest.raises(ConfigError):
        RECIPE.using(CONFIG).run(options(data, tmp_path, **changes), Silent())


def test_a_missing_data_set_is_named_first(tmp_path):
    with pytest.raises(DataError, match="sst2"):
        RECIPE.using(CONFIG).run(options(tmp_path, tmp_path / "out"), Silent())


@pytest.mark.slow
def test_a_share_that_no_eta_gives_fails_by_name(whole, data):
    report = RECIPE.using(asking(0.9)).run(options(data, whole[2]), Silent())
    assert len(report.failures) == 4
    assert all("leave as they are" in why for why in report.failures.values())


# ---------------------------------------------------------------- Table III and Figure 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two arms and unprotected text, by one method; and other draws."""
    folder, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("out")
    write_texts(folder)
    utility = SHIPPED.utility
    arms = {name: utility.arms[name] for name in ("clear", "pct2t", "rapt")}
    changes = {
        "tasks": {name: utility.tasks[name] for name in ("sst2", "qqp")}, "core": ("pct2t",), "arms": arms,
        "order": ("pct2t", "rapt"), "methods": {"lora": utility.methods["lora"]}, "rates": {"lora": (0.002,)},
    }  # fmt: skip
    attacks = ("nearest-neighbour",)  # those that fit a channel take most of the time, and have tests of their own
    tiny = SHIPPED.sizes[Size.TINY].model_copy(update={"attacks": attacks})
    beyond = {
        "tasks": ("sst2",), "replaced": (0.4,), "read": (0.3, 0.4), "attacks": (), "attacked_words": None,
        "aim": SHIPPED.beyond.aim.model_copy(update={"read": 0.3, "arms": ("components",)}), "dear": {},
        "arms": {name: arm for name, arm in SHIPPED.beyond.arms.items() if arm.warm_up is None},
    }  # fmt: skip
    config = SHIPPED.model_copy(
        update={
            "utility": utility.model_copy(update={**changes, "replaced": (0.4,)}),
            "beyond": SHIPPED.beyond.model_copy(update=beyond),
            "sizes": {Size.TINY: tiny},
        }
    )
    only = ("rates", "table-3", "figure-3", "beyond")
    return RECIPE.using(config).run(options(folder, out, only=only), Silent())


@pytest.mark.slow
def test_each_arm_is_trained_and_attacked_at_its_share(trained):
    assert not trained.failures
    frame = pandas.DataFrame(trained.content["table"])
    replaced = frame[(frame["metric"] == "replaced") & (frame["part"] == "table-3")]
    places = {(row.task, row.arm, row.replaced): row.value for row in replaced.itertuples()}
    assert {place[1:] for place in places if place[0] == "qqp"} == {("pct2t", 0.4)}
    assert abs(places["qqp", "pct2t", 0.4] - 0.4) < 0.1
    found = {(arm, share): value for (task, arm, share), value in places.items() if task == "sst2"}
    assert set(found) == {("clear", 0.0), ("pct2t", 0.4), ("rapt", 0.4)}
    for (arm, asked), share in found.items():
        assert arm == "clear" or abs(share - asked) < 0.1
    # public words before texts change nothing of what texts become
    assert found["pct2t", 0.4] == found["rapt", 0.4]
    own = frame[(frame["metric"] == "UA") & (frame["part"] == "table-3") & (frame["task"] == "sst2")]
    accuracies = dict(own[["arm", "value"]].itertuples(index=False))
    (gain,) = frame[frame["metric"] == GAINED].itertuples()
    assert (gain.over, gain.arm, gain.n) == ("pct2t", "rapt", 24)
    assert gain.value == pytest.approx(accuracies["rapt"] - accuracies["pct2t"])


@pytest.mark.slow
def test_other_draws_and_distances_replace_what_was_asked_for_and_are_compared(trained):
    frame = pandas.DataFrame(trained.content["table"])
    own = frame[frame["part"] == "beyond"]
    for row in own[own["metric"] == "replaced"].itertuples():
        assert abs(row.value - row.replaced) < 0.1
    etas = dict(own[own["metric"] == "eta"][["arm", "value"]].itertuples(index=False))
    assert len(set(etas.values())) == len(etas) == len(SHIPPED.beyond.arms) - 1, "all but the arm that takes a warm-up"
    compared = own[own["metric"] == EQUAL]
    assert list(compared["arm"]) == ["exponential", "exponential", "components", "components"]
    assert list(compared["read"]) == [0.3, 0.4, 0.3, 0.4]
    assert set(compared["note"]) == {"fewer than two shares"}
    assert [each["held"] for each in trained.content["parts"]["beyond"]["claims"]] == [None, None, None]


@pytest.mark.slow
def test_rates_are_tried_on_dev_of_unprotected_text_and_by_default_fit_the_models_width(trained):
    frame = pandas.DataFrame(trained.content["table"])
    (tried,) = frame[(frame["part"] == "rates") & (frame["metric"] == "UA")].itertuples()
    assert (tried.method, tried.rate, tried.n) == ("lora", 0.002, 6), "a tenth of 60 texts"
    cells = [each["cell"] for each in trained.content["cells"]]
    rates = {cell["training"]["learning_rate"] for cell in cells if "arm" in cell}
    assert rates == {8e-4}, "3e-4 at a width of 1024, and MiniLM has 384"


def test_at_full_the_papers_training_is_that_of_every_arm(tmp_path):
    asked = options(tmp_path, tmp_path / "out", size=Size.FULL)
    with Lab(asked) as lab:
        of = _utility(SHIPPED, lab)
        for method, (task, train) in product(SHIPPED.utility.methods, {"sst2": "train", "qqp": "train"}.items()):
            cell = of.cell(method, "pct2t", 0.15, task)
            told = dict(_settings(cell.training, cell.tuning))
            assert (cell.task.train, cell.limits.train) == (train, None)
            for setting in (
                "optimiser",
                "schedule of the learning rate",
                "learning rate",
                "batch size",
                "tokens per text",
            ):
                assert told[setting] == PAPER["training"][setting]["same"]
            assert cell.training.epochs == cell.training.patience == 4
            assert "warm-up of the learning rate" not in told
        weights = {name: of.cell("lora", name, 0.15).arm.reconstruction.weight for name in ("plain", "rapt")}
        assert weights == {"plain": 0, "rapt": 1}


@pytest.mark.slow
def test_words_in_clear_count_as_read(trained):
    frame = pandas.DataFrame(trained.content["table"])
    frame = frame.assign(attack=frame["attack"].fillna(""))
    own = frame[(frame["part"] == "figure-3") & frame["attack"].isin(["", "nearest-neighbour"])]
    places = list(own.groupby(["arm", "replaced"]))
    assert len(places) == 2
    for _, place in places:
        found = dict(zip(place["metric"], place["value"], strict=True))
        clear = found["in clear"]
        assert 0 < clear < 1
        assert found["read, all words"] == pytest.approx(clear + (1 - clear) * found["success"])
        # the nearest word of what was released is what was released
        assert found["read, all words"] == pytest.approx(1 - found["replaced"], abs=0.05)


@pytest.mark.parametrize(
    ("part", "setting", "value", "said"),
    [
        ("table-3", "utility.order", "[t2t, pct3t]", "no arm named 'pct3t'.*Did you mean 'pct2t'"),
        ("table-3", "utility.core", "[clear, t2]", "no arm named 't2'"),
        ("figure-3", "utility.attacked", "lara", "no method of tuning named 'lara'.*Did you mean 'lora'"),
        ("beyond", "beyond.tasks", "[sst]", "no task named 'sst'.*Did you mean 'sst2'"),
        ("figure-4", "comparison.ours", "[rapt, pct]", "no arm named 'pct'"),
        ("figure-9", "utility.order", "[t2t, none]", "no arm named 'none'"),
        ("table-4", "larger.arms", "[clear, t3t]", "no arm named 't3t'"),
        ("table-5", "writing.order", "[t2t, warm]", "no arm named 'warm'"),
        ("table-7", "intrinsic.without", "plane", "no arm named 'plane'"),
        ("figure-6", "categories.method", "prefixes", "no method of tuning named 'prefixes'"),
        ("figure-8", "geometry.closer", "rapd", "no arm named 'rapd'"),
    ],
)
def test_names_of_other_settings_that_are_none_are_refused(tmp_path, part, setting, value, said):
    asked = options(tmp_path, tmp_path / "out", only=(part,))
    with pytest.raises(ConfigError, match=said):
        RECIPE.run(asked.model_copy(update={"settings": {setting: value}}), Silent())
    assert not (tmp_path / "out" / "cells").exists()


# ---------------------------------------------------------------- warm-up


def test_cells_of_arms_without_a_warm_up_are_known_by_what_they_were():
    arms = SHIPPED.utility.arms
    assert [name for name, arm in arms.items() if "warm_up" in arm.model_dump_json()] == ["warm"]
    assert Arm.model_validate_json(arms["warm"].model_dump_json()) == arms["warm"]


@pytest.mark.slow
def test_a_warmed_model_gets_the_releases_that_any_model_gets(tmp_path):
    write_texts(tmp_path)
    utility = SHIPPED.utility
    arms = {name: utility.arms[name] for name in ("clear", "pct2t", "warm")}
    changes = {
        "tasks": {"sst2": utility.tasks["sst2"]},
        "arms": arms,
        "order": ("clear", "pct2t"),
        "methods": {"lora": utility.methods["lora"]},
        "replaced": (0.4,),
    }
    tiny = SHIPPED.sizes[Size.TINY].model_copy(update={"attacks": ("nearest-neighbour",)})
    update = {"utility": utility.model_copy(update=changes), "sizes": {Size.TINY: tiny}}
    config = SHIPPED.model_copy(update=update)
    report = RECIPE.using(config).run(options(tmp_path, tmp_path / "out", only=("table-3",)), Silent())
    assert not report.failures
    frame = pandas.DataFrame(report.content["table"]).assign(attack=lambda table: table["attack"].fillna(""))
    own, warm = (
        frame[frame["arm"] == arm].set_index(["metric", "attack"])["value"].to_dict() for arm in ("pct2t", "warm")
    )
    for metric in (("replaced", ""), ("in clear", ""), ("eta", ""), ("success", "nearest-neighbour")):
        assert own[metric] == warm[metric]
    assert any(each["claim"].endswith("(ours).") for each in report.content["parts"]["table-3"]["claims"])
    (folder,) = (tmp_path / "out" / "models").glob("warm-*/warm-up.json")
    assert json.loads(folder.read_text())["training"]["steps"] == 2
