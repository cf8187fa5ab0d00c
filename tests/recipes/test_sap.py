"""Recipe `sap`: its settings, its grid, a whole run in small, and going on after a stop."""

from __future__ import annotations

import json
import math
from typing import ClassVar
from unittest.mock import Mock

import pytest

from cutlayer.attacks import Measured, NotApplicable
from cutlayer.core import ConfigError, DataError, Deviation, Proportion, Stopped, StorageError
from cutlayer.customer import TrainBottom
from cutlayer.models import FAMILIES
from cutlayer.recipes import RECIPES, Order, Sap, Size, data_folder
from cutlayer.recipes.cells import AttackedCell, CellResult, Experiment, SplitCell, Steering
from cutlayer.recipes.recipe import read_config
from cutlayer.recipes.sap.config import SapConfig
from cutlayer.recipes.sap.depth import best_within
from cutlayer.recipes.sap.figure import _place, draw_figure_2, draw_figure_4
from cutlayer.recipes.sap.findings import Findings, Point
from cutlayer.recipes.sap.grid import Grid
from cutlayer.recipes.sap.report import tables
from cutlayer.recipes.tasks import Limits, Splits
from cutlayer.reports import Calibrated, Estimate
from tests.recipes import worlds
from tests.service.tiny import write_tiny_bert

CONFIG = read_config("sap", SapConfig)
STEERED = (Steering.BY_CLASS, Steering.CLASS_FREE)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return worlds.write_data(tmp_path_factory.mktemp("data"))


# ---------------------------------------------------------------- settings


def test_the_recipe_is_registered_and_shows_its_settings():
    shown = RECIPES["sap"].show()
    assert shown["reference"] == "arXiv:2312.15603"
    json.dumps(shown)
    with pytest.raises(ConfigError, match="Did you mean 'sap'"):
        RECIPES["sapp"]


def test_figures_of_the_paper():
    """Spot checks against the text, by cells that are easy to mistake for one another."""
    paper = CONFIG.paper
    assert {task: rows.accuracy for task, rows in paper.table_1.items()} == {
        "financial_phrasebank": 98.75,
        "blog_authorship": 96.71,
        "sst2": 95.89,
        "mrpc": 89.42,
    }
    assert (paper.table_1["sst2"].train, paper.table_1["sst2"].dev, paper.table_1["sst2"].test) == (66675, 674, 872)
    table = paper.table_3
    assert len(table.eta) == len(table.frozen.ep) == len(table.frozen.ua) == len(table.redraw.ep) == 6
    at_50 = table.eta.index(50)
    assert (table.frozen.ep[at_50], table.redraw.ep[at_50]) == (40.86, 14.31)
    assert (table.frozen.ua[at_50], table.redraw.ua[at_50]) == (91.25, 91.46)
    # §6: "enhances the empirical privacy by 40% at the cost of 4.6%" is the same point
    assert paper.table_1["sst2"].accuracy - table.frozen.ua[at_50] == pytest.approx(4.6, abs=0.05)
    assert {(p.task, p.cti): (p.ep, p.ua_loss) for p in paper.figure_2 if p.task != "sst2"} == {
        ("financial_phrasebank", False): (38.85, 6.17),
        ("financial_phrasebank", True): (49.98, 2.73),
    }


def test_every_task_has_its_line_in_the_paper():
    names = {task.name for task in CONFIG.tasks}
    assert names == set(CONFIG.paper.table_1) == set(CONFIG.paper.cti_helps)
    assert CONFIG.task(CONFIG.table_3).title == "SST"


def test_settings_of_training_are_laid_over_each_other():
    blog, sst2 = CONFIG.task("blog_authorship"), CONFIG.task("sst2")
    full, small = (CONFIG.training_of(blog, size) for size in (Size.FULL, Size.SMALL))
    assert small.max_length < full.max_length
    assert small.epochs < full.epochs
    assert small.learning_rate == full.learning_rate == CONFIG.training_of(sst2, Size.SMALL).learning_rate
    assert CONFIG.training_of(sst2, Size.SMALL).max_length is None


