"""Recipe `rapt`, the parts beside Table III: what they run, what they measure by hand, and planted faults."""

from __future__ import annotations

import gzip
import json
import math
from itertools import combinations

import pandas
import pytest
import torch

from cutlayer.attacks import Measured
from cutlayer.core import Proportion
from cutlayer.customer import Silent
from cutlayer.recipes import inference, word_cells
from cutlayer.recipes.attribute_readings import NAMED, Corpus
from cutlayer.recipes.author_attacks import STRONGEST
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Number
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.rapt import RECIPE, Scale
from cutlayer.recipes.rapt_categories import Categories, _apart
from cutlayer.recipes.rapt_intrinsic import PAPER
from cutlayer.recipes.replaced_readings import ReplacedCell, ReplacedCorpus, _regrouped
from cutlayer.recipes.replacement import Replacement, Source
from cutlayer.recipes.word_cells import Spread, spread
from cutlayer.recipes.word_training import READ, WordsAnswered, WordTrainingCell
from tests.recipes.test_rapt import sentences, write_texts
from tests.recipes.worlds import write_split

pytestmark = pytest.mark.usefixtures("needs_words")
SHIPPED = RECIPE.config
SMALL = ("pronoun", "preposition", "determiner", "symbol")
"""Categories of few words, whose distances take no time."""


@pytest.fixture(scope="module")
def needs_words():
    pytest.importorskip("spacy", reason="the tagger needs spaCy: pip install 'cutlayer[words]'")


def options(data, out, *only):
    return RecipeOptions(size=Size.TINY, seeds=1, model="starter", data=data, out=out, only=only)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder)
    return folder


def table(report, part):
    frame = pandas.DataFrame(report.content["table"])
    return frame[frame["part"] == part]


# ---------------------------------------------------------------- Tables I and II, Figure 7


