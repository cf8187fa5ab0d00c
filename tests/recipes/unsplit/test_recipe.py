"""Recipe `unsplit`: its settings, its cells, its report from made-up cells, and a small run from the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from cutlayer.attacks import UnSplitSpec
from cutlayer.cli.app import main
from cutlayer.core import ConfigError
from cutlayer.customer import Method
from cutlayer.recipes import RECIPES, Order, Sap, Size, SplitStudy
from cutlayer.recipes.recipe import at_size, chosen_parts, configured, read_config
from cutlayer.recipes.unsplit.cells import Attacked, Inverted, Reading, Stage
from cutlayer.recipes.unsplit.config import UnsplitConfig
from cutlayer.recipes.unsplit.grid import Grid, Setup
from cutlayer.recipes.unsplit.parts import OTHER_NAMES, PARTS, STUDIES, make_part
from cutlayer.recipes.unsplit.report import Results, printed, report_study
from tests.recipes.unsplit.worlds import write_words
from tests.service.tiny import write_tiny_gpt2

CONFIG = read_config("unsplit", UnsplitConfig)
TEXTS = ("the quick brown fox", "jumps over the lazy dog")


def order(tmp_path, size=Size.SMALL, **changes):
    return Order(**{"size": size, "seeds": 1, "model": "m", "data": tmp_path, "out": tmp_path, **changes})


def grid(tmp_path, size=Size.SMALL, *, blocks=6, limit=1024, seeds=1, model_type="gpt2"):
    recorder = SimpleNamespace(model="f" * 64, blocks=blocks, limit=limit, source="m", model_type=model_type)
    return Grid(CONFIG, order(tmp_path, size, seeds=seeds), recorder)


# ---------------------------------------------------------------- settings


def test_the_recipe_is_registered_and_shows_its_parts():
    shown = RECIPES["unsplit"].show()
    assert shown["parts"] == list(PARTS)
    assert RECIPES["unsplit"].default_model == "starter-decoder"
    assert Sap.default_model == "starter"
    json.dumps(shown)


def test_the_default_attack_is_the_papers(tmp_path):
    assert grid(tmp_path).paper == UnSplitSpec()
    assert grid(tmp_path).rows.inner_weights == 0
    assert grid(tmp_path).released.learning_rate_weights == 0.1


def test_the_defaults_of_a_run_are_those_of_3_3_1(tmp_path):
    full, lora = (grid(tmp_path).run(Setup(method=method), 0).training for method in (Method.FULL, Method.LORA))
    assert (full.learning_rate, lora.learning_rate) == (5e-6, 2e-4)
    assert (full.batch_size, full.max_length, full.dropout) == (4, 64, True)
    assert (lora.rank, lora.lora_dropout, full.lora_dropout) == (8, 0.1, 0)


def test_attacks_on_lora_move_the_adapter_and_nothing_where_nothing_is_moved(tmp_path):
    cells = grid(tmp_path)
    (moved,) = cells.attack(Setup(method=Method.LORA), 2)
    (still,) = cells.attack(Setup(method=Method.LORA), 2, cells.rows)
    assert (moved.spec.optimised, still.spec.optimised) == ("adapter", "all")


@pytest.mark.parametrize(("model_type", "targets"), [("gpt2", "query-value"), ("qwen2", "all-linear")])
def test_lora_adapts_what_table_3s_column_counts(tmp_path, model_type, targets):
    assert grid(tmp_path, model_type=model_type).run(Setup(method=Method.LORA), 0).training.targets == targets


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
    assert all(CONFIG.public.name != corpus.name for corpus in CONFIG.corpora.values())


# ---------------------------------------------------------------- names of parts


def test_parts_and_their_other_names():
    assert set(STUDIES) < set(PARTS)
    assert set(OTHER_NAMES.values()) <= set(PARTS)
    assert chosen_parts(PARTS, ["figure-8", "table-2"], other_names=OTHER_NAMES) == ("table-2", "figure-7")
    assert chosen_parts(PARTS, [], other_names=OTHER_NAMES) == PARTS


def test_an_unknown_part_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"tabel-2.*did you mean table-2.*Choose among: table-1, table-2"):
        chosen_parts(PARTS, ["tabel-2", "figure-3"], other_names=OTHER_NAMES)


def test_a_recipe_of_one_piece_has_no_parts_and_may_lack_a_size(tmp_path):
    with pytest.raises(ConfigError, match="one piece"):
        RECIPES["generation"].run(order(tmp_path, only=("table-1",)), None)
    assert at_size({Size.FULL: 3}, Size.FULL) == 3
    with pytest.raises(ConfigError, match=r"size = 'tiny'.*full"):
        at_size({Size.FULL: 3}, Size.TINY)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_shows_in_minutes_that_it_runs(name):
    assert Size.TINY in RECIPES[name].show()["sizes"]


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize("size", list(Size))
@pytest.mark.parametrize("name", STUDIES)
def test_points_are_told_apart_and_have_a_cell_for_each_seed(tmp_path, name, size):
    study = STUDIES[name](grid(tmp_path, size, seeds=2))
    assert study.name == name
    assert len({point.key for point in study.points}) == len(study.points)
    assert all(len(point.attacks) == 2 for point in study.points)
    assert all(cell.iteration in cell.run.kept for point in study.points for cell in point.attacks)
    assert all(cell.iteration in cell.run.kept for point in study.points for cell in point.inversions)


def test_parts_share_their_cells(tmp_path):
    first = {name: set(STUDIES[name](grid(tmp_path)).points[0].attacks) for name in ("table-2", "figure-3", "figure-4")}
    assert first["table-2"] == first["figure-3"] == first["figure-4"]
    cells = [cell for make in STUDIES.values() for point in make(grid(tmp_path)).points for cell in point.attacks]
    assert len(set(cells)) <= len(cells) - 20


def test_a_shallow_model_and_a_short_one_have_fewer_points(tmp_path):
    shallow = grid(tmp_path, blocks=3, limit=128)
    assert shallow.figure_3_depths == (1, 2)
    assert shallow.lengths == (4, 64, 128)


def test_table_2_does_what_the_paper_prints(tmp_path):
    points = STUDIES["table-2"](grid(tmp_path)).points
    assert [printed(point.paper)[:5] for point in points[:2]] == ["82.57", "0.415"]


# ---------------------------------------------------------------- report


def made_up(cell, share):
    right = tuple(round(share * 64) for _ in TEXTS)
    return Reading(
        true=TEXTS, guessed=TEXTS[::-1], right=right, counted=(64, 64), shuffled=(0, 1), chance=0.01
    )  # fmt: skip


def results_of(parts, share=lambda cell: 0.9 if cell.iteration == 1 else 0.01):
    attacked = {}
    rng = random.Random(0)
    for cell in [cell for part in parts for cell in part.attacks]:
        history = tuple(
            Stage(number=n, mse_outputs=1 / n, mse_inputs=1 + rng.random(), accuracy=share(cell)) for n in range(1, 5)
        )
        attacked[cell] = Attacked(reading=made_up(cell, share(cell)), history=history, seconds=1)
    inverted = {
        cell: Inverted(stages={"guessed": made_up(cell, share(cell))}, public_accuracy=0.5, seconds=1)
        for part in parts
        for cell in part.inversions
    }
    return Results(attacked, inverted)


@pytest.mark.parametrize("name", [*STUDIES, "table-1", "figure-13"])
def test_every_attacked_part_makes_table_plot_and_json(tmp_path, name):
    experiment = SimpleNamespace(
        recorder=SimpleNamespace(source="m"),
        folder=tmp_path,
        processed=lambda run, iteration: SimpleNamespace(changed=0, tensors=9, model_dump=lambda: {"changed": 0}),
    )
    part = make_part(name, grid(tmp_path, Size.TINY), experiment, tmp_path)
    made = part.report(results_of([part]))
    json.dumps(made.content)
    assert all(len(row) == len(table.columns) for table in made.tables for row in table.rows)
    assert all((tmp_path / picture).read_bytes().startswith(b"\x89PNG") for picture in made.pictures)
    assert made.pictures
    assert made.content["verdicts"]


def judged(tmp_path, name, share):
    study = STUDIES[name](grid(tmp_path, Size.TINY))
    made = report_study(study, results_of([SimpleNamespace(
        attacks=[cell for point in study.points for cell in point.attacks],
        inversions=[cell for point in study.points for cell in point.inversions],
    )], share), tmp_path, model="m")  # fmt: skip
    return [verdict["held"] for verdict in made.content["verdicts"]]


def test_the_papers_world_holds_and_its_opposite_does_not(tmp_path):
    assert judged(tmp_path, "table-2", lambda cell: 0.9 if cell.iteration == 1 else 0.0) == [True, True]
    assert judged(tmp_path, "table-2", lambda cell: 0.9) == [False, None]
    assert judged(tmp_path, "figure-3", lambda cell: 0.9 / cell.run.bottom**4)[0] is True
    assert judged(tmp_path, "figure-3", lambda cell: 0.5 + 0.1 * cell.run.bottom)[0] is False
    assert judged(tmp_path, "public-first", lambda cell: 0.0 if cell.run.public_iterations else 0.9) == [True]
    assert judged(tmp_path, "public-first", lambda cell: 0.9) == [False]
    assert judged(tmp_path, "inverter", lambda cell: 0.0) == [True]
    assert judged(tmp_path, "inverter", lambda cell: 0.9) == [False]
    assert judged(tmp_path, "inverter", lambda cell: 0.9 if cell.iteration == 1 else 0.0) == [False]
    assert judged(tmp_path, "controls", lambda cell: 0.0) == [True] * 4
    assert judged(tmp_path, "controls", lambda cell: 0.9) == [False] * 4


def test_table_1_takes_the_nearest_text(tmp_path):
    part = make_part(
        "table-1", grid(tmp_path), SimpleNamespace(recorder=SimpleNamespace(source="m"), folder=tmp_path), tmp_path
    )
    shares = dict(zip(part.attacks, (0.0, 0.1, 0.45, 0.6, 0.8, 0.99), strict=True))
    made = part.report(results_of([part], lambda cell: shares[cell]))
    assert [row[0] for row in made.tables[0].rows] == ["0.0", "9.4", "45.3", "79.7"]
    (verdict,) = made.content["verdicts"]
    assert verdict["held"] is None
    assert "was read to 45.3 %" in verdict["because"]


@pytest.mark.parametrize(
    ("name", "held", "said"),
    [
        ("figure-5", [True], ["times fewer, for 1 to 23 blocks"]),
        ("model-scale", [False, True], ["8.2 times as many", "94 times as many as ResNet-152"]),
    ],
)
def test_what_is_counted_is_judged_and_drawn(tmp_path, name, held, said):
    experiment = SimpleNamespace(recorder=SimpleNamespace(source="m"), folder=tmp_path)
    made = make_part(name, grid(tmp_path), experiment, tmp_path).report(results_of([]))
    json.dumps(made.content)
    assert [verdict["held"] for verdict in made.content["verdicts"]] == held
    for verdict, words in zip(made.content["verdicts"], said, strict=True):
        assert words in verdict["because"]
        assert any(verdict["because"] in note for note in made.tables[0].notes)
    assert [(tmp_path / picture).read_bytes()[:4] for picture in made.pictures] == [b"\x89PNG"]


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


@pytest.mark.slow
def test_parts_are_run_from_the_command_line_and_kept(world, monkeypatch):
    assert run(world, "table-2, controls,model-scale") == 0
    report = json.loads((world[0] / "out" / "report.json").read_text())
    assert list(report["parts"]) == ["table-2", "model-scale", "controls"]
    first = report["parts"]["table-2"]["points"][0]
    assert first["unsplit"]["accuracy"]["n"] == 16
    assert first["unsplit"]["accuracy"]["value"] > 0.5
    assert first["paper"]["accuracy"] == 82.57
    text = (world[0] / "out" / "report.md").read_text()
    assert "![table-2](table-2.png)" in text
    assert "Takeaway 3.3" in text
    # again: nothing is run, and no vendor is started
    monkeypatch.setattr("cutlayer.recipes.unsplit.cells.UnSplitRun", None)
    monkeypatch.setattr("cutlayer.recipes.loopback.VendorProcess", None)
    assert run(world, "table-2") == 0


def test_an_unknown_part_is_told_before_anything_is_run(world, capsys):
    assert run(world, "table-9", out="other") == ConfigError.exit_code
    assert "is no part" in capsys.readouterr().err
    assert not (world[0] / "other").exists()


@pytest.mark.slow
def test_what_is_read_above_the_cut_is_a_part(world, capsys):
    assert run(world, "tail,model-scale") == 0
    report = json.loads((world[0] / "out" / "report.json").read_text())["parts"]["tail"]
    assert {(row["tail"], row["method"]) for row in report["rows"]} == {
        (t, m) for t in (0, 1) for m in ("lora", "full")
    }
    for row in report["rows"]:
        assert row["first_steps"]["value"] > 0.9, row
        assert row["last_steps"]["n"] > 0
    assert report["verdicts"][0]["held"] is False
    assert (world[0] / "out" / "tail.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_all_parts_run(world):
    assert run(world, ",".join(PARTS)) == 0
    report = json.loads((world[0] / "out" / "report.json").read_text())
    assert list(report["parts"]) == list(PARTS)
    assert SplitStudy().show()["reference"] == report["reference"]