def test_a_setting_that_nobody_knows_stops_the_run():
    task = CONFIG.task("sst2")
    wrong = CONFIG.model_copy(update={"training": {**CONFIG.training, "learning_rat": 1.0}})
    with pytest.raises(ValueError, match="learning_rat"):
        wrong.training_of(task, Size.SMALL)


# ---------------------------------------------------------------- data


def test_rows_of_the_public_data(public_data):
    """Table 1's rows, as far as the public files go."""
    rows = {}
    for task in CONFIG.tasks:
        # topics take a minute to find; test_topics.py looks at them
        splits = Splits.read(task.model_copy(update={"topics": None}), public_data, Limits())
        rows[task.name] = (len(splits.train), len(splits.dev), len(splits.test))
        assert len(set(splits.train.labels)) == len(set(splits.test.labels))
        assert not set(splits.train.texts) & set(splits.dev.texts) or task.name == "blog_authorship"
        if task.group:
            sides = [set(side.attributes[task.group]) for side in (splits.train, splits.dev, splits.test)]
            assert not sides[0] & sides[1]
            assert not (sides[0] | sides[1]) & sides[2]
    assert rows["sst2"] == (66300, 670, 872)
    assert rows["financial_phrasebank"] == (1258, 140, 360)
    assert rows["mrpc"] == (3210, 357, 1000)
    train, dev, test = rows["blog_authorship"]
    assert (train + dev, test) == (12860, 2000)
    assert dev == pytest.approx(1286, abs=12)


def test_a_missing_file_says_where_it_should_be(tmp_path):
    with pytest.raises(DataError, match=r"sst2.train\.jsonl\.gz.*CUTLAYER_DATA"):
        Splits.read(CONFIG.task("sst2"), tmp_path, Limits())


def test_a_missing_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("CUTLAYER_DATA", raising=False)
    for given in (None, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="CUTLAYER_DATA"):
            data_folder(given)
    monkeypatch.setenv("CUTLAYER_DATA", str(tmp_path))
    assert data_folder(None) == tmp_path


# ---------------------------------------------------------------- grid


class Pretended(Experiment):
    """An experiment whose cells are made up: UA rises and EP falls with eta, and CTI moves UA as it is told."""

    GAIN: ClassVar = {("sst2", Steering.BY_CLASS): 80, ("financial_phrasebank", Steering.CLASS_FREE): 60}

    def __init__(self):
        self.model = "f" * 64
        self.family = FAMILIES["bert"]
        self.blocks = 6

    def handed_out(self, bottom):
        return 0.1 * bottom

    def calibrated(self, task, limits, shares, *, max_tokens):
        return tuple(Calibrated(wanted=share, eta=100 * (1 - share), replaced=share, n=2048) for share in shares)

    def run(self, cells):
        return {cell: self.result(cell) for cell in dict.fromkeys(cells)}

    def result(self, cell):
        if not isinstance(cell, SplitCell):
            return CellResult(ua=Proportion.of(950, 1000), rows=(100, 10, 1000), epochs=2, seconds=1)
        hidden = 0.0 if math.isinf(cell.eta) else 1 - cell.eta / 100
        attacks = ()
        if isinstance(cell, AttackedCell):
            # blocks hide from the optimised attack alone
            read = {"word-selection": 1 - 0.1 * cell.bottom, "linear-inversion": 1.0}
            attacks = tuple(made_up(attack, (1 - hidden) * read.get(attack, 1.0)) for attack in cell.attacks)
        right = 950 - 300 * hidden + self.GAIN.get((cell.task.name, cell.steering), 0)
        ep = Proportion(value=hidden, n=5000, standard_error=0.005)
        return CellResult(
            ua=Proportion.of(round(right), 1000),
            ep=None if cell.train_bottom is TrainBottom.MEMOISED else ep,
            ep_note="hidden states" if cell.train_bottom is TrainBottom.MEMOISED else "",
            replaced=hidden,
            rows=(100, 10, 1000),
            epochs=2,
            seconds=1,
            label_recovery=1.0,
            attacks=attacks,
        )


