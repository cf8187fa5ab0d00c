"""Recipe `unsplit`: its settings, its cells, its report from made-up cells, and a small run from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutlayer.attacks import UnSplitSpec
from cutlayer.cli.app import main
from cutlayer.core import ConfigError
from cutlayer.customer import FullTuning, Lora
from cutlayer.recipes import RECIPES
from cutlayer.recipes.boundary_attacks import INVERTER, UNSPLIT, InverterCell, UnsplitCell
from cutlayer.recipes.lab import Outcomes
from cutlayer.recipes.options import Size, chosen_parts, configured
from cutlayer.recipes.recipe import long_table
from cutlayer.recipes.study import Results, Scenario
from cutlayer.recipes.unsplit import RECIPE
from cutlayer.recipes.unsplit_cases import Case, Grid, attacked
from tests.quick import slow_but
from tests.recipes.unsplit.made_up import attacks, declared, made_up_lab, reading, told, verdicts
from tests.recipes.unsplit.worlds import write_words
from tests.service.tiny import write_tiny_gpt2

CONFIG = RECIPE.config
OTHER_NAMES = RECIPE._other_names
ATTACKED = (
    *("table-1", "table-2", "table-3", "table-4", "figure-3", "figure-4", "figure-6", "figure-7", "figure-9"),
    *("figure-11", "figure-13", "figure-15", "second-iteration", "public-first", "inverter", "controls"),
)
QUICK = ("table-1", "figure-3", "figure-13", "inverter", "controls")


def grid(size=Size.SMALL, **lab):
    return Grid(CONFIG, made_up_lab(size, **lab))


def places(name, size=Size.SMALL, **lab):
    """Where UnSplit's cells of a part stand, with their cells."""
    found = {}
    for each in declared(name, size, **lab).scenarios:
        if isinstance(each.cell, UnsplitCell):
            found.setdefault(tuple(each.axes.items()), []).append(each.cell)
    return found


# ---------------------------------------------------------------- settings


def test_the_recipe_is_registered_and_shows_its_parts():
    shown = RECIPES["unsplit"].show()
    assert shown["parts"] == list(RECIPE.parts)
    assert RECIPES["unsplit"].default_model == "starter-decoder"
    json.dumps(shown)


def test_the_default_attack_is_the_papers():
    assert grid().paper == UnSplitSpec()
    assert grid().rows.inner_weights == 0
    assert grid().released.learning_rate_weights == 0.1


def test_the_defaults_of_a_run_are_those_of_3_3_1():
    full, lora = (grid().run(Case(method=method), 0) for method in ("full", "lora"))
    assert (full.training.learning_rate, lora.training.learning_rate) == (5e-6, 2e-4)
    assert (full.training.batch_size, full.training.max_length, full.training.dropout) == (4, 64, True)
    assert (full.tuning, lora.tuning) == (FullTuning(), Lora(r=8, lora_dropout=0.1))


def test_attacks_on_lora_move_the_adapter_and_nothing_where_nothing_is_moved():
    cells = grid()
    moved = cells.attack(Case(iteration=2, method="lora"))
    still = cells.attack(Case(iteration=2, method="lora", spec=cells.rows))
    assert (moved.spec.optimised, still.spec.optimised) == ("adapter", "all")


@pytest.mark.parametrize(("model_type", "targets"), [("gpt2", "query-value"), ("qwen2", "all-linear")])
def test_lora_adapts_what_table_3s_column_counts(model_type, targets):
    assert grid(model_type=model_type).run(Case(method="lora"), 0).tuning.target_modules == targets


def test_settings_are_changed_by_their_names():
    changed = configured(CONFIG, {"attack.guess_mode": "train", "vit": "models/vit", "sizes.small.depths": "[1, 3]"})
    assert changed.attack == UnSplitSpec(guess_mode="train")
    assert (changed.vit, changed.sizes[Size.SMALL].depths) == (Path("models/vit"), (1, 3))
    assert configured(CONFIG, {}) is CONFIG


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("attack.gues_mode", "train", "did you mean attack.guess_mode"),
        ("attack.guess_mode.x", "train", "is no setting"),
        ("nothing", "1", "is no setting"),
        ("attack.guess_mode", "both", "guess_mode"),
        ("lora_dropout", "2", "lora_dropout"),
    ],
)
def test_settings_that_do_not_exist_or_cannot_be(name, value, said):
    with pytest.raises(ConfigError, match=said):
        configured(CONFIG, {name: value})


