"""The experiment engine: cells into one long table, and tables, figures and claims out of it."""

from __future__ import annotations

import copy
import json
from functools import partial

import pandas
import pytest

from cutlayer.core import ConfigError, Spec
from cutlayer.core.executors import Done, executor
from cutlayer.core.worker import attempt
from cutlayer.customer import Silent
from cutlayer.recipes import RECIPES, figures, layouts
from cutlayer.recipes.claims import above, alike, all_below, at_least, at_most, both, falls, where_read
from cutlayer.recipes.figures import Figure, Reference
from cutlayer.recipes.lab import Lab, Outcomes, run_cell
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Measure, Number
from cutlayer.recipes.options import RecipeConfig, RecipeOptions, Size, read_yaml
from cutlayer.recipes.recipe import Recipe, long_table
from cutlayer.recipes.study import Part, Results, Scenario, Stated
from cutlayer.recipes.tables import Axis, Column, Pivot, complement, count, plain, points, share
from tests.recipes.engine_cells import HalfCell, Halves, SumCell
from tests.service.tiny import write_tiny_bert


def results(rows, *, seeds=1, stated=(), same_texts=True):
    """A part's results from numbers: (axes, success) pairs, the same for all seeds but for a spread."""
    scenarios, found = [], {}
    for number, (axes, value) in enumerate(rows):
        for seed in range(seeds):
            cell = HalfCell(number=number, seed=seed)
            scenarios.append(Scenario(cell, axes))
            found[cell] = Halves(share=value + 0.02 * seed)
    part = Part("a part", scenarios, stated=stated, same_texts=same_texts)
    return Results(long_table({"part": part}, Outcomes(found)), found, scenarios, same_texts=same_texts)


NEAR, FAR = {"eta": 40.0}, {"eta": 80.0}


def test_every_number_is_a_row_with_its_place():
    frame = results([(NEAR, 0.2), (FAR, 0.6)], stated=[Stated("success", 0.5, NEAR, "halving")]).frame
    assert list(frame.columns) == [
        "part", "source", "seed", "eta", "half", "attack", "metric", "value", "se", "n", "lower", "upper",
        "independent", "note",
    ]  # fmt: skip
    ours = frame[(frame["source"] == "here") & (frame["metric"] == "success")]
    assert ours["value"].tolist() == [0.2, 0.6]
    assert frame[frame["metric"] == "kept"]["half"].tolist() == ["other", "other"]
    assert frame[frame["source"] == "paper"]["value"].tolist() == [0.5]


def test_seeds_are_pooled_and_settings_never_are():
    found = results([(NEAR, 0.2), (FAR, 0.6)], seeds=2)
    near = found.number("success", eta=40.0)
    # the spread over seeds, and the texts, which are the same in both
    assert (near.value, near.runs, near.n) == (pytest.approx(0.21), 2, 100)
    assert near.se == pytest.approx((0.0002 / 2 + 0.01**2) ** 0.5)
    with pytest.raises(ValueError, match="several places"):
        found.number("success")
    assert found.number("success", eta=50.0) == Number(None)
    apart = results([(NEAR, 0.2)], seeds=2, same_texts=False).number("success", eta=40.0)
    assert (apart.n, apart.se) == (200, pytest.approx(0.01 / 2**0.5))


def test_one_run_without_a_number_leaves_the_setting_without_one():
    found = results([(NEAR, 0.2)], seeds=2)
    found.frame.loc[found.frame["seed"] == 1, ["value", "note"]] = [None, "control failed: it reads noise"]
    assert found.number("success", eta=40.0).note == "control failed: it reads noise"
    column = Column("read, %", "success")
    assert Pivot("t", [Axis("eta")], [column]).table(found).rows == (("40", "control failed"),)


def test_a_pivot_has_metrics_or_the_places_of_an_axis_as_columns():
    found = results([(NEAR, 0.2), (FAR, 0.6)], stated=[Stated("success", 0.5, FAR, "halving")])
    read = Column("read, %", "success")
    table = Pivot("t", [Axis("eta", "η")], [read, Column("kept, %", "kept", {"half": "other"})]).table(found)
    assert table.columns == ("η", "read, %", "kept, %")
    assert table.rows == (("40", "20.0 ± 1.0", "80.0"), ("80", "60.0 ± 1.0", "40.0"))
    across = Pivot("t", [], [read], across=Axis("eta", show=lambda eta: f"{eta:g}")).table(found)
    assert across.columns == ("", "eta 40", "eta 80")
    assert across.rows == (("read, %", "20.0 ± 1.0", "60.0 ± 1.0"),)
    named = Pivot("t", [Axis("eta", show={40: "forty"})], [read]).table(found)
    assert [row[0] for row in named.rows] == ["forty", "80"]
    theirs = Pivot("t", [Axis("eta")], [read], where={"source": "paper"}).table(found)
    assert theirs.rows == (("80", "50.0"),)