@pytest.fixture(scope="module")
def untrained(data, tmp_path_factory):
    asked = {"categories": SMALL, "protects": ("preposition",), "weak": ("determiner",), "alike": SMALL[:2]}
    categories = SHIPPED.categories.model_copy(update=asked)
    of = {name: SHIPPED.shares.of[name] for name in ("chosen", "pct2t")}
    shares = SHIPPED.shares.model_copy(update={"replaced": (0.85, 0.45), "of": of})
    config = SHIPPED.model_copy(update={"categories": categories, "shares": shares, "sizes": {Size.TINY: Scale()}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Categories, "eta", 40.0)  # is found as those of Table II are, among all words
        out = tmp_path_factory.mktemp("out")
        return RECIPE.using(config).run(options(data, out, "table-1", "table-2", "figure-7"), Silent()), out


def test_plain_words_are_public_words_of_the_categories_and_stand_beside_the_papers(untrained):
    report, _ = untrained
    (listed,) = (each for each in report.tables if each.title == "Table I: plain words")
    here = {row[0]: row[2].split() for row in listed.rows if row[1] == "here"}
    assert {task: len(words) for task, words in here.items()} == dict.fromkeys(SHIPPED.plain_words.tasks, 40)
    assert len({tuple(words) for words in here.values()}) == 3
    assert [row[2] for row in listed.rows if row[1] == "the paper"] == [*PAPER["table_1"].values()]
    found = table(report, "table-1").set_index(["task", "metric"])["value"]
    assert [found[task, "printed"] for task in here] == [40, 40, 40]
    assert (found["QQP", "known"], found["QQP", "of the categories"]) == (24, 23)


def test_shares_of_chosen_words_have_etas_where_those_of_all_words_have_none(untrained):
    report, _ = untrained
    rows = table(report, "table-2")
    here = rows[(rows["source"] == "here") & (rows["metric"] == "eta")].set_index(["of", "replaced"])
    assert here["value"]["chosen", 0.85] < here["value"]["chosen", 0.45]
    assert here["value"]["pct2t", 0.45] < here["value"]["chosen", 0.45], "more of the chosen ones, for as many of all"
    assert math.isnan(here["value"]["pct2t", 0.85])
    assert "leave as they are" in here["note"]["pct2t", 0.85]
    held = {each["claim"]: each["held"] for each in report.content["parts"]["table-2"]["claims"]}
    assert held["Table II's shares can be PCT2T, of all words."] is False
    assert held["Table II's shares can be PCT2T, of the four categories' words."] is True
    paper = rows[(rows["source"] == "paper") & (rows["embedding"] == "BERT")]
    assert paper.set_index("replaced")["value"][0.45] == 125


def test_a_category_has_its_distances_and_what_a_draw_replaces(untrained):
    report, out = untrained
    found = table(report, "figure-7").set_index(["category", "metric"])["value"]
    for category in SMALL:
        assert 0 < found[category, "mean distance"] < 3
        assert 0 <= found[category, "EP, known words"] <= found[category, "EP"] <= 1
    assert (out / "figure-7.png").stat().st_size > 5000
    assert (out / "figure-7.csv").read_text().count("here") == len(SMALL)


def test_distances_of_all_pairs_in_blocks(monkeypatch):
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    pairs = torch.tensor([float((rows[i] - rows[j]).norm()) for i, j in combinations(range(7), 2)]).double()
    for most in (1, 14, 2**20):
        monkeypatch.setattr(word_cells, "_PAIRS", most)
        mean, variance = spread(rows)
        assert mean == pytest.approx(float(pairs.mean()))
        assert variance == pytest.approx(float(pairs.var(correction=0)))


def test_words_that_the_vocabulary_lacks_are_told_apart():
    found = Spread(vocabulary=9, mean=1.0, variance=0.1, drawn=(4, 6), replaced=(3, 3), unknown=(2, 0))
    assert found.share("EP", known=False).value == pytest.approx(6 / 10)
    assert found.share("EP, known words", known=True).value == pytest.approx(4 / 8)
    nothing = found.model_copy(update={"drawn": (0, 0), "replaced": (0, 0), "unknown": (0, 0)})
    assert nothing.share("EP", known=False).note == "no such word was drawn"


def test_the_claim_is_about_the_two_that_lie_nearest():
    class Told:
        def number(self, metric, *, category):
            return Number({"a": 0.8, "b": 0.6, "c": 0.5, "d": 0.3}[category], 0.01, 100)

    def verdict(high, low):
        places = ({each: {"category": each} for each in some} for some in (high, low))
        (found,) = _apart("claim", "EP", *places, stated="")(Told())
        return found

    assert verdict("ab", "cd").held is True
    assert "60.0 % ± 1.0 (b), 50.0 % ± 1.0 (c)" in verdict("ab", "cd").here
    assert verdict("ac", "bd").held is False
    assert verdict("ab", "").held is None


# ---------------------------------------------------------------- one thing at a time


@pytest.fixture(scope="module")
def varied(data, tmp_path_factory):
    """All cells of these parts, with numbers of no training: `test_rapt.py` trains such cells."""
    made = WordsAnswered(
        ua=Proportion.of(14, 24),
        right=(True,) * 14 + (False,) * 10,
        rows=(40, 16, 24),
        epochs=1,
        seconds=1.0,
        replaced=0.45,
        eta=40.0,
        clear=0.5,
    )
    out = tmp_path_factory.mktemp("out")
    only = ("table-6", "table-7", "table-8", "figure-5")
    (space,) = SHIPPED.intrinsic.made.values()
    made_of = {"ppmi-svd": space.model_copy(update={"texts": (SHIPPED.utility.public,), "width": 4})}
    config = SHIPPED.model_copy(update={"intrinsic": SHIPPED.intrinsic.model_copy(update={"made": made_of})})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WordTrainingCell, "run", lambda cell, lab: made)
        patch.setattr(WordTrainingCell, "clear", lambda cell, lab: None)
        return RECIPE.using(config).run(options(data, out, *only), Silent()), out


