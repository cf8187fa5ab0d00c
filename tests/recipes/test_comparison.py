"""Recipe `rapt`, Figures 4 and 9: claims by hand with planted faults, and runs of all arms."""

from __future__ import annotations

import json
import random

import pandas
import pytest

from cutlayer.attacks.evaluation import attributes
from cutlayer.customer import Silent
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.pareto import Plane
from cutlayer.recipes.rapt import RECIPE
from cutlayer.recipes.study import Results
from cutlayer.recipes.tables import Axis
from tests.recipes.test_rapt import sentences
from tests.recipes.worlds import write_split

SHIPPED = RECIPE.config
PLANE = Plane(Axis("arm"), Axis("setting"))


def results(arms):
    """Rows of arms: setting to privacy and utility."""
    rows = []
    for arm, settings in arms.items():
        for setting, (private, useful) in settings.items():
            place = {"arm": arm, "setting": setting, "source": "here", "seed": 0, "n": 1000, "se": 0.005}
            rows += [
                {**place, "metric": "UA", "value": useful, "attack": ""},
                {**place, "metric": "EP", "value": private, "attack": "a"},
            ]
    return Results(pandas.DataFrame(rows), {})


def held(arms):
    (verdict,) = PLANE.ahead("it is ahead", ["clear", "ours"], "theirs", {"attack": "a"})(results(arms))
    return verdict.held


OURS = {"clear": {"-": (0.3, 0.9)}, "ours": {"1": (0.4, 0.85), "2": (0.5, 0.8)}}


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ({"1": (0.3, 0.8), "2": (0.45, 0.7)}, True),
        ({"1": (0.3, 0.8), "2": (0.45, 0.9)}, False),  # planted: better at one setting
        ({"1": (0.3, 0.8), "2": (0.45, 0.825)}, None),  # as good
        ({"1": (0.3, 0.8), "2": (0.6, 0.1)}, None),  # where the other hides more nothing is known
        ({}, None),
    ],
)
def test_a_claim_holds_if_it_does_at_every_setting(theirs, expected):
    assert held({**OURS, "theirs": theirs}) is expected


# ---------------------------------------------------------------- runs


def options(data, out, part):
    return RecipeOptions(size=Size.TINY, seeds=1, model="starter", data=data, out=out, only=(part,))


@pytest.mark.slow
def test_figure_4_has_every_arm_with_its_promise_and_its_cost(tmp_path, monkeypatch):
    monkeypatch.setattr(attributes, "CONTROL_KNOWN", 160)
    monkeypatch.setattr(attributes, "CONTROL_ATTACKED", 160)
    rng = random.Random(0)
    for part, count, first in (("train", 80, 0), ("test", 30, 100)):
        rows = [
            (text, number % 2, rng.choice(("female", "male")), rng.randrange(23, 48), first + number // 2)
            for number, (text, _) in enumerate(sentences(count, first))
        ]
        columns = ("text", "label", "gender", "age", "author_id")
        write_split(tmp_path, "blog_authorship", part, rows, columns)
    write_split(tmp_path, "classic_books", "train_part1", sentences(40, 4), ("text", "label"))
    asked = SHIPPED.comparison
    changes = {
        "task": asked.task.model_copy(update={"topics": None}), "ours": ("pct2t",), "replaced": (0.4,),
        "replaced_tokens": (0.5,), "epsilons": (5,),
    }  # fmt: skip
    config = SHIPPED.model_copy(update={"comparison": asked.model_copy(update=changes)})
    report = RECIPE.using(config).run(options(tmp_path, tmp_path / "out", "figure-4"), Silent())
    assert not report.failures
    frame = pandas.DataFrame(report.content["table"])
    frame = frame.assign(attack=frame["attack"].fillna(""))
    assert set(frame["arm"]) == {"clear", "pct2t", "qu", "dpnr", "cape"}
    for arm, own in frame.groupby("arm"):
        found = {(row.metric, row.column) for row in own.itertuples() if row.value is not None}
        assert ("UA", None) in found or any(metric == "UA" for metric, _ in found), arm
        assert {("EP", "gender"), ("EP", "age")} <= found, arm
    # the same texts are known, and as many are asked for, in every arm
    asked_of = frame[(frame["metric"] == "success") & (frame["column"] == "gender")]
    assert asked_of["n"].nunique() == 1
    words = frame[(frame["arm"] == "pct2t") & (frame["metric"] == "replaced")]
    assert words["value"].item() == pytest.approx(0.4, abs=0.1)
    told = {each["claim"]: each for each in report.content["parts"]["figure-4"]["claims"]}
    assert len(told) == 2 * 3
    (promises,) = (table for table in report.tables if table.title.startswith("What each promises"))
    lines = {row[0]: row[1] for row in promises.rows}
    assert lines["unprotected"] == "nothing"
    assert lines["DPNR"].startswith("epsilon 1,920 between any two texts, 5 for each of 384 numbers; 0.11 less")
    assert lines["CAPE"].startswith("epsilon 3.84 between any two texts")
    for name in ("figure-4.png", "figure-4.csv"):
        assert (tmp_path / "out" / name).stat().st_size > 500
    json.dumps(report.content)


@pytest.mark.slow
def test_figure_9_compares_the_trainings_of_table_3(tmp_path):
    labelled = [(text, str(number % 2)) for number, (text, _) in enumerate(sentences(60, 3))]
    for part in ("train_sentences", "dev"):
        write_split(tmp_path, "sst2", part, labelled, ("text", "label"))
    write_split(tmp_path, "classic_books", "train_part1", sentences(40, 4), ("text", "label"))
    utility = SHIPPED.utility
    arms = {name: utility.arms[name] for name in ("clear", "t2t", "rapt")}
    changes = {"arms": arms, "order": ("t2t", "rapt"), "methods": {"lora": utility.methods["lora"]}, "replaced": (0.4,)}
    config = SHIPPED.model_copy(update={"utility": utility.model_copy(update=changes)})
    report = RECIPE.using(config).run(options(tmp_path, tmp_path / "out", "figure-9"), Silent())
    assert not report.failures
    drawn = pandas.read_csv(tmp_path / "out" / "figure-9.csv")
    clear = drawn[drawn["arm"] == "unprotected"]
    assert (clear["privacy"] == 0).all()
    assert set(drawn["arm"]) == {arm.title for arm in arms.values()}
    by_panel = drawn[drawn["arm"] == "T2T"].set_index("panel")["privacy"]
    assert by_panel["the strongest attack"] == by_panel.drop("the strongest attack").min()
    told = report.content["parts"]["figure-9"]["claims"]
    assert len(told) == 3  # nearest-neighbour, maximum-posterior, the strongest
    assert all("more accurate than T2T" in each["claim"] for each in told)