@pytest.mark.parametrize(
    ("show", "number", "text"),
    [
        (share(), Number(0.25, 0.01, 100, 0.2, 0.3), "25.0 [20.0, 30.0]"),
        (share(2), Number(0.25, 0.01, 100, 0.2, 0.3, runs=2), "25.00 ± 1.00"),
        (share(), Number(None, note="not applicable: no noise"), "not applicable"),
        (share(), Number(None), "–"),
        (complement(), Number(0.25, 0.01, 100, 0.2, 0.3), "75.0 [70.0, 80.0]"),
        (points(), Number(-0.05, lower=-0.1, upper=0.01), "-5.00 [-10.00, +1.00]"),
        (plain(1), Number(1234.5, 0.25), "1,234.5 ± 0.2"),
        (count, Number(1234.0), "1,234"),
    ],
)
def test_numbers_as_text(show, number, text):
    assert show(number) == text


@pytest.mark.parametrize(
    ("claim", "held"),
    [
        (at_least("c", "success", 0.5, FAR), True),
        (at_least("c", "success", 0.5, NEAR), False),
        (at_most("c", "success", 0.5, NEAR), True),
        (at_most("c", "success", 0.5, FAR), False),
        (at_least("c", "success", 0.5, {"eta": 1.0}), None),
        (above("c", "success", NEAR), True),
        (above("c", "success", NEAR, least=0.3), False),
        (falls("c", "success", ("far", FAR), ("near", NEAR)), True),
        (falls("c", "success", ("near", NEAR), ("far", FAR)), False),
        (falls("c", "success", ("near", NEAR), ("near again", NEAR)), None),
        (falls("c", "success", ("near", NEAR), ("nowhere", {"eta": 1.0})), None),
        (alike("c", "success", ("near", NEAR), ("near again", NEAR)), True),
        (alike("c", "success", ("near", NEAR), ("far", FAR)), False),
        (all_below("c", "success", 0.3, {"near": NEAR}), True),
        (all_below("c", "success", 0.3, {"near": NEAR, "far": FAR}), False),
        (all_below("c", "success", 0.21, {"near": NEAR}), None),
        (both("c", at_least("", "success", 0.5, FAR), at_most("", "success", 0.5, NEAR)), True),
        (both("c", at_least("", "success", 0.5, FAR), at_least("", "success", 0.5, NEAR)), False),
        (both("c", at_least("", "success", 0.5, FAR), at_least("", "success", 0.5, {"eta": 1.0})), None),
        (both("c", at_least("", "success", 0.5, FAR), at_least("", "success", 0.5, NEAR), least=1), True),
    ],
)
def test_claims_hold_fail_or_are_not_decided(claim, held):
    (verdict,) = claim(results([(NEAR, 0.2), (FAR, 0.6)]))
    assert verdict.held is held
    assert verdict.here


@pytest.mark.parametrize(("before", "after", "told"), [(FAR, NEAR, "a fall of 40.0"), (NEAR, FAR, "a rise of 40.0")])
def test_a_difference_is_told_by_its_direction(before, after, told):
    (verdict,) = falls("c", "success", ("before", before), ("after", after))(results([(NEAR, 0.2), (FAR, 0.6)]))
    assert f"; {told} ±" in verdict.here


@pytest.mark.parametrize(("chance", "held"), [(0.58, True), (0.595, None), (0.7, None)])
def test_of_what_is_not_read_without_protection_nothing_follows(chance, held):
    found = results([(NEAR, 0.2), (FAR, 0.6)])
    often = results([(FAR, chance)]).frame.replace({"metric": {"success": "majority"}})
    found = Results(pandas.concat([found.frame, often]), found.cells, found.scenarios)
    (verdict,) = where_read(falls("c", "success", ("far", FAR), ("near", NEAR)), [FAR])(found)
    assert verdict.held is held
    assert ("nothing follows" in verdict.here) is (held is None)
    (verdict,) = where_read(falls("c", "success", ("far", FAR), ("near", NEAR)), [{"eta": 1.0}])(found)
    assert verdict.held is None