@pytest.mark.slow
def test_all_that_is_shipped_of_words_and_accuracy_is_told(data, tmp_path, monkeypatch):
    """Tables and claims of every arm, task, method and share, of numbers of no training."""

    def made(cell, lab):
        right = int(20 - 10 * (cell.share or 0)) + (cell.arm.components is not None)
        read = round(990 * (1 - (cell.share or 0)))
        attacks = (
            Measured(
                attack=name, success=Proportion.of(read + number, 1000), interval=(0, 1), chance=0.01, p_value=0.0,
                looks=1, controls=(),
            )
            for number, name in enumerate(cell.attacks)
        )  # fmt: skip
        return WordsAnswered(
            ua=Proportion.of(right, 24), right=(True,) * right + (False,) * (24 - right), rows=(40, 16, 24), epochs=1,
            seconds=1.0, replaced=cell.share, eta=40.0, clear=0.5, attacks=tuple(attacks),
        )  # fmt: skip

    for part in ("train", "test"):
        rows = [(text, label, "male", 20, number) for number, (text, label) in enumerate(sentences(60, 6))]
        columns = ("text", "label", "gender", "age", "author_id")
        write_split(data, "blog_authorship", part, rows, columns)
    monkeypatch.setattr(WordTrainingCell, "run", made)
    monkeypatch.setattr(WordTrainingCell, "clear", lambda cell, lab: None)
    tasks = dict(SHIPPED.utility.tasks)
    tasks["blog"] = tasks["blog"].model_copy(update={"topics": None})
    config = SHIPPED.model_copy(update={"utility": SHIPPED.utility.model_copy(update={"tasks": tasks})})
    parts = ("table-3", "figure-3", "beyond", "figure-9", "table-4")
    report = RECIPE.using(config).run(options(data, tmp_path, *parts), Silent())
    assert not report.failures
    claims = {each["claim"]: each["held"] for part in parts for each in report.content["parts"][part]["claims"]}
    read = pandas.DataFrame(report.content["table"])
    read = read[(read["part"] == "figure-3") & (read["metric"] == READ) & (read["arm"] == "pct2t")]
    for _, own in read.groupby("replaced"):
        told = own.set_index("attack")[["value", "note"]]
        most = told.drop(index=STRONGEST)["value"].idxmax()
        assert tuple(told.loc[STRONGEST]) == (told.loc[most, "value"], most)
        assert len(told) == 1 + len(SHIPPED.sizes[Size.TINY].attacks)
    assert sum(claim.startswith(STRONGEST) for claim in claims) == 2 * 2, "two shares, two of the paper's steps"
    steps = [tuple(claim.split(", ")[:3]) for claim in claims if "(Table III)" in claim]
    whole = {
        (task, method, f"{share} % replaced: PCT2T is more accurate than T2T (Table III).")
        for task in ("SST", "QQP", "Blog") for method in ("LoRA", "prefix") for share in (15, 45)
    }  # fmt: skip
    assert whole <= set(steps)
    reduced = {(task, method, said.partition(":")[0]) for task, method, said in set(steps) - whole}
    assert {("SST", method, "45 % replaced") for method in ("prompt", "all weights")} <= reduced
    assert {task for task, method, _ in reduced if method not in ("LoRA", "prefix")} == {"SST"}
    trained = pandas.DataFrame(report.content["table"])
    trained = trained[(trained["part"] == "table-3") & (trained["metric"] == "UA")]
    places = ["task", "method", "arm", "replaced"]
    ours, papers = (set(trained[trained["source"] == of][places].itertuples(index=False)) for of in ("here", "paper"))
    assert papers < ours, "the paper's numbers stand beside ours alone"
    assert {arm for task, method, arm, _ in ours if method == "prompt"} == set(SHIPPED.utility.core)
    won = "16 principal components: more accurate than PCT2T where as many of the drawn words are read"
    assert [held for claim, held in claims.items() if won in claim] == [None] * 3
    (third,) = (each for each in report.tables if each.title == "Where the strongest attack reads as many of all words")
    arms, methods = SHIPPED.utility.arms, SHIPPED.utility.methods
    compared = {row[1:4] for row in third.rows if row[0] == "SST"}
    whole = len(methods) - len(SHIPPED.sizes[Size.TINY].reduced)
    told = "the paper's two steps, and warm-up over both of their ends, where that is trained"
    assert len(compared) == whole * (2 + 2) + (len(methods) - whole) * 2, told
    assert {row[3] for row in third.rows if row[2] == arms["warm"].title} == {arms["pct2t"].title, arms["rapt"].title}


def test_what_is_one_of_table_iiis_trainings_is_computed_once(varied):
    report, out = varied
    assert not report.failures
    cells = [each["cell"] for each in report.content["cells"] if "arm" in each["cell"]]
    arms = [(cell["arm"]["title"], cell["arm"]["reconstruction"]) for cell in cells]
    titles = {name: arm.title for name, arm in SHIPPED.utility.arms.items()}
    # Table III's: the arm itself, without plain words, and weight 0; of the others as many as the page says
    assert [title for title, _ in arms].count(titles["pct2t"]) == 1
    assert [title for title, _ in arms].count(titles["plain"]) == 1, "weight 0 is Table III's control"
    assert len(cells) == 4 + 1 + 5 + 5 + 8
    own = SHIPPED.utility.arms["rapt"].reconstruction.model_dump()
    same = [cell for cell in cells if cell["arm"]["reconstruction"] == own]
    assert len(same) == 1 + 2 + 5, "once for all parts; other vectors, other positions"
    assert all(cell["share"] == SHIPPED.intrinsic.replaced for cell in cells)
    for name, values in SHIPPED.intrinsic.varied.items():
        assert {found[name] for _, found in arms if name in found} >= set(values)
    figure = (out / "figure-5.csv").read_text().splitlines()
    assert len(figure) == 1 + sum(map(len, SHIPPED.intrinsic.varied.values()))
    rows = pandas.DataFrame(report.content["table"])
    assert set(rows[rows["metric"] == "UA"]["part"]) == {"table-6", "table-7", "table-8", "figure-5"}
    assert (out / "figure-5.png").stat().st_size > 5000