def test_no_text_is_attacked_that_its_inverter_learns_from():
    assert all(CONFIG.public.file.name != corpus.file.name for corpus in CONFIG.corpora.values())


# ---------------------------------------------------------------- names of parts


def test_parts_and_their_other_names():
    assert set(OTHER_NAMES.values()) <= set(RECIPE.parts)
    figures = {f"figure-{number}" for number in range(3, 23)}
    assert figures <= {*RECIPE.parts, *OTHER_NAMES}
    assert chosen_parts(RECIPE.parts, ["figure-8", "table-2"], OTHER_NAMES) == ("table-2", "figure-7")
    assert chosen_parts(RECIPE.parts, [], OTHER_NAMES) == RECIPE.parts


def test_an_unknown_part_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"tabel-2.*did you mean table-2.*Choose among: table-1, table-2"):
        chosen_parts(RECIPE.parts, ["tabel-2", "figure-3"], OTHER_NAMES)


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize("size", list(Size))
@pytest.mark.parametrize("name", [name for name in ATTACKED if name != "figure-13"])
def test_places_are_told_apart_and_have_a_cell_for_each_seed(name, size):
    found = places(name, size, seeds=2)
    assert found
    assert all([cell.seed for cell in cells] == [0, 1] for cells in found.values())
    boundaries = [each.cell for each in declared(name, size, seeds=2).scenarios if hasattr(each.cell, "iteration")]
    assert all(cell.iteration in cell.split.kept for cell in boundaries)


def test_parts_share_their_cells():
    first = {name: {cells[0] for cells in places(name).values()} for name in ("table-2", "figure-3", "figure-4")}
    assert set.intersection(*first.values())
    cells = [cell for name in ATTACKED for cells in places(name).values() for cell in cells]
    assert len(set(cells)) <= len(cells) - 20


def test_a_shallow_model_and_a_short_one_have_fewer_places():
    shallow = grid(blocks=3, limit=128)
    assert list(shallow.figure_3_depths) == [1, 2]
    assert shallow.lengths == [4, 64, 128]


# ---------------------------------------------------------------- report


def test_table_2_has_the_papers_lines_as_printed():
    table = told("table-2", attacks())[0][0]
    printed = {row[0]: row[3:8] for row in table.rows if row[0] != "this model" and row[2] == "1"}
    assert len(printed) == 6
    assert printed["GPT-2"] == ("82.57", "86.38", "61.96", "78.9", "86.18")
    assert next(row[3] for row in table.rows if row[0] == "GPT-2" and row[2] == "2") == "0.415"
    assert [row[:3] for row in table.rows[:2]] == [("this model", "Algorithm 1", n) for n in ("1", "2")]


@pytest.mark.parametrize("name", slow_but(QUICK, ATTACKED))
def test_every_attacked_part_makes_table_and_plot_and_judges(tmp_path, name):
    tables, results = told(name, attacks())
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert all(table.rows for table in tables)
    part = declared(name)
    drawn = [path for figure in part.figures for path in figure.draw(results, tmp_path, model="m")]
    assert [path.name for path in drawn] == [f"{name}.png", f"{name}.csv"]
    assert drawn[0].read_bytes().startswith(b"\x89PNG")
    assert verdicts(name, attacks())


def judged(name, share):
    return [verdict.held for verdict in verdicts(name, attacks(share))]