def made_up(attack, share):
    """What an attack found that nobody ran."""
    if attack == "nearest-neighbour":
        return NotApplicable(attack=attack, reason="there are blocks")
    success = Proportion.of(round(500 * share), 500)
    return Measured(attack=attack, success=success, interval=(0, 1), chance=0, p_value=0, looks=1, controls=())


@pytest.fixture
def order(tmp_path, data, tiny):
    return Order(Size.SMALL, 2, str(tiny), data, tmp_path / "out")


def test_the_grid_is_the_papers(order):
    cells = list(Grid(CONFIG, order, Pretended()))
    distinct = set(cells)
    seeds, etas = 2, 6
    figure_2 = len(CONFIG.tasks) * (3 * etas + 1)  # without noise there is nothing for CTI to steer
    table_3 = 2 * etas  # its frozen line is Figure 2's
    figure_4 = len(CONFIG.depths.figure_4)
    table_2 = len(CONFIG.depths.table_2) * 2 * etas  # noise on tokens, and on rows; without noise Figure 4's
    assert len(distinct) == seeds * (len(CONFIG.tasks) + figure_2 + table_3 + figure_4 + table_2)
    alone = set(Grid(CONFIG, order, Pretended(), ["figure-4"]))
    assert len(alone) == seeds * (1 + figure_4)
    assert {cell.steering for cell in distinct if isinstance(cell, AttackedCell) and math.isfinite(cell.eta)} == {
        Steering.BY_CLASS,  # on tokens
        Steering.NONE,
    }
    trained = [cell for cell in distinct if isinstance(cell, SplitCell) and cell.train_bottom is not TrainBottom.FROZEN]
    assert {(cell.train_bottom, cell.bottom) for cell in trained} == {
        (TrainBottom.REDRAW, 0),
        (TrainBottom.MEMOISED, CONFIG.memoised_bottom),
    }
    assert {cell.task.name for cell in trained} == {"sst2"}


def table(findings, title):
    (found,) = (each for each in tables(findings) if each.title.startswith(title))
    return found


def test_the_conclusion_takes_the_stronger_attack(order):
    findings = pretended(order, 1)
    assert findings.by_depth[5].ep["word-selection"].value == pytest.approx(0.5)
    assert findings.by_depth[5].least.value == 0
    said = table(findings, "Section 6")
    paper, *ours = said.rows
    assert paper[1:4] == ("35.9", "not stated; Table 2 has such a cell at eta0 65", "65")
    assert ours[0][0] == "here, 0 blocks"
    plain, tokens, rows = (row for row in ours if row[0] == "here, 5 blocks")
    assert plain[1:] == ("50.0", "none", "50.0 ± 2.2", "0.0 [0.0, 0.8]", "+0.0")
    # made up: a tenth hidden costs 3 points, and CTI wins 8
    assert tokens[2:] == ("tokens, CTI, eta0 75", "62.4 ± 2.2", "25.0 ± 1.9", "+0.5")
    assert rows[2:] == ("rows behind the blocks: no eta0 costs so little", "–", "–", "–")


def test_the_best_within_a_point_of_accuracy(order):
    points = pretended(order, 1).table_2
    found = best_within(points, points[0].ua.value + 1, loss=1.0)
    assert found.least.value == max(point.least.value for point in points)
    assert best_within(points, 2.0) is None


def test_an_attack_without_a_number_says_why(order):
    findings = pretended(order, 1)
    figure = table(findings, "Figure 4")
    assert {row[2] for row in figure.rows} == {"–"}
    assert "nearest-neighbour: there are blocks" in figure.notes
    assert any("word-selection 500" in note for note in figure.notes)
    shown = table(findings, "Table 2:")
    assert ("1", "tokens, CTI", "tokens replaced", "90.0", "75.0", "60.0", "40.0", "25.0", "10.0", "0.0") in shown.rows
    assert table(findings, "Table 2 in the paper").rows[0][2:4] == ("55.28", "46.03")