def test_a_figure_is_a_picture_and_its_numbers(tmp_path):
    found = results([(NEAR, 0.2), (FAR, 0.6)], stated=[Stated("success", 0.5, FAR, "halving")])
    figure = Figure("read", "Read", Axis("eta"), "read, %", {"metric": "success"})
    picture, numbers = figure.draw(found, tmp_path, model="a model")
    assert picture.stat().st_size > 5000
    drawn = pandas.read_csv(numbers)
    assert drawn[["source", "eta", "y", "low", "high"]].values.tolist() == [
        ["here", 40.0, 20.0, pytest.approx(19.0), pytest.approx(21.0)],
        ["here", 80.0, 60.0, pytest.approx(59.0), pytest.approx(61.0)],
        ["paper", 80.0, 50.0, 50.0, 50.0],
    ]
    before = picture.read_bytes()
    figure.draw(found, tmp_path, model="a model")
    assert picture.read_bytes() == before
    assert Figure("none", "n", Axis("eta"), "y", {"metric": "absent"}).draw(found, tmp_path, model="m") == []


@pytest.fixture
def drawn(monkeypatch):
    """The pictures that are saved meanwhile."""
    found = []
    monkeypatch.setattr(figures, "save_picture", lambda picture, _: found.append(picture))
    return found


def test_a_figure_shows_what_lies_far_below_a_per_cent_axis(drawn, tmp_path):
    layout = Layout("snd")
    for value, y in (("number", "AUC"), (None, "read, %")):
        content = {"name": "f", "title": "F", "x": "eta", "y": y, "where": {"metric": "success"}}
        layout._figure({**content, **({"value": value} if value else {})}).draw(
            results([(NEAR, 0.5), (FAR, 0.6)]), tmp_path, model="m"
        )
    (numbers,), (shares,) = (picture.axes for picture in drawn)
    low, high = numbers.get_ylim()
    assert 0.4 < low < 0.5 < 0.6 < high < 0.7
    assert shares.get_ylim() == (-2, 102)


def test_a_note_that_all_of_a_papers_numbers_have_stands_in_the_legend_once(drawn, tmp_path):
    figure = Figure("read", "Read", Axis("eta"), "read, %", {"metric": "success"})
    for notes in (("one model", "one model"), ("one model", "another")):
        stated = [Stated("success", 0.5, axes, "halving", note) for axes, note in zip((NEAR, FAR), notes, strict=True)]
        figure.draw(results([(NEAR, 0.2), (FAR, 0.6)], stated=stated), tmp_path, model="m")
    legends = [[text.get_text() for text in picture.legends[0].get_texts()] for picture in drawn]
    assert legends == [["halving", "the paper (one model)"], ["halving", "the paper"]]
    marked = [[text.get_text() for text in picture.axes[0].texts] for picture in drawn]
    assert marked == [["", ""], ["one model", "another"]]


def test_what_stands_nowhere_along_is_no_line(drawn, tmp_path):
    figure = Figure(
        "f", "F", Axis("eta"), "%", {"metric": "success"}, colour=Axis("method"),
        references=[Reference("whoever knows no text", "success", {"method": "frequent"})],
    )  # fmt: skip
    ours = {"method": "ours"}
    found = results([({**NEAR, **ours}, 0.5), ({**FAR, **ours}, 0.6), ({"method": "frequent"}, 0.4)])
    _, numbers = figure.draw(found, tmp_path, model="m")
    assert set(pandas.read_csv(numbers)["method"]) == {"ours"}
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["ours", "whoever knows no text"]
    assert any(list(line.get_ydata()) == [40, 40] for line in drawn[0].axes[0].lines)


# ---------------------------------------------------------------- layouts