def test_the_papers_world_holds_and_its_opposite_does_not():
    assert judged("table-2", lambda cell: 0.9 if cell.iteration == 1 else 0.0) == [True, True]
    assert judged("table-2", lambda cell: 0.9) == [False, None]
    assert judged("figure-3", lambda cell: 0.9 / cell.split.bottom**4)[0] is True
    assert judged("figure-3", lambda cell: 0.5 + 0.1 * cell.split.bottom)[0] is False
    assert judged("public-first", lambda cell: 0.0 if cell.split.public_iterations else 0.9) == [True]
    assert judged("public-first", lambda cell: 0.9) == [False]
    assert judged("inverter", lambda cell: 0.0) == [True]
    assert judged("inverter", lambda cell: 0.9) == [False]
    assert judged("inverter", lambda cell: 0.9 if cell.iteration == 1 else 0.0) == [False]
    assert judged("controls", lambda cell: 0.0) == [True] * 4
    assert judged("controls", lambda cell: 0.9) == [False] * 4


def test_the_inverters_last_stage_is_told_from_worst_to_best():
    (table,), results = told("inverter", attacks(lambda cell: 0.5 if cell.iteration == 1 else 0.25))
    (told_range,) = (note for note in table.notes if "last stage" in note)
    assert "reads 25.0" in told_range
    assert "and 50.0" in told_range
    assert results.number("success", attack=INVERTER, setting="LoRA, r 8").value == 0.25


def test_table_1_takes_the_nearest_text():
    cells = [cells[0] for cells in places("table-1").values()]
    shares = dict(zip(cells, (0.0, 0.1, 0.45, 0.6, 0.8, 0.99), strict=True))
    found = attacks(lambda cell: shares[cell])
    tables, results = told("table-1", found, Size.SMALL)
    assert [row[0] for row in tables[1].rows] == ["0.0", "9.4", "45.3", "79.7"]
    assert results.number("accuracy of the example, %", wanted=43.55).value == pytest.approx(45.3125)
    (verdict,) = verdicts("table-1", found, Size.SMALL)
    assert verdict.held is None
    assert "was read to 45.3 %" in verdict.here


@pytest.mark.parametrize(
    ("name", "held", "said"),
    [
        ("figure-5", [True], ["times fewer, for 1 to 23 blocks"]),
        ("model-scale", [False, True], ["8.2 times as many", "94 times as many as ResNet-152"]),
    ],
)
def test_what_is_counted_is_judged_and_drawn(tmp_path, name, held, said):
    found = verdicts(name, lambda cell: cell.run(None))
    assert [verdict.held for verdict in found] == held
    for verdict, words in zip(found, said, strict=True):
        assert words in verdict.here
    (table,), results = told(name, lambda cell: cell.run(None))
    assert table.rows
    (figure,) = declared(name).figures
    assert figure.draw(results, tmp_path, model="m")[0].read_bytes()[:4] == b"\x89PNG"


# ---------------------------------------------------------------- seeds


def pooled(*readings):
    """The table and the results of one case, with a reading for each seed."""
    lab = made_up_lab(seeds=len(readings))
    cells = [Scenario(Grid(CONFIG, lab).attack(Case("here"), seed), Case("here").axes) for seed in range(len(readings))]
    made = [attacks()(each.cell).model_copy(update={"reading": r}) for each, r in zip(cells, readings, strict=True)]
    found = {each.cell: result for each, result in zip(cells, made, strict=True)}
    part = attacked("controls", Grid(CONFIG, lab), cells, [])
    results = Results(long_table({"a": part}, Outcomes(found)), found, cells, same_texts=part.same_texts)
    return part.tables[0].table(results), results


def test_readings_of_several_seeds_are_one_sample_of_texts():
    texts = {"true": ("the cat sat", "on a mat"), "guessed": ("the cat ran", "on a mat")}
    few = {"counted": (8, 8), "shuffled": (1, 0), "chance": 0.03, **texts}
    table, results = pooled(reading(0, right=(8, 4), **few), reading(0, right=(8, 0), **few))
    found = results.number("success", attack=UNSPLIT)
    assert (found.value, found.n, found.trials) == (20 / 32, 32, 4)
    assert results.number("shuffled", attack=UNSPLIT).value == 2 / 32
    # texts differ much more than 32 independent tokens would
    assert found.se > 2 * (0.625 * 0.375 / 32) ** 0.5
    assert results.number("R-1", attack=UNSPLIT).value == pytest.approx((2 / 3 + 1) / 2)
    assert results.number("chance", attack=UNSPLIT).value == pytest.approx(0.03)
    assert "n: 32 tokens of 4 texts" in table.notes[0]