def test_what_the_findings_say(order):
    grid = Grid(CONFIG, order, Pretended())
    findings = Findings(grid, Pretended().run(list(grid)))
    verdicts = {task: [findings.gains[task, how].verdict for how in STEERED] for task in ("sst2", "mrpc")}
    assert verdicts == {"sst2": ["helps", "no clear difference"], "mrpc": ["no clear difference"] * 2}
    assert findings.gains["sst2", Steering.BY_CLASS].value == pytest.approx(0.08, abs=0.002)
    assert findings.gains["financial_phrasebank", Steering.CLASS_FREE].value == pytest.approx(0.06, abs=0.002)
    assert all(point.ep is None for point in findings.table_3[TrainBottom.MEMOISED])
    assert findings.curves["sst2", Steering.NONE][-1].ep.value == 0


@pytest.mark.parametrize(("seeds", "said"), [(1, True), (2, False)])
def test_errors_of_one_seed_say_what_they_leave_out(order, seeds, said):
    grid = Grid(CONFIG, Order(order.size, seeds, order.model, order.data, order.out), Pretended())
    (verdicts,) = (
        table for table in tables(Findings(grid, Pretended().run(list(grid)))) if "does CTI help" in table.title
    )
    assert any("One seed" in note for note in verdicts.notes) is said


def pretended(order, seeds):
    grid = Grid(CONFIG, Order(order.size, seeds, order.model, order.data, order.out), Pretended())
    return Findings(grid, Pretended().run(list(grid)))


def test_the_report_says_what_the_size_cuts_of_each_data_set(order):
    told = tables(pretended(order, 1))
    rows = {row[0]: row[3:5] for row in told[0].rows}
    assert rows == {
        "SST": ("the model's limit", "3"),
        "FP": ("the model's limit", "6"),
        "Blog": ("64", "6"),
        "MRPC": ("the model's limit", "3"),
    }
    assert any("2000 / 200 / 872 rows of train / dev / test are taken at most" in note for note in told[0].notes)
    differs = {(row[0], row[3].partition(",")[0]): row[1] for row in told[-1].rows}
    assert differs["tokens per text", "64 at most"] == "Blog"
    # settings that differ between data sets stand beside one another
    assert differs["epochs", "at most 3"] == "SST, MRPC"
    assert differs["epochs", "at most 6"] == "FP, Blog"
    assert differs["LoRA rank", "8"] == "all data sets"


def test_deviations_of_a_cell_of_an_older_version_are_not_told_twice(order):
    class Older(Pretended):
        def result(self, cell):
            now = cell.training.deviations(self.family)
            reworded = (each.model_copy(update={"why": "as it was said before"}) for each in now)
            own = Deviation(what="noise generator", value_in_paper="not stated", ours="AES", why="because")
            return super().result(cell).model_copy(update={"deviations": (*reworded, own)})

    grid = Grid(CONFIG, order, Older())
    found = Findings(grid, Older().run(list(grid))).deviations
    assert not any(each.why == "as it was said before" for each in found)
    assert [each.what for each in found if each.why == "because"] == ["noise generator"]


@pytest.mark.parametrize(("seeds", "runs"), [(1, ""), (2, ", in each of 2 runs")])
def test_every_table_of_ours_says_n(order, seeds, runs):
    told = [table for table in tables(pretended(order, seeds)) if "in the paper" not in table.title]
    measured = [table for table in told if table.title.startswith(("Figure 2:", "Table 3:"))]
    counted = [table for table in measured if "does CTI help" not in table.title]
    assert len(counted) == len(CONFIG.tasks) + 1
    for table in counted:
        (note,) = (note for note in table.notes if note.startswith("n: "))
        assert note.startswith("n: 1000 test texts for UA; 5000 training tokens for EP")
        assert (f"{runs}." in note) if runs else ("runs" not in note)
    (verdicts,) = (table for table in measured if table not in counted)
    assert {row[verdicts.columns.index("n (CTI points)")] for row in verdicts.rows} == {"6"}


# ---------------------------------------------------------------- plot