def test_a_layout_is_filled_with_what_a_part_says(monkeypatch):
    content = {
        "axes": {"eta": {"title": "η"}},
        "shared": {"more": [["kept, %", "kept", {"half": "other"}]]},
        "one": {
            "title": "Of {which.name}",
            "tables": [
                {
                    "lines": ["eta"],
                    "columns": [{"each": "names", "of": ["{each}, %", "success", "share 2"]}, "$more"],
                    "notes": ["{which.name} is read.", "$notes"],
                }
            ],
            "figures": [
                {"name": "f", "title": "F", "x": "eta", "y": "%", "where": {"eta": "$etas"}, "value": "number"}
            ],
        },
    }
    monkeypatch.setattr(layouts, "read_yaml", lambda *_: copy.deepcopy(content))
    said = {"which": Axis("eta"), "names": ["a", "b"], "notes": [lambda _: ["said"]], "etas": (40.0, 80.0)}
    part = Layout("made up").part("one", [], said, claims=[at_least("c", "success", 0.5, FAR)])
    table = part.tables[0].table(results([(NEAR, 0.2)]))
    assert (part.title, table.title, table.columns) == ("Of eta", "Of eta", ("η", "a, %", "b, %", "kept, %"))
    assert table.rows == (("40", "20.00 ± 1.00", "20.00 ± 1.00", "80.0"),)
    assert table.notes == ("eta is read.", "said")
    assert part.figures[0].where == {"eta": (40.0, 80.0)}
    assert part.figures[0].value(0.5) == 0.5
    with pytest.raises(KeyError, match="which"):
        Layout("made up").part("one", [], {})
    content["one"]["figures"][0]["colur"] = "eta"
    with pytest.raises(TypeError, match="colur"):
        Layout("made up").part("one", [], said)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_part_has_a_layout_and_no_layout_is_left_over(name):
    assert set(read_yaml("layouts", name)) - {"axes", "shared"} == set(RECIPES[name].parts)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_tables_over_all_parts_stand_a_part_that_has_none_of_their_cells(name):
    """As of a recipe of which one part was run, or no cell was finished."""
    nothing = Results(long_table({}, Outcomes({})), {}, [])
    titles = [table.title for told in RECIPES[name]._closing for table in told(nothing) if table.rows]
    assert titles == (["Where the paper's parts disagree"] if name == "unsplit" else []), "what needs no cell"


# ---------------------------------------------------------------- a recipe that is run


class Scale(Spec):
    """Nothing changes with the size."""


class Config(RecipeConfig[Scale]):
    numbers: tuple[float, ...]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def recipe():
    config = Config(title="Halves", reference="–", sizes={Size.TINY: Scale()}, numbers=(2.0, 4.0))
    made = Recipe("halves", config, default_model="starter", paper=lambda _: {"paper": 1})

    @made.part("halves", also=["figure-9"])
    def halves(c, lab):
        scenarios = [
            scenario
            for number in c.numbers
            for scenario in Scenario.each(lab.options.seeds, HalfCell(number=number), number=number)
        ]
        return Part(
            "Halves",
            scenarios,
            tables=[Pivot("Halves", [Axis("number")], [Column("half, %", "success")])],
            claims=[at_least("Half of 4 is 20 %.", "success", 0.2, {"number": 4.0})],
        )

    return made


@pytest.fixture
def options(tiny, tmp_path):
    return RecipeOptions(size=Size.TINY, model=tiny, data=tmp_path, out=tmp_path / "out")


def test_a_report_holds_the_long_table_and_every_cell(recipe, options):
    report = recipe.run(options, Silent())
    written = json.loads((options.out / "report.json").read_text())
    assert written == json.loads(json.dumps(report.content))
    assert [each["result"]["share"] for each in written["cells"]] == [0.1, 0.2]
    assert {"number": 4.0, "metric": "success", "value": 0.2, "n": 100.0}.items() <= written["table"][2].items()
    assert written["parts"]["halves"]["claims"][0]["held"] is True
    table = pandas.read_parquet(options.out / "results.parquet")
    assert table["value"].tolist() == [0.1, 0.9, 0.2, 0.8]
    assert "| 4 | 20.0 ± 1.0 |" in (options.out / "report.md").read_text()
    assert not list((options.out / "runs").iterdir())


def test_a_cell_that_fails_is_named_and_the_others_go_on(recipe, options):
    failing = recipe.using(recipe.config.model_copy(update={"numbers": (2.0, 9.0, 4.0)}))
    report = failing.run(options, Silent())
    assert report.failures == {"half-of-9-s0": "DataError: 9 is too large."}
    assert [each["cell"]["number"] for each in report.content["cells"]] == [2.0, 4.0]
    assert ("half-of-9-s0", "DataError: 9 is too large.") in [row for table in report.tables for row in table.rows]
    assert "DataError" in (options.out / "failures" / "half-of-9-s0.txt").read_text()