def test_none_of_few_texts_is_no_certainty():
    table, _ = pooled(reading(0.0))
    low, high = table.rows[0][2].removeprefix("0.0 [").removesuffix("]").split(", ")
    assert float(low) == 0
    assert float(high) > 50  # two texts, however many tokens


def test_texts_without_a_word_have_no_overlap():
    table, results = pooled(reading(0.5, true=("?!", "…"), guessed=("a", "b")))
    assert results.number("R-1", attack=UNSPLIT).value is None
    assert table.rows[0][3:7] == ("–",) * 4


# ---------------------------------------------------------------- a whole run


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unsplit")
    for name, split in (("wikitext2", "test_raw"), ("aeslc", "test"), ("tinystories_sample", "train")):
        write_words(folder / "data", split, name=name)
    write_words(folder / "data", "dev", name="classic_books")
    return folder, write_tiny_gpt2(folder / "tiny")


def run(world, only, out="out"):
    folder, model = world
    with pytest.raises(SystemExit) as left:
        main(
            ["recipe", "run", "unsplit", "--size", "tiny", "--model", str(model), "--data", str(folder / "data"),
             "--out", str(folder / out), "--only", only]
        )  # fmt: skip
    return left.value.code or 0


def rows(report, **where):
    return [row for row in report["table"] if all(row.get(name) == value for name, value in where.items())]


@pytest.mark.slow
def test_parts_are_run_from_the_command_line_and_kept(world, monkeypatch):
    assert run(world, "table-2, controls,model-scale") == 0
    report = json.loads((world[0] / "out" / "report.json").read_text())
    assert list(report["parts"]) == ["table-2", "model-scale", "controls"]
    (first, *_) = rows(report, part="table-2", source="here", metric="success")
    assert first["n"] == 16
    assert first["value"] > 0.5
    (printed,) = rows(report, part="table-2", source="paper", metric="success", model="GPT-2", iteration=1)
    assert printed["value"] == pytest.approx(0.8257)
    text = (world[0] / "out" / "report.md").read_text()
    assert "![table-2](table-2.png)" in text
    assert "Takeaway 3.3" in text
    # again: nothing is run, and no vendor is started
    monkeypatch.setattr("cutlayer.recipes.boundary_attacks.UnSplitRun", None)
    monkeypatch.setattr("cutlayer.recipes.lab.VendorProcess", None)
    assert run(world, "table-2") == 0


def test_an_unknown_part_is_told_before_anything_is_run(world, capsys):
    assert run(world, "table-9", out="other") == ConfigError.exit_code
    assert "is no part" in capsys.readouterr().err
    assert not (world[0] / "other").exists()


@pytest.mark.slow
def test_what_is_read_above_the_cut_is_a_part(world):
    assert run(world, "tail,model-scale") == 0
    report = json.loads((world[0] / "out" / "report.json").read_text())
    first = rows(report, part="tail", metric="first_steps")
    assert {(row["tail"], row["method"]) for row in first} == {(t, m) for t in (0, 1) for m in ("lora", "full")}
    assert all(row["value"] > 0.9 for row in first), first
    assert all(row["n"] > 0 for row in rows(report, part="tail", metric="last_steps"))
    assert report["parts"]["tail"]["claims"][0]["held"] is False
    assert (world[0] / "out" / "tail.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_all_parts_run(world):
    assert run(world, ",".join(RECIPE.parts)) == 0
    report = json.loads((world[0] / "out" / "report.json").read_text())
    assert list(report["parts"]) == list(RECIPE.parts)
    assert not report["failures"]
    assert any(cell for cell in report["cells"] if cell["cell"].keys() >= InverterCell.model_fields.keys())
    assert RECIPE.show()["reference"] == report["reference"]