def curve(*eps):
    def estimate(value):
        return None if value is None else Estimate(value=value, standard_error=0.01, n=100, runs=1)

    return [
        Point(eta=at, ua=estimate(0.5), ep=estimate(ep), ep_note="", replaced=ep, label_recovery=None)
        for at, ep in enumerate(eps)
    ]


@pytest.mark.parametrize(
    ("eps", "ep", "at"),
    [
        ((0.8, 0.4, 0.0), 0.4, 1),
        ((0.8, 0.4, 0.0), 0.5, 0.75),
        ((0.8, 0.4, 0.0), 0.1, 1.75),
        ((0.8, 0.4, 0.0), 0.9, None),
        ((0.8, 0.4), 0.1, None),
        ((0.8, None, 0.0), 0.4, None),
        ((0.4, 0.4), 0.4, 0),
    ],
)
def test_where_a_point_of_the_paper_stands(eps, ep, at):
    assert _place(curve(*eps), ep) == (at if at is None else pytest.approx(at))


def test_the_plot_marks_what_the_paper_states(order, tmp_path, monkeypatch):
    marked = []
    monkeypatch.setattr("matplotlib.axes.Axes.annotate", lambda axes, text, at, **_: marked.append((text, at[1])))
    levels = []
    monkeypatch.setattr("matplotlib.axes.Axes.axhline", lambda axes, level, **_: levels.append(level))
    findings = pretended(order, 1)
    draw_figure_2(findings, tmp_path / "new" / "figure.png", model="tiny")
    assert (tmp_path / "new" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert marked == [("eta0 50, CTI not stated", 40), ("eta0 50", 38.85), ("eta0 50, CTI", 49.98)]
    assert levels == [level for task in CONFIG.tasks for level in (95, CONFIG.paper.table_1[task.name].accuracy)]


def test_the_plot_is_the_same_file_again_and_says_where_it_cannot_be(order, tmp_path):
    findings = pretended(order, 1)
    for draw in (draw_figure_2, draw_figure_4):
        for name in ("a.png", "b.png"):
            draw(findings, tmp_path / name, model="tiny")
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with pytest.raises(StorageError, match="cannot be written"):
        draw_figure_2(findings, tmp_path / "a.png" / "c.png", model="tiny")


def test_bottoms_that_the_model_lacks_are_told_at_once(order):
    shallow = Pretended()
    shallow.blocks = 3
    with pytest.raises(ConfigError) as refused:
        Grid(CONFIG, order, shallow)
    assert "depths.figure_4 = 3: must be below the model's 3 blocks" in str(refused.value)
    assert "depths.table_2 = 5" in str(refused.value)
    assert "--set depths" in refused.value.remedy
    Grid(CONFIG, order, shallow, ["figure-2"])


def test_an_order_of_no_seeds(order):
    with pytest.raises(ConfigError, match="seeds"):
        Order(Size.SMALL, 0, order.model, order.data, order.out)


# ---------------------------------------------------------------- a whole run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_in_small_stops_goes_on_and_reports(order, monkeypatch):
    recipe = Sap(worlds.small_config())
    once = Order(order.size, 1, order.model, order.data, order.out, only=("figure-2", "table-3"))
    centralised, split = Experiment._centralised, Experiment._split
    begun = []

    def interrupted(self, cell):
        begun.append(cell)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return split(self, cell)

    monkeypatch.setattr(Experiment, "_split", interrupted)
    with pytest.raises(Stopped, match="Finished cells are in") as stopped:
        recipe.run(once, worlds.Quiet())
    assert "same command" in stopped.value.remedy
    finished = sorted(path.name for path in (order.out / "cells").iterdir())
    assert len(finished) == 2 + 1 + 2  # calibrations, SST's baseline, two split cells

    again = []
    monkeypatch.setattr(Experiment, "_centralised", lambda self, cell: again.append(cell) or centralised(self, cell))
    monkeypatch.setattr(Experiment, "_split", lambda self, cell: again.append(cell) or split(self, cell))
    report = recipe.run(once, worlds.Quiet())
    cells = 2 * (1 + 3 * 2 + 1) + 2 * 2
    assert len(again) == cells - 3
    assert not set(again) & set(begun[:2])
    assert not list((order.out / "runs").iterdir())

    content = json.loads((order.out / "report.json").read_text())
    curve = content["figure_2"]["sst2"]["plain"]
    assert [point["eta"] for point in curve][-1] == "inf"
    assert curve[-1]["ep"]["value"] == 0
    assert curve[-1]["label_recovery"] == 1
    assert curve[-1]["ua"]["value"] == pytest.approx(content["table_1"]["sst2"]["centralised"]["value"], abs=0.05)
    for point, share in zip(curve, (0.75, 0.25), strict=False):
        assert point["ep"]["value"] == pytest.approx(share, abs=0.12)
        assert point["ep"]["value"] == pytest.approx(point["replaced"])
    frozen, redraw, memoised = (content["table_3"][how] for how in ("frozen", "redraw", "memoised"))
    for once_seen, seen_twice, hidden in zip(frozen, redraw, memoised, strict=True):
        assert seen_twice["ep"]["value"] < once_seen["ep"]["value"]
        assert hidden["ep"] is None
        assert "hidden states" in hidden["ep_note"]
    assert (order.out / "figure-2.png").read_bytes().startswith(b"\x89PNG")
    text = (order.out / "report.md").read_text()
    for table in report.tables:
        assert table.title in text
    assert "95.89" in text
    assert "51.27" in text

    # a report from finished cells alone needs no vendor and says the same
    monkeypatch.setattr("cutlayer.recipes.loopback.Loopback.client", None)
    assert recipe.run(once, worlds.Quiet()).content == report.content


@pytest.mark.slow
def test_bottoms_are_attacked_at_every_depth_and_noise(order):
    recipe = Sap(worlds.small_config())
    parts = Order(order.size, 1, order.model, order.data, order.out, only=("figure-4", "table-2"))
    content = recipe.run(parts, worlds.Quiet()).content
    by_depth = {point["bottom"]: point for point in content["without_noise_by_depth"]}
    assert by_depth[0]["ep"]["nearest-neighbour"]["value"] == 0
    assert "linear-inversion" in by_depth[0]["reasons"]
    for bottom in (1, 3):
        assert by_depth[bottom]["ep"]["linear-inversion"]["value"] < 0.1
        assert by_depth[bottom]["handed_out"] > by_depth[0]["handed_out"]
        assert "hidden states" in by_depth[bottom]["reasons"]["nearest-neighbour"]
    points = content["table_2"]
    assert [(point["bottom"], point["place"]) for point in points] == [(1, "tokens")] * 2 + [(1, "activations")] * 2
    more, less, *rows = (point["ep"]["linear-inversion"]["value"] for point in points)
    assert more > less + 0.1
    # this model's table is a thousandth as long as its rows behind blocks: the same eta hides nothing of these
    assert max(rows) < 0.05
    for point in points[:2]:
        # what was read is what was released
        assert point["ep"]["linear-inversion"]["value"] == pytest.approx(point["replaced"], abs=0.1)
        assert point["ep"]["word-selection"]["n"] <= 80
    assert not list((order.out / "runs").iterdir())
    for name in ("figure-4.png", "report.md", "report.json"):
        assert (order.out / name).stat().st_size


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stopped_in", ["customer.Client.delete_adapter", "recipes.cells.CellStore.put"])
def test_a_run_that_is_stopped_between_two_cells_goes_on(order, monkeypatch, stopped_in):
    config = worlds.small_config()
    task = config.task("sst2")
    cell = SplitCell(
        task=task,
        limits=Limits(train=64),
        model="",
        training=config.training_of(task, Size.SMALL),
        seed=0,
        eta=math.inf,
    )

    def result():
        with Experiment(order.out, model=order.model, data=order.data, progress=worlds.Quiet()) as experiment:
            return experiment.run([cell])[cell]

    with monkeypatch.context() as patch:
        patch.setattr(f"cutlayer.{stopped_in}", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(Stopped):
            result()
    assert result().ua.n == 40