def test_the_papers_numbers_stand_beside_ours(varied):
    report, _ = varied
    rows = pandas.DataFrame(report.content["table"])
    paper = rows[rows["source"] == "paper"]
    seventh = paper[paper["part"] == "table-7"].set_index("choice")["value"]
    assert [seventh[str(number)] for number in range(1, 6)] == pytest.approx([0.843, 0.848, 0.842, 0.847, 0.846])
    parameters = rows[(rows["part"] == "table-8") & (rows["length"] == 10) & (rows["method"] == "prefix")].set_index(
        ["source", "metric"]
    )["value"]
    assert parameters["paper", "parameters"] == 610_000
    assert parameters["here", "parameters, BERT"] == 10 * 12 * 2 * 768
    assert parameters["here", "parameters"] == 10 * 6 * 2 * 384
    (eighth,) = (each for each in report.tables if each.title.startswith("Table VIII"))
    assert [row[:2] for row in eighth.rows] == [
        (method, n) for method in ("prefix", "prompt") for n in ("10", "40", "100")
    ]


# ---------------------------------------------------------------- Figure 6


def test_marked_words_keep_their_places_whatever_they_become():
    words = ["He", "doesn't", "like", "New-York", "."]
    starts = [0, 3, 7, 11, 16, 19, 20, 25]
    pieces = [["", "we"], [" ", "may"], [" ", "not"], [" ", "like"], [" ", "old"], ["", "-"], ["", "rome"], [" ", "."]]
    assert _regrouped(words, starts, pieces) == ["we", "may not", "like", "old-rome", "."]
    # a word in which none begins shows nothing of itself
    assert _regrouped(["a", "b", "c"], [0, 4], [["", "x"], [" ", "y"]]) == ["x", "-", "y"]


@pytest.fixture
def corpora(tmp_path):
    """Posts and sentences with entities, of words that old books have."""
    for number, part in enumerate(("train", "dev", "test")):
        rows = [
            {
                "text": text,
                "gender": ("female", "male")[author % 2],
                "age_group": "20s",
                "age": 20 + author,
                "author_id": 100 * number + author,
            }
            for author, (text, _) in enumerate(sentences(30, number))
        ]
        write_lines(tmp_path / "blog_authorship" / f"{part}.jsonl.gz", rows)
        rows = [{"tokens": text.split(), "tags": ["O"] * len(text.split())} for text, _ in sentences(20, 10 + number)]
        rows[0]["tags"][1] = "B-person"
        write_lines(tmp_path / "wnut17" / f"{part}.jsonl.gz", rows)
    return tmp_path


def write_lines(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def test_what_is_attacked_is_replaced_and_what_the_attacker_has_is_not(corpora, tmp_path):
    config = inference.RECIPE.config
    scale = config.sizes[Size.TINY].model_copy(
        update={"labelled": (20,), "attacked": 20, "inverted": 4, "public": 20, "named": 20, "annotated": 20}
    )
    with Lab(options(corpora, tmp_path / "out")) as lab:
        replacement = Replacement(words=("preposition",), candidates="category", space=Source.of("starter", lab))
        cell = ReplacedCell(
            model=lab.model().fingerprint, posts=config.posts, entities=config.entities, attack="ner-clear", eta=1e-3,
            scale=scale, replacement=replacement,
        )  # fmt: skip
        found, clear = ReplacedCorpus(cell, lab), Corpus(cell.unprotected, lab)
    for name in ("known", "attacked"):
        ours, as_they_were = getattr(found, name), getattr(clear, name)
        assert not torch.equal(ours.tokens.values, as_they_were.tokens.values), name
        assert torch.equal(ours.groups, as_they_were.groups)
    for name in ("public", "annotated"):
        assert torch.equal(getattr(found, name).tokens.values, getattr(clear, name).tokens.values), name
    (own, tags), (before, marked) = found.named, clear.named
    assert not torch.equal(own.values, before.values)
    assert tags.values[tags.values >= 0].tolist() == marked.values[marked.values >= 0].tolist()
    assert 0 < found.replaced[NAMED] < 1