def test_finished_cells_are_taken_from_the_store(recipe, options, monkeypatch):
    first = recipe.run(options, Silent())
    monkeypatch.setattr(HalfCell, "run", None)
    assert recipe.run(options, Silent()).content == first.content
    damaged = next((options.out / "cells").glob("half-of-4*"))
    damaged.write_text("{}")
    with pytest.raises(Exception, match="Remove it"):
        recipe.run(options, Silent())


@pytest.mark.slow
def test_worker_processes_give_the_same_report(recipe, options):
    here = recipe.run(options, Silent()).content
    elsewhere = options.model_copy(update={"out": options.out.parent / "elsewhere"})
    pool = executor(jobs=2, packages=("cutlayer", "tests"))
    assert recipe.run(elsewhere, Silent(), pool).content == here


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"only": ("halfs",)}, "did you mean halves"),
        ({"settings": {"numbrs": "[1]"}}, "did you mean numbers"),
        ({"settings": {"numbers": "[x]"}}, "numbers.0"),
        ({"size": Size.FULL}, "must be one of this recipe's: tiny"),
    ],
)
def test_what_is_not_there_is_refused_by_name(recipe, options, changes, named):
    with pytest.raises(ConfigError, match=named):
        recipe.run(options.model_copy(update=changes), Silent())
    assert not (options.out / "cells").exists()


def test_other_names_of_a_part_and_other_settings(recipe, options):
    some = options.model_copy(update={"only": ("figure-9",), "settings": {"numbers": "[6]"}})
    assert recipe.run(some, Silent()).content["cells"][0]["result"]["share"] == pytest.approx(0.3)


def test_a_number_belongs_to_one_model_and_one_vendor_to_one_process(options):
    with Lab(options) as first, Lab(options) as second:
        folders = [lab._vendor_folder(("starter", 1, None)) for lab in (first, second)]
    assert folders[0] != folders[1]
    with Lab(options) as again:
        assert again._vendor_folder(("starter", 1, None)) == folders[0]


def test_recipes_are_listed_without_their_code():
    assert [name for name, _, _ in RECIPES.listing()] == list(RECIPES)
    with pytest.raises(ConfigError, match="Did you mean 'words'"):
        RECIPES["word"]


def test_a_measure_without_a_number_says_why():
    assert Measure.share("success", None, note="too few texts").note == "too few texts"


def test_failed_cells_of_one_name_are_each_told(recipe, options, monkeypatch):
    monkeypatch.setattr(HalfCell, "name", "half")
    failing = recipe.using(recipe.config.model_copy(update={"numbers": (9.0, 10.0, 2.0)}))
    report = failing.run(options, Silent())
    assert sorted(report.failures.values()) == ["DataError: 10 is too large.", "DataError: 9 is too large."]


class LatestFirst:
    """Takes all the work that there is, and finishes what came last first."""

    def __init__(self):
        self.handed = []

    def run(self, function, arguments, *, in_order=False):
        given, flying = iter(arguments), []
        while True:
            while (argument := next(given, None)) is not None:
                flying.append((len(self.handed), argument))
                self.handed.append(json.loads(argument)["cell"])
            if not flying:
                return
            index, argument = flying.pop()
            yield Done.of(index, attempt(partial(run_cell, argument)))


def test_a_cell_is_handed_out_as_soon_as_those_are_done_that_it_builds_on(options):
    """Neither before, when a worker would wait for another's, nor as late as what it does not need."""
    pool = LatestFirst()
    with Lab(options, pool=pool) as lab:
        found = lab.run([SumCell(numbers=(2.0, 4.0)), SumCell(numbers=(6.0, 8.0)), HalfCell(number=2.0)])
    told = [cell.get("number", cell.get("numbers")) for cell in pool.handed]
    assert told == [2.0, 4.0, 6.0, 8.0, [6.0, 8.0], [2.0, 4.0]]
    assert [each.share for each in found.results.values()] == pytest.approx([0.3, 0.7, 0.1])
    assert not found.failures


def test_what_builds_on_a_cell_that_failed_is_not_tried_nor_is_that_cell_again(options, monkeypatch):
    monkeypatch.setattr(SumCell, "run", None)
    with Lab(options) as lab:
        found = lab.run([SumCell(numbers=(2.0, 9.0)), HalfCell(number=2.0), HalfCell(number=9.0)])
    assert found.failures == {
        "half-of-9-s0": "DataError: 9 is too large.",
        "sum-s0": "It builds on half-of-9-s0, which failed.",
    }
    assert [cell.name for cell in found.results] == ["half-of-2-s0"]
